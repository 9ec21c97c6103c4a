"""Events that nobody can take are set aside with the position, within the limits of the queue."""

import logging
import threading
import time

import orjson
import pytest

from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment
from airflow_provider_deltaforge.engine.base.tuning import Tuning
from airflow_provider_deltaforge.engine.dead_letters.queue import DeadLetterQueue
from airflow_provider_deltaforge.engine.driver.driver import DriverArguments, drive_stream
from airflow_provider_deltaforge.engine.driver.local import LocalRunner
from airflow_provider_deltaforge.engine.snapshot.chunk_copy import copy_chunks
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from tests.engine.in_process import DRIVER, InProcess
from tests.engine.planted import keeping, plant, refusing
from tests.engine.running import RunningLane, begun, events, places, run_to_the_end
from tests.waiting import PATIENCE_S, wait_until

CHUNK = TableChunk("script.rows:1", "script", None, "rows", {"low": 1, "high": 10})
PICKY = "{type: planted, id: picky}"


def row_of(text):
    return orjson.loads(text)["row"]


def queue(pipeline):
    return DeadLetterRecords(pipeline.store, pipeline.name)


def letters(pipeline):
    return list(queue(pipeline).read())


def set_aside(pipeline):
    return [(one.event["after"]["tx"], one.event["after"]["row"]) for one in letters(pipeline)]


@pytest.fixture
def picky(monkeypatch):
    """Refuses the first row of every transaction, and drops the last."""
    plant(
        monkeypatch,
        drops=keeping(lambda text: row_of(text) != 2),
        picky=refusing(lambda text: row_of(text) == 0),
    )


def test_what_a_processor_refuses_is_set_aside_as_it_came_to_it(picky):
    pipeline = begun(processors="{type: planted, id: drops}, " + PICKY, journal="enabled: true")
    progress = run_to_the_end(pipeline)

    assert places(pipeline) == [(tx, 1) for tx in range(1, 21)]
    assert set_aside(pipeline) == [(tx, 0) for tx in range(1, 21)]
    first = letters(pipeline)[0]
    source = pipeline.context().pipeline.spec.source
    assert first.model_dump(exclude={"timestamp", "event", "event_id", "rest"}) == {
        "v": 1,
        "seq": first.seq,
        "pipeline": pipeline.name,
        "stream": "dlq",
        "source_cursor": {"sequence": 1},
        "payload_truncated": False,
        "meta": {
            "sink_id": None,
            "processor_id": "picky",
            "error_kind": "processor",
            "error_message": "planted",
            "attempts": 1,
            "overtaken": [],
            "delivered": [],
        },
    }
    assert first.event_id == first.event["event_id"]
    assert first.event_id.replace("-", "") == source.event_id(1, 0).hex()
    assert abs(first.timestamp - time.time()) < 3600
    assert progress.dlq.model_dump()["events"] == [
        {"sink": "", "processor": "picky", "error_kind": "processor", "count": 20}
    ]
    assert progress.sinks["out"].events == 20


def test_what_a_sink_refuses_is_set_aside_for_that_sink_alone():
    pipeline = begun(sinks=("out", "picky"), journal="enabled: true")
    pipeline.log("picky").refuses = lambda value: b'"row":1}' in value
    progress = run_to_the_end(pipeline)

    assert len(events(pipeline)) == 60
    assert [event["after"]["row"] for event in events(pipeline, "picky")] == [0, 2] * 20
    assert set_aside(pipeline) == [(tx, 1) for tx in range(1, 21)]
    assert {one.meta.sink_id for one in letters(pipeline)} == {"picky"}
    assert {one.meta.error_kind for one in letters(pipeline)} == {"refused"}
    assert (progress.sinks["picky"].events, progress.sinks["out"].events) == (40, 60)
    pipeline.log("picky").clear()


def test_what_has_no_destination_is_set_aside():
    pipeline = begun(sink='topic: "${after.none}"', journal="enabled: true", transactions=2)
    run_to_the_end(pipeline, 2)

    assert events(pipeline) == []
    assert [one.meta.error_kind for one in letters(pipeline)] == ["routing"] * 6


def test_what_is_refused_of_a_copied_row_is_set_aside_with_the_chunk(monkeypatch):
    plant(monkeypatch, picky=refusing(lambda text: orjson.loads(text)["id"] == 4))
    pipeline = InProcess(snapshot="initial", processors=PICKY, journal="enabled: true")
    pipeline.log().refuses = lambda value: b'{"id":7,' in value
    pipeline.control.take_epoch(DRIVER)
    (told,) = copy_chunks(
        DriverAssignment(pipeline.document, pipeline.location, DRIVER, 1), "r1", [CHUNK]
    )

    assert told.outcome is None
    assert [event["after"]["id"] for event in events(pipeline)] == [1, 2, 3, 5, 6, 8, 9, 10]
    found = [(one.event["after"]["id"], one.event["op"]) for one in letters(pipeline)]
    assert found == [(4, "r"), (7, "r")]
    assert {one.source_cursor and 1 for one in letters(pipeline)} == {None}
    assert [one["count"] for one in told.dead_letters["events"]] == [1, 1]
    assert told.taken["out"].events == 8


def test_of_a_long_event_only_its_names_are_kept(picky):
    pipeline = begun(processors=PICKY, journal="enabled: true, max_event_bytes: 64", transactions=1)
    run_to_the_end(pipeline, 1)

    (letter,) = letters(pipeline)
    assert letter.payload_truncated
    assert letter.event["after"] == "<truncated: original payload exceeded 64 bytes>"
    assert letter.event["before"] is None
    assert letter.event["source"]["table"] == "rows"
    assert letter.event_id == letter.event["event_id"]


def test_entries_and_position_are_stored_together_or_not_at_all(picky, monkeypatch):
    pipeline = begun(processors=PICKY, journal="enabled: true", batch="max_bytes: 500, ")
    context = pipeline.context()
    real, failures = context.store.transact, [True, True]

    def broken(writes, fence=None):
        if failures and any(getattr(one, "namespace", "") == names.JOURNAL for one in writes):
            assert any(one.namespace == names.CHECKPOINTS for one in writes)
            failures.pop()
            raise RetryableError("the store is away")
        real(writes, fence)

    monkeypatch.setattr(type(context.store), "transact", lambda _, *told: broken(*told))
    monkeypatch.setattr(pipeline, "context", lambda: context)
    progress = run_to_the_end(pipeline)

    assert set_aside(pipeline) == [(tx, 0) for tx in range(1, 21)]
    assert progress.dlq.write_failures == 2


def test_of_a_transaction_that_is_refused_in_masses_entries_are_stored_before_its_end(
    picky, monkeypatch
):
    pipeline = begun(
        rows=40,
        transactions=3,
        processors="{type: planted, id: all}",
        journal="enabled: true",
        batch="max_transaction_bytes: 640, max_bytes: 640, ",
        tuning=Tuning(held_dead_letters=1),
    )
    plant(monkeypatch, all=refusing(lambda _: True))
    stored = []
    real = DeadLetterQueue.stored
    monkeypatch.setattr(
        DeadLetterQueue, "stored", lambda box: stored.append(len(box._held)) or real(box)
    )
    run_to_the_end(pipeline, 3)

    assert set_aside(pipeline) == [(tx, row) for tx in (1, 2, 3) for row in range(40)]
    assert max(stored) < 40
    assert len([count for count in stored if count]) > 3


class TestOverflow:
    def test_the_oldest_make_room(self, picky, caplog):
        pipeline = begun(
            processors=PICKY,
            journal="enabled: true, dlq: {max_entries: 4}",
            batch="max_bytes: 500, ",
        )
        with caplog.at_level(logging.WARNING):
            progress = run_to_the_end(pipeline)

        assert set_aside(pipeline) == [(tx, 0) for tx in (17, 18, 19, 20)]
        assert progress.dlq.evicted == 16
        assert progress.dlq.max_entries == 4
        assert "set aside" in caplog.text
        assert "the dead-letter queue is 100% full" in caplog.text

    def test_a_batch_that_refuses_more_than_there_is_room_keeps_the_last(self, picky):
        pipeline = begun(processors=PICKY, journal="enabled: true, dlq: {max_entries: 3}")
        run_to_the_end(pipeline)

        assert set_aside(pipeline) == [(tx, 0) for tx in (18, 19, 20)]

    def test_new_ones_are_counted_and_lost(self, picky, caplog):
        pipeline = begun(
            processors=PICKY,
            journal="enabled: true, dlq: {max_entries: 4, overflow_policy: reject}",
        )
        with caplog.at_level(logging.ERROR):
            progress = run_to_the_end(pipeline)

        assert set_aside(pipeline) == [(tx, 0) for tx in (1, 2, 3, 4)]
        assert progress.dlq.rejected == 16
        assert "the dead-letter queue is full; events lost: " in caplog.text
        assert len(events(pipeline)) == 40

    def test_the_pipeline_is_blocked_until_somebody_makes_room(self, picky):
        pipeline = begun(
            processors=PICKY,
            journal="enabled: true, dlq: {max_entries: 5, overflow_policy: block}",
            batch="max_bytes: 500, ",
        )
        running, seen = RunningLane(pipeline), []
        wait_until(lambda: pipeline.status()[0] == "blocked")
        reason = pipeline.control.progress().reason
        assert reason.startswith("dead-letter queue: ")
        assert f"deltaforge dlq list {pipeline.name}" in reason
        assert pipeline.checkpoints().load()["out"]["tx"] < 20

        def at_the_end():
            seen.extend(set_aside(pipeline))
            queue(pipeline).purge()
            return pipeline.checkpoints().load()["out"] == {"tx": 20}

        wait_until(at_the_end)
        seen += set_aside(pipeline)
        wait_until(lambda: pipeline.status()[0] == "running")
        pipeline.want("stopped")
        assert running.end().why == "stopped"
        assert sorted(set(seen)) == [(tx, 0) for tx in range(1, 21)]

    def test_a_blocked_pipeline_stops_when_asked_and_loses_nothing(self, picky):
        pipeline = begun(
            processors=PICKY,
            journal="enabled: true, dlq: {max_entries: 5, overflow_policy: block}",
            batch="max_bytes: 500, ",
        )
        running = RunningLane(pipeline)
        wait_until(lambda: pipeline.status()[0] == "blocked")
        pipeline.want("stopped")
        assert running.end().why == "stopped"
        at = pipeline.checkpoints().load()["out"]["tx"]
        assert set_aside(pipeline) == [(tx, 0) for tx in range(1, at + 1)]


def test_a_snapshot_waits_for_room_visibly_and_goes_on_with_it(monkeypatch):
    plant(monkeypatch, picky=refusing(lambda text: orjson.loads(text)["id"] % 2 == 0))
    pipeline = InProcess(
        snapshot="initial",
        processors=PICKY,
        journal="enabled: true, dlq: {max_entries: 5, overflow_policy: block}",
    )
    assignment = DriverArguments(pipeline.name, pipeline.location, 1, tuning=pipeline.tuning)
    driver = threading.Thread(target=drive_stream, args=(assignment, LocalRunner()), daemon=True)
    driver.start()
    seen = []
    wait_until(lambda: pipeline.status()[0] == "blocked")
    assert "dead-letter queue: " in pipeline.control.progress().reason

    def streams():
        seen.extend(set_aside(pipeline))
        queue(pipeline).purge()
        return pipeline.status()[0] == "running"

    wait_until(streams)
    pipeline.want("stopped")
    driver.join(PATIENCE_S)
    copied = {event["after"]["id"] for event in events(pipeline)}
    assert copied == {*range(1, 31, 2)} & copied != set()
    assert len(set(seen)) == len(seen) == pipeline.control.progress().events - len(copied)


def test_what_is_too_old_is_forgotten():
    pipeline = begun(
        journal="enabled: true, dlq: {max_age_secs: 3600}",
        transactions=1,
        tuning=Tuning(first_expiry_s=0.0),
    )
    store = pipeline.store
    state = store._state
    for age_s in (7200, 3700, 10):
        seq = store.push(names.JOURNAL, f"{pipeline.name}:dlq", b"{}")
        entries = state.queues[names.JOURNAL, f"{pipeline.name}:dlq"]
        at = next(i for i, entry in enumerate(entries) if entry.seq == seq)
        entries[at] = type(entries[at])(seq, "", b"{}", int((time.time() - age_s) * 1000))
    progress = run_to_the_end(pipeline, 1)

    assert queue(pipeline).count() == 1
    assert progress.dlq.expired == 2


def test_counters_go_on_in_the_next_lane(picky):
    pipeline = begun(processors=PICKY, journal="enabled: true")
    run_to_the_end(pipeline)
    running = RunningLane(pipeline)
    wait_until(lambda: pipeline.control.progress().epoch > 1)
    pipeline.want("stopped")
    running.end()

    (told,) = pipeline.control.progress().dlq.model_dump()["events"]
    assert told["count"] == 20
