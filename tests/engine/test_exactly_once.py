"""Each event once in every sink that can, wherever the pipeline is killed.

Each crash point is one pipeline of one sink that is killed there three times, at other crossings
each time. All sinks in one pipeline, from MySQL and on Spark: ``tests/e2e/test_exact_shop.py``.
"""

import os
import signal

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.plugins import PROCESSORS
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from tests.engine import picky
from tests.engine.exact_run import PLACES, exact_run
from tests.engine.frozen import freeze_between_writes
from tests.engine.scripted_run import NAME, PATIENCE_S
from tests.oracle.verdict import judge
from tests.waiting import wait_until

BORDERS = [
    CrashPoint.START_POSITION_STORED,
    CrashPoint.BATCH_RENDERED,
    CrashPoint.SINK_WRITTEN,
    CrashPoint.CHECKPOINT_STORED,
    CrashPoint.SOURCE_ACKNOWLEDGED,
]
KILLS = (2, 4, 3)
"""At which crossing each driver is killed; a start position is stored once per driver."""


# All of these are crossed in tests/e2e/test_exact_shop.py, too.
@pytest.mark.long
@pytest.mark.parametrize("crash_point", BORDERS, ids=lambda point: point.value)
@pytest.mark.parametrize("kind", sorted(PLACES))
def test_kills_at_a_crash_point_lose_and_repeat_nothing(kind, crash_point, request, tmp_path):
    dsn = request.getfixturevalue(f"{kind}_server").dsn()
    run = exact_run(kind, dsn, tmp_path, transactions=400, rate=0)
    run.begin_at(0)
    for crossing in KILLS:
        once = crash_point is CrashPoint.START_POSITION_STORED
        run.kill_at(crash_point, 1 if once else crossing)
    run.deliver_all()

    assert run.judge({"tx": 0}) == []


@pytest.mark.parametrize(
    "crash_point",
    [CrashPoint.DEAD_LETTERS_STORED, pytest.param(CrashPoint.SINK_WRITTEN, marks=pytest.mark.long)],
    ids=lambda point: point.value,
)
def test_what_is_set_aside_is_neither_lost_nor_there_twice(
    crash_point, kafka_server, tmp_path, monkeypatch
):
    for name, place in picky.PLACE.items():
        monkeypatch.setitem(PROCESSORS.shipped, name, place)
    long = [20, 110]
    run = exact_run(
        "kafka",
        kafka_server.dsn(),
        tmp_path,
        transactions=200,
        rate=0,
        processors=f"{{type: picky}}, {{type: stretching, transactions: {long}}}",
        journal="enabled: true",
    )
    create(kafka_server.dsn(), run.place.name, max_message_bytes=picky.LONG - 10_000)
    run.begin_at(0)
    for crossing in KILLS:
        run.kill_at(crash_point, crossing)
    run.deliver_all()

    refused = [c.name for c in run.history({"tx": 0}) if is_refused(c, long)]
    letters = [letter.event["after"] for letter in DeadLetterRecords(run.store, NAME).read()]
    assert sorted((after["tx"], after["row"]) for after in letters) == sorted(refused)
    rest = [change for change in run.history({"tx": 0}) if change.name not in set(refused)]
    assert judge(rest, run.seen(), exactly_once=True) == []


def is_refused(change, long):
    tx, row = change.name
    return change.state["id"] % 2 == 0 or (tx in long and row == 0)


def create(dsn, name, **settings):
    config = {key.replace("_", "."): str(each) for key, each in settings.items()}
    admin = AdminClient({"bootstrap.servers": dsn})
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(timeout=60)


def test_a_driver_that_wakes_up_after_another_took_over_is_never_seen(kafka_server, tmp_path):
    """Frozen while it delivers batch after batch of a log without an end."""
    run = exact_run("kafka", kafka_server.dsn(), tmp_path, transactions=0, rate=400)
    run.begin_at(0)
    old = run.start()
    wait_until(lambda: run.checkpoint()["tx"] > 0)
    freeze_between_writes([old.pid], run.directory / "state.db")
    frozen_at = run.checkpoint()["tx"]
    new = run.start()
    wait_until(lambda: run.checkpoint()["tx"] > frozen_at + 100)
    os.kill(old.pid, signal.SIGCONT)

    assert old.wait(PATIENCE_S) != 0
    over_at = run.checkpoint()["tx"]
    wait_until(lambda: run.checkpoint()["tx"] > over_at + 100)
    assert run.stop(new) == 0
    run.close_log()
    assert run.judge({"tx": 0}) == []
