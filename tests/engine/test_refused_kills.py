"""Killed as it is stored what a real sink refused, and as a command sends that again."""

from collections import Counter
from dataclasses import replace

import pytest
import redis
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from airflow_provider_deltaforge.control import replays
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.plugins import PROCESSORS
from airflow_provider_deltaforge.storage.records.dead_letters import (
    DeadLetterFilter,
    DeadLetterRecords,
)
from tests.engine import picky
from tests.engine.exact_run import PLACES, ExactRun, new_place
from tests.engine.scripted_run import NAME, kill
from tests.oracle.verdict import judge
from tests.sinks import nats_reader

TRANSACTIONS = 200
LONG = [*range(20, TRANSACTIONS, 20), 195, 197, 199]
"""Of which one event is too large."""
FULL = (17, 30)
"""Rows whose streams have used up their ids: Redis takes entries of any size."""

pytestmark = pytest.mark.long


class OfKafka:
    def __init__(self, dsn, place):
        self.place, self._admin = place, AdminClient({"bootstrap.servers": dsn})
        most = {"max.message.bytes": str(picky.LONG - 10_000)}
        topic = NewTopic(place.name, 1, 1, config=most)
        self._admin.create_topics([topic])[place.name].result(timeout=60)

    def takes_all(self):
        most = ConfigEntry(
            "max.message.bytes", str(4 * picky.LONG), incremental_operation=AlterConfigOpType.SET
        )
        topic = ConfigResource(ResourceType.TOPIC, self.place.name, incremental_configs=[most])
        for done in self._admin.incremental_alter_configs([topic]).values():
            done.result(timeout=60)


class OfNats:
    def __init__(self, dsn, place):
        self.place, self._dsn = place, dsn
        nats_reader.change_stream(dsn, place.name, max_msg_size=picky.LONG - 10_000)

    def takes_all(self):
        nats_reader.change_stream(self._dsn, self.place.name, max_msg_size=-1)


class OfRedis:
    def __init__(self, dsn, place):
        one = f"stream: '{place.name}'"
        each = f"stream: '{place.name}:${{after.id}}'"
        self.place = replace(place, sink=place.sink.replace(one, each), read=self._read)
        self._dsn, self._name = dsn, place.name
        self._full = [f"{place.name}:{key}" for key in FULL]
        with redis.Redis.from_url(dsn) as client:
            for stream in self._full:
                client.xadd(stream, {"event": "{}"}, id=f"{2**64 - 1}-{2**64 - 1}")

    def takes_all(self):
        with redis.Redis.from_url(self._dsn) as client:
            client.delete(*self._full)

    def _read(self):
        with redis.Redis.from_url(self._dsn) as client:
            streams = client.keys(f"{self._name}:*")
            events = [fields[b"event"] for name in streams for _, fields in client.xrange(name)]
        return [event for event in events if event != b"{}"]


REFUSING = {"kafka": OfKafka, "nats": OfNats, "redis": OfRedis}


@pytest.fixture(autouse=True)
def _processors(monkeypatch):
    for name, place in picky.PLACE.items():
        monkeypatch.setitem(PROCESSORS.shipped, name, place)


@pytest.mark.parametrize("exactly_once", [True, False], ids=["exact", "plain"])
@pytest.mark.parametrize("holds", [True, False], ids=["holds", "overtaken"])
@pytest.mark.parametrize("kind", sorted(PLACES))
def test_an_entry_is_there_once_and_reaches_its_sink_in_order(
    kind, exactly_once, holds, request, tmp_path
):
    dsn = request.getfixturevalue(f"{kind}_server").dsn()
    sink = REFUSING[kind](dsn, new_place(kind, dsn, exactly_once=exactly_once))
    stretching = "" if kind == "redis" else f"{{type: stretching, transactions: {LONG}}}"
    run = ExactRun(
        tmp_path,
        place=sink.place,
        transactions=TRANSACTIONS,
        rate=0,
        processors=stretching,
        journal=f"enabled: true, dlq: {{hold_keys: {str(holds).lower()}}}",
    )
    run.begin_at(0)
    queue = DeadLetterRecords(run.store, NAME)

    for crossing in (1, 2):
        run.held.unlink(missing_ok=True)
        dies(run, run.start(hold=(CrashPoint.DEAD_LETTERS_STORED, crossing)))
        early = replayed_here(run)
        assert early.state in ("done", "failed")
        assert early.sent == 0, "the sink refuses it still"
        assert len({letter.event_id for letter in queue.read()}) == queue.count() > 0
    driver = run.start()
    run.wait_delivered(driver)
    assert run.stop(driver) == 0
    assert len({letter.event_id for letter in queue.read()}) == queue.count()
    before = {name_of(letter): letter for letter in queue.read()}
    history = run.history({"tx": 0})
    assert judge([one for one in history if one.name not in before], seen(run)) == []

    sink.takes_all()
    run.held.unlink()
    run.want("stopped")
    ticket = replays.request(run.store, NAME, DeadLetterFilter(), "skip", "a test")
    dies(run, run.command(ticket, hold=(CrashPoint.REPLAY_WRITTEN, 1)))
    sent = {event.name for event in seen(run)} & before.keys()
    assert sent, "it was killed too early: this proves nothing"
    run.want("running")
    driver = run.start()
    run._wait(lambda: run.control.read().replays == [], driver)
    assert run.stop(driver) == 0

    told = replays.replay(run.store, NAME, ticket)
    left = {name_of(letter): letter for letter in queue.read()}
    counted = told.state, told.sent, told.overtaken
    assert counted == ("done", len(before) - len(left), len(left))
    assert not (holds and left)
    assert all(letter.meta.overtaken == ["out"] for letter in left.values())
    rest = [change for change in history if change.name not in left]
    assert judge(rest, seen(run)) == []
    times = Counter(event.name for event in seen(run))
    assert not exactly_once or {name for name in times if times[name] > 1} <= sent


def dies(run, process):
    kill(run.wait_held(process))
    process.wait()


def replayed_here(run):
    """Ask for a replay between two drivers, whose sink refuses still."""
    run.want("stopped")
    ticket = replays.request(run.store, NAME, DeadLetterFilter(), "skip", "a test")
    assert run.command(ticket).wait() == 0
    run.want("running")
    return replays.replay(run.store, NAME, ticket)


def seen(run):
    """Return what a consumer sees, but for what made events long."""
    return [
        replace(event, state={name: of for name, of in event.state.items() if name != "pad"})
        for event in run.seen()
    ]


def name_of(letter):
    return letter.event["after"]["tx"], letter.event["after"]["row"]
