"""Dead letters go to the sinks that miss them, and each row's last delivery is its last state."""

import threading
from collections import defaultdict

import orjson
import pytest

from airflow_provider_deltaforge.control import replays
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.engine.base.tuning import TUNING, Tuning
from airflow_provider_deltaforge.engine.driver.driver import drive_snapshot
from airflow_provider_deltaforge.engine.replay import replay
from airflow_provider_deltaforge.engine.replay.requests import replay_here
from airflow_provider_deltaforge.errors import AccessError, FencedError, RetryableError
from airflow_provider_deltaforge.sinks.position_contract import SinkPosition
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Amend
from airflow_provider_deltaforge.storage.records import dead_letters
from tests.engine import exact_memory
from tests.engine.driving import Driving
from tests.engine.exact_memory import exact_pipeline, held
from tests.engine.planted import WORKS, keeping, plant, refusing
from tests.engine.running import begun, events, run_to_the_end
from tests.waiting import wait_until

HOLDS = "enabled: true, dlq: {hold_keys: true}"
PICKY = "{type: planted, id: drops}, {type: planted, id: picky}"
DeadLetterFilter = dead_letters.DeadLetterFilter
EVERY = DeadLetterFilter()


def entries(pipeline):
    return list(dead_letters.DeadLetterRecords(pipeline.store, pipeline.name).read())


def ask(pipeline, which=EVERY, overtaken="skip"):
    return replays.request(pipeline.store, pipeline.name, which, overtaken, "a test")


def here(
    pipeline, which=EVERY, overtaken="skip", *, ending=None, tell=lambda *_: None, tuning=TUNING
):
    """Replay without a driver."""
    pipeline.want("stopped")
    ticket = ask(pipeline, which, overtaken)
    ending = ending or threading.Event()
    return replay_here(pipeline.name, pipeline.location, ticket, tell, ending, tuning)


def counts(told):
    names = ("sent", "refused", "dropped", "overtaken", "behind", "away", "unfit")
    return {name: getattr(told, name) for name in names if getattr(told, name)}


def history(pipeline):
    source = pipeline.context().pipeline.spec.source
    rows = defaultdict(list)
    for tx, row, key in source.events(1, pipeline.transactions):
        rows[key].append((tx, row))
    return rows


def by_row(pipeline, sink="out"):
    rows = defaultdict(list)
    for event in events(pipeline, sink):
        rows[event["after"]["id"]].append((event["after"]["tx"], event["after"]["row"]))
    return rows


def refuses(pipeline, *chosen, sink="out"):
    """Let a sink refuse events by transaction and row."""
    pipeline.log(sink).refuses = lambda value: (
        (
            (after := orjson.loads(value)["after"])["tx"],
            after["row"],
        )
        in chosen
    )


def takes_all(pipeline, sink="out"):
    pipeline.log(sink).refuses = None


class TestByTheDriver:
    @pytest.mark.parametrize("journal", ["enabled: true", HOLDS])
    def test_what_a_sink_refused_arrives_and_the_stream_goes_on(self, journal):
        pipeline = begun(
            sinks=("out", "other"), transactions=0, source="rate: 400,", journal=journal
        )
        pipeline.log().refuses = lambda value: orjson.loads(value)["after"]["id"] == 7
        driving = Driving(pipeline)
        wait_until(lambda: len(entries(pipeline)) > (3 if journal == HOLDS else 0))
        takes_all(pipeline)
        ticket = ask(pipeline, overtaken="send")
        wait_until(
            lambda: (told := replays.replay(pipeline.store, pipeline.name, ticket)) and told.settled
        )
        at = pipeline.checkpoints().load()["out"]["tx"]
        wait_until(lambda: pipeline.checkpoints().load()["out"]["tx"] > at + 50)
        pipeline.want("stopped")
        assert driving.end().why == "stopped"

        told = replays.replay(pipeline.store, pipeline.name, ticket)
        assert told.state == "done"
        assert counts(told) == {"sent": told.sent}
        assert pipeline.control.progress().dlq.replayed == told.sent
        assert pipeline.control.read().replays == []
        assert sorted(by_row(pipeline)[7]) == sorted(by_row(pipeline, "other")[7])
        if journal == HOLDS:
            assert entries(pipeline) == []
            assert by_row(pipeline) == by_row(pipeline, "other")

    def test_a_sink_that_is_behind_keeps_no_replay_waiting(self):
        pipeline = begun(
            sinks=("out", "other"),
            sink="required: false,",
            transactions=0,
            source="rate: 200,",
            journal=HOLDS,
        )
        pipeline.log().refuses = lambda value: orjson.loads(value)["after"]["id"] == 7
        driving = Driving(pipeline)
        wait_until(lambda: len(entries(pipeline)) > 3)
        pipeline.log("other").fail_next(10**6, RetryableError("away"))
        wait_until(lambda: pipeline.control.progress().sinks["other"].status == "behind")
        takes_all(pipeline)
        ticket = ask(pipeline)
        wait_until(lambda: pipeline.control.read().replays == [])
        told = replays.replay(pipeline.store, pipeline.name, ticket)
        assert (told.state, counts(told)) == ("done", {"sent": told.sent})
        pipeline.log("other").clear()
        wait_until(lambda: pipeline.control.progress().sinks["other"].status == "running")
        pipeline.want("stopped")
        assert driving.end().why == "stopped"

    def test_a_job_that_serves_requests_serves_it(self):
        pipeline = begun(journal="enabled: true")
        last = max(history(pipeline)[1])
        refuses(pipeline, last)
        run_to_the_end(pipeline)
        takes_all(pipeline)
        pipeline.want("running")
        ticket = ask(pipeline)
        driving = Driving(
            pipeline, drive=lambda told, runner: drive_snapshot(told, runner, own=False)
        )
        assert driving.end().why == "finished"
        assert replays.replay(pipeline.store, pipeline.name, ticket).sent == 1
        assert by_row(pipeline)[1][-1] == last

    def test_a_sink_that_cannot_be_reached_at_all_fails_the_replay_alone(self):
        pipeline = begun(journal="enabled: true")
        refuses(pipeline, max(history(pipeline)[1]))
        run_to_the_end(pipeline)
        takes_all(pipeline)
        pipeline.log().fail_next(1, AccessError("the password is wrong"))
        pipeline.want("running")
        ticket = ask(pipeline)
        driving = Driving(pipeline)
        wait_until(lambda: pipeline.control.read().replays == [])
        pipeline.want("stopped")
        assert driving.end().why == "stopped"
        told = replays.replay(pipeline.store, pipeline.name, ticket)
        assert (told.state, told.error_class) == ("failed", "access")
        assert "password is wrong" in told.reason
        assert len(entries(pipeline)) == 1

    def test_a_withdrawn_one_is_not_served(self):
        pipeline = begun(journal="enabled: true")
        refuses(pipeline, max(history(pipeline)[1]))
        run_to_the_end(pipeline)
        ticket = ask(pipeline)
        replays.cancel(pipeline.store, pipeline.name, ticket, "changed my mind")
        pipeline.want("running")
        driving = Driving(pipeline)
        wait_until(lambda: pipeline.control.read().replays == [])
        pipeline.want("stopped")
        driving.end()
        told = replays.replay(pipeline.store, pipeline.name, ticket)
        assert (told.state, told.reason, told.sent) == ("cancelled", "changed my mind", 0)
        assert len(entries(pipeline)) == 1


class TestOrder:
    def test_held_events_arrive_in_order_behind_the_first(self):
        pipeline = begun(sinks=("out", "other"), journal=HOLDS, batch="max_bytes: 500, ")
        rows = history(pipeline)
        refuses(pipeline, *(rows[key][0] for key in range(1, 11)))
        run_to_the_end(pipeline)
        assert not by_row(pipeline).keys() & set(range(1, 11))
        takes_all(pipeline)

        assert counts(here(pipeline)) == {"sent": 20}
        assert by_row(pipeline) == by_row(pipeline, "other") == rows
        assert entries(pipeline) == []

    def test_an_overtaken_entry_stays_unless_it_is_asked_for(self):
        pipeline = begun(sinks=("out", "other"), journal="enabled: true")
        rows = history(pipeline)
        refuses(pipeline, rows[1][0], rows[2][0], rows[3][-1])
        run_to_the_end(pipeline)
        takes_all(pipeline)

        assert counts(here(pipeline)) == {"sent": 1, "overtaken": 2}
        assert by_row(pipeline)[3] == rows[3]
        first, second = entries(pipeline)
        only = DeadLetterFilter(first=first.seq, last=first.seq)
        assert counts(here(pipeline, only, "drop")) == {"dropped": 1}
        assert counts(here(pipeline, overtaken="send")) == {"sent": 1}
        assert entries(pipeline) == []
        sent = by_row(pipeline)[second.event["after"]["id"]]
        assert sent == [
            *rows[second.event["after"]["id"]][1:],
            (second.event["after"]["tx"], second.event["after"]["row"]),
        ]

    def test_a_later_entry_of_a_row_waits_for_one_that_was_not_chosen(self):
        pipeline = begun(journal=HOLDS)
        refuses(pipeline, history(pipeline)[1][0])
        run_to_the_end(pipeline)
        takes_all(pipeline)
        first, second = entries(pipeline)
        assert counts(here(pipeline, DeadLetterFilter(first=second.seq))) == {"behind": 1}
        assert counts(here(pipeline, DeadLetterFilter(last=first.seq))) == {"sent": 1}
        assert counts(here(pipeline)) == {"sent": 1}
        assert by_row(pipeline) == history(pipeline)

    def test_one_that_is_refused_again_stays_and_holds_back_its_row(self):
        pipeline = begun(journal=HOLDS)
        refuses(pipeline, history(pipeline)[1][0])
        run_to_the_end(pipeline)
        before = entries(pipeline)
        assert counts(here(pipeline)) == {"refused": 1, "behind": 1}
        after = entries(pipeline)
        assert [one.meta.attempts for one in after] == [2, 1]
        assert [one.event for one in after] == [one.event for one in before]
        assert after[0].meta.error_kind == "refused"


class TestProcessors:
    @pytest.fixture
    def picky(self, monkeypatch):
        plant(
            monkeypatch,
            drops=keeping(lambda text: orjson.loads(text)["row"] != 2),
            picky=refusing(lambda text: orjson.loads(text)["id"] == 1),
        )

    def refused(self, journal="enabled: true"):
        pipeline = begun(sinks=("out", "other"), processors=PICKY, journal=journal, transactions=10)
        run_to_the_end(pipeline, 10)
        assert {one.meta.processor_id for one in entries(pipeline)} == {"picky"}
        return pipeline

    def test_what_a_processor_refused_goes_on_from_there(self, picky, monkeypatch):
        pipeline = self.refused()
        seen = []
        monkeypatch.setitem(WORKS, "drops", seen.append)
        monkeypatch.setitem(WORKS, "picky", keeping(lambda _: True))
        kept = [place for place in history(pipeline)[1] if place[1] != 2]
        assert counts(here(pipeline)) == {"sent": len(kept)}
        assert by_row(pipeline)[1] == by_row(pipeline, "other")[1] == kept
        assert seen == []

    def test_held_events_of_every_sink_follow_it(self, monkeypatch):
        plant(monkeypatch, picky=refusing(lambda text: orjson.loads(text)["tx"] == 1))
        pipeline = begun(
            sinks=("out", "other"), processors="{type: planted, id: picky}", journal=HOLDS
        )
        run_to_the_end(pipeline)
        rows = history(pipeline)
        later = sum(len(rows[key]) - 1 for key in rows if rows[key][0][0] == 1)
        monkeypatch.setitem(WORKS, "picky", keeping(lambda _: True))
        assert counts(here(pipeline)) == {"sent": 3 + 2 * later}
        assert by_row(pipeline) == by_row(pipeline, "other") == rows

    def test_what_is_refused_again_says_by_whom(self, picky):
        pipeline = self.refused()
        assert counts(here(pipeline)) == {"refused": 1}
        (entry,) = entries(pipeline)
        assert entry.meta.attempts == 2
        assert entry.meta.error_message == "processor picky: planted"

    def test_a_sink_that_refuses_it_then_is_the_only_one_that_misses_it(self, picky, monkeypatch):
        pipeline = self.refused()
        monkeypatch.setitem(WORKS, "picky", keeping(lambda _: True))
        refuses(pipeline, *history(pipeline)[1])
        assert counts(here(pipeline)) == {"refused": 1}
        (entry,) = entries(pipeline)
        assert entry.meta.delivered == ["other"]
        assert entry.meta.error_message.startswith("sink out: ")
        takes_all(pipeline)
        assert counts(here(pipeline)) == {"sent": 1}
        assert by_row(pipeline)[1] == by_row(pipeline, "other")[1]

    def test_a_sink_that_is_behind_does_not_get_it_before_what_is_older(self, picky, monkeypatch):
        pipeline = self.refused()
        monkeypatch.setitem(WORKS, "picky", keeping(lambda _: True))
        pipeline.begin_at(other=3)
        assert counts(here(pipeline)) == {"away": 1}
        (entry,) = entries(pipeline)
        assert (entry.meta.delivered, entry.meta.attempts) == (["out"], 1)
        pipeline.begin_at(other=10)
        assert counts(here(pipeline)) == {"sent": 1}
        assert by_row(pipeline)[1] == by_row(pipeline, "other")[1]

    def test_a_processor_that_is_gone_is_named(self, picky):
        pipeline = self.refused()
        pipeline.control.update(lambda old: old)
        gone = pipeline.document.replace(", {type: planted, id: picky}", "")
        pipeline.store.put("documents", pipeline.name, gone.encode())
        (seen,) = replays.foresee(pipeline.store, pipeline.name, EVERY, "skip")
        assert (seen.action, seen.why) == ("unfit", "the document has no processor picky any more")
        assert counts(here(pipeline)) == {"unfit": 1}


def test_an_entry_without_its_images_cannot_be_sent_and_says_so():
    pipeline = begun(journal="enabled: true, max_event_bytes: 64")
    refuses(pipeline, max(history(pipeline)[1]))
    run_to_the_end(pipeline)
    takes_all(pipeline)
    (seen,) = replays.foresee(pipeline.store, pipeline.name, EVERY, "skip")
    assert seen.action == "unfit"
    assert "original payload exceeded 64 bytes; copy the row again" in seen.why
    assert counts(here(pipeline)) == {"unfit": 1}
    assert len(entries(pipeline)) == 1


def test_a_damaged_entry_stays_and_says_why_and_the_others_are_sent():
    pipeline = begun(journal="enabled: true")
    refuses(pipeline, *(max(history(pipeline)[row]) for row in (1, 2, 3)))
    run_to_the_end(pipeline)
    takes_all(pipeline)
    _, second, third = (one.seq for one in entries(pipeline))
    pipeline.store.transact([Amend(names.JOURNAL, f"{pipeline.name}:dlq", second, b"torn{")])

    seen = list(replays.foresee(pipeline.store, pipeline.name, EVERY, "skip"))
    assert [one.action for one in seen] == ["send", "unfit", "send"]
    assert f"dead letter {second} of {pipeline.name}" in seen[1].why
    assert counts(here(pipeline, DeadLetterFilter(first=third))) == {"sent": 1}
    assert counts(here(pipeline)) == {"sent": 1, "unfit": 1}
    assert [one.seq for one in entries(pipeline)] == [second]
    (kept,) = pipeline.store.peek(names.JOURNAL, f"{pipeline.name}:dlq", 5)
    assert kept.value == b"torn{"


def test_messages_keep_their_ids_and_everything_else():
    pipeline = begun(sinks=("out", "other"), journal="enabled: true")
    last = max(history(pipeline)[1])
    refuses(pipeline, last)
    run_to_the_end(pipeline)
    takes_all(pipeline)
    here(pipeline)
    (told,) = [one for one in pipeline.log("other").messages() if b'"id":1,' in one.value][-1:]
    assert pipeline.log().messages()[-1] == told


def test_a_sink_that_is_away_is_waited_for():
    pipeline = begun(journal="enabled: true")
    refuses(pipeline, max(history(pipeline)[1]))
    run_to_the_end(pipeline)
    takes_all(pipeline)
    said = []
    pipeline.log().fail_next(2, RetryableError("away"))
    told = here(pipeline, tell=lambda name, error: said.append((name, error and str(error))))
    assert counts(told) == {"sent": 1}
    assert said == [("sink out", "away"), ("sink out", "away"), ("sink out", None)]


def test_an_optional_sink_that_is_away_is_not_waited_for():
    pipeline = begun(sinks=("out", "other"), sink="required: false,", journal="enabled: true")
    last = max(history(pipeline)[1])
    refuses(pipeline, last)
    refuses(pipeline, last, sink="other")
    run_to_the_end(pipeline)
    takes_all(pipeline)
    takes_all(pipeline, "other")
    pipeline.log().fail_next(10**6, RetryableError("away"))
    assert counts(here(pipeline)) == {"sent": 1, "away": 1}
    pipeline.log().clear()
    assert counts(here(pipeline)) == {"sent": 1}
    assert entries(pipeline) == []


def refused_exactly_once(monkeypatch):
    pipeline = exact_pipeline(monkeypatch, journal="enabled: true")
    pipeline.begin_at(out=0)
    last = b'{"id":1,"tx":%d,"row":%d}' % max(history(pipeline)[1])
    held(pipeline).refuses = lambda value: last in value
    run_to_the_end(pipeline)
    held(pipeline).refuses = lambda _: False
    assert len(entries(pipeline)) == 1
    return pipeline


def test_a_sink_that_delivers_exactly_once_is_sent_it_beside_its_position(monkeypatch):
    pipeline = refused_exactly_once(monkeypatch)
    cursor, count = held(pipeline).cursor, len(held(pipeline).values)
    assert counts(here(pipeline)) == {"sent": 1}
    assert held(pipeline).cursor == cursor
    assert len(set(held(pipeline).ids)) == count + 1 == 60


def test_a_sink_that_holds_more_than_is_known_of_it_gets_no_replay_yet(monkeypatch):
    """What it holds behind the checkpoint may have overtaken the entry."""
    pipeline = refused_exactly_once(monkeypatch)
    held(pipeline).cursors.append(SinkPosition({"tx": 21}))
    told = here(pipeline)
    assert (told.state, told.sent) == ("failed", 0)
    assert "let the pipeline deliver something first, then ask again" in told.reason
    assert len(entries(pipeline)) == 1


def test_a_driver_that_starts_meanwhile_goes_on_with_it(monkeypatch):
    pipeline = begun(journal="enabled: true")
    refuses(pipeline, max(history(pipeline)[1]))
    run_to_the_end(pipeline)
    takes_all(pipeline)
    real = replay.reach
    monkeypatch.setattr(
        replay, "reach", lambda at: pipeline.control.take_epoch("newer") and real(at)
    )
    with pytest.raises(FencedError):
        here(pipeline)
    assert len(entries(pipeline)) == len(pipeline.control.read().replays) == 1


def test_many_rounds_leave_nothing():
    pipeline = begun(journal=HOLDS)
    pipeline.log().refuses = lambda _: True
    run_to_the_end(pipeline)
    takes_all(pipeline)
    small = Tuning(replay_round=7, replay_page=3)
    assert counts(here(pipeline, tuning=small)) == {"sent": 60}
    assert by_row(pipeline) == history(pipeline)


def test_an_optional_sink_that_holds_the_position_and_is_away_is_not_waited_for(monkeypatch):
    pipeline = exact_pipeline(
        monkeypatch, sinks=("out", "other"), sink="required: false,", journal="enabled: true"
    )
    pipeline.begin_at(out=0, other=0)
    last = b'{"id":1,"tx":%d,"row":%d}' % max(history(pipeline)[1])
    held(pipeline).refuses = lambda value: last in value
    run_to_the_end(pipeline)
    real = exact_memory.ExactSink.open

    def away(sink, name):
        if sink.id == "out":
            raise RetryableError("away")
        return real(sink, name)

    monkeypatch.setattr(exact_memory.ExactSink, "open", away)
    said, ending = [], threading.Event()

    def tell(name, error):
        said.append((name, str(error)))
        if len(said) == 3:
            ending.set()

    told = here(pipeline, ending=ending, tell=tell)
    assert told is not None, "it waits for a sink that the pipeline goes on without"
    assert counts(told) == {"away": 1}
    assert said == [("sink out", "away")]
    monkeypatch.setattr(exact_memory.ExactSink, "open", real)
    assert counts(here(pipeline)) == {"sent": 1}


def test_begun_again_after_a_kill_it_counts_what_stays_once(monkeypatch):
    pipeline = begun(journal="enabled: true")
    refuses(pipeline, *(max(history(pipeline)[key]) for key in (1, 2, 3)))
    run_to_the_end(pipeline)
    refuses(pipeline, *(max(history(pipeline)[key]) for key in (1, 2)))
    pipeline.want("stopped")
    ticket = ask(pipeline)

    def serve():
        where, ending, single = pipeline.location, threading.Event(), Tuning(replay_round=1)
        return replay_here(pipeline.name, where, ticket, lambda *_: None, ending, single)

    def killed(crash_point):
        if crash_point is CrashPoint.REPLAY_STORED:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(replay, "reach", killed)
        with pytest.raises(KeyboardInterrupt):
            serve()
    assert counts(serve()) == {"sent": 1, "refused": 2}
