"""Processors under a lane and under a snapshot: what they drop, make, refuse and fail at."""

import threading

import orjson
import pytest

from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment
from airflow_provider_deltaforge.engine.base.tuning import Tuning
from airflow_provider_deltaforge.engine.driver.driver import DriverArguments, drive_stream
from airflow_provider_deltaforge.engine.driver.local import LocalRunner
from airflow_provider_deltaforge.engine.lane.lane import Lane
from airflow_provider_deltaforge.engine.snapshot.chunk_copy import copy_chunks
from airflow_provider_deltaforge.errors import EventError, RetryableError
from airflow_provider_deltaforge.processors.contract import Processed
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from tests.engine.in_process import DRIVER, InProcess
from tests.engine.planted import CLOSED, doubling, keeping, plant, refusing
from tests.engine.running import RunningLane, begun, events, places, run_to_the_end
from tests.waiting import PATIENCE_S, wait_until

CHUNK = TableChunk("script.rows:1", "script", None, "rows", {"low": 1, "high": 10})


def row_of(text):
    return orjson.loads(text)["row"]


def test_an_emptied_batch_moves_the_position_and_counts_as_read(monkeypatch):
    plant(monkeypatch, nothing=keeping(lambda _: False))
    pipeline = begun(processors="{type: planted, id: nothing}")
    # A sink that is away need not know of what it is not given.
    pipeline.log().fail_next(10_000, RetryableError("away"))
    progress = run_to_the_end(pipeline)

    assert events(pipeline) == []
    assert progress.events == 60
    assert progress.tables["script.rows"].events == {"u": 60}
    assert progress.sinks["out"].events == 0
    assert progress.processors["nothing"].counts == {"dropped": 60}
    pipeline.log().clear()


def test_fan_out_keeps_the_order_of_each_key(monkeypatch):
    plant(monkeypatch, twice=doubling)
    pipeline = begun(processors="{type: planted, id: twice}")
    progress = run_to_the_end(pipeline)

    source = pipeline.context().pipeline.spec.source
    expected = [(tx, row) for tx, row, _ in source.events(1, 20) for _ in range(2)]
    assert places(pipeline) == expected
    assert [event.get("synthetic") for event in events(pipeline)] == [None, "twice"] * 60
    assert len({event["event_id"] for event in events(pipeline)}) == 120
    ends = [event.get("tx_end", False) for event in events(pipeline)]
    assert ends == [False] * 0 + ([False] * 5 + [True]) * 20
    assert progress.sinks["out"].events == 120


def test_a_failing_processor_leaves_nothing_half_delivered_and_the_rest_comes_once(monkeypatch):
    broken = threading.Event()
    broken.set()

    def work(rows):
        if broken.is_set() and any(b'"tx":7,' in text for text in rows["after"].to_pylist()):
            raise EventError("no such field")
        return Processed(rows)

    plant(monkeypatch, picky=work)
    pipeline = begun(processors="{type: planted, id: picky}", batch="max_bytes: 500, ")
    outcome = RunningLane(pipeline).end()

    assert (outcome.why, outcome.error_class) == ("failed", "event")
    assert outcome.reason == "processor picky: no such field"
    at = pipeline.checkpoints().load()["out"]["tx"]
    # What came before is delivered and checkpointed, and of the batch with the fault nothing is.
    assert 0 < at < 7
    assert places(pipeline) == [(tx, row) for tx in range(1, at + 1) for row in range(3)]

    broken.clear()
    progress = run_to_the_end(pipeline)
    assert places(pipeline) == [(tx, row) for tx in range(1, 21) for row in range(3)]
    assert CLOSED == ["picky", "picky"]
    assert progress.processors["picky"].errors == 1, "counters do not fall"


def test_a_refused_event_stops_the_pipeline_and_says_what_to_do(monkeypatch):
    plant(
        monkeypatch,
        most=keeping(lambda text: row_of(text) != 0),
        picky=refusing(lambda text: b'"tx":7,"row":2' in text),
    )
    pipeline = begun(processors="{type: planted, id: most}, {type: planted, id: picky}")
    outcome = RunningLane(pipeline).end()

    assert (outcome.why, outcome.error_class) == ("failed", "event")
    assert outcome.reason.startswith("processor picky: 1 of ")
    assert "table script.rows: planted" in outcome.reason
    assert "spec.journal.enabled: true" in outcome.reason
    assert all(tx < 7 for tx, _ in places(pipeline))
    assert CLOSED == ["most", "picky"]


def test_a_processor_that_waits_blocks_the_pipeline_visibly_until_it_works(monkeypatch):
    away = threading.Event()
    away.set()

    def work(rows):
        if away.is_set():
            raise RetryableError("the key server is away")
        return Processed(rows)

    plant(monkeypatch, slow=work)
    pipeline = begun(processors="{type: planted, id: slow}")
    running = RunningLane(pipeline)
    wait_until(lambda: pipeline.status()[0] == "blocked")
    reason = pipeline.control.progress().reason
    assert reason == "processor slow: the key server is away"
    away.clear()
    wait_until(lambda: pipeline.checkpoints().load()["out"] == {"tx": 20})
    wait_until(lambda: pipeline.status()[0] == "running")
    pipeline.want("stopped")
    assert running.end().why == "stopped"


def test_a_processor_that_does_not_return_is_seen(monkeypatch):
    returns = threading.Event()

    def work(rows):
        if any(b'"tx":7,' in text for text in rows["after"].to_pylist()):
            returns.wait(PATIENCE_S)
        return Processed(rows)

    plant(monkeypatch, hangs=work)
    tuning = Tuning(beat_s=0.05, long_call_s=0.2)
    pipeline = begun(
        processors="{type: planted, id: hangs}", batch="max_bytes: 500, ", tuning=tuning
    )
    running = RunningLane(pipeline)
    wait_until(lambda: pipeline.status()[0] == "blocked")
    told = pipeline.control.progress()
    assert told.reason.startswith("processor hangs: it has worked on one batch for more than ")
    wait_until(lambda: pipeline.control.progress().lag_ms > told.lag_ms)
    returns.set()
    wait_until(lambda: pipeline.checkpoints().load()["out"] == {"tx": 20})
    wait_until(lambda: pipeline.status()[0] == "running")
    pipeline.want("stopped")
    assert running.end().why == "stopped"


def test_a_processor_that_does_not_return_copied_rows_is_seen_as_well(monkeypatch):
    returns = threading.Event()

    def work(rows):
        if "r" in rows["op"].to_pylist():
            returns.wait(PATIENCE_S)
        return Processed(rows)

    plant(monkeypatch, hangs=work)
    tuning = Tuning(beat_s=0.05, long_call_s=0.2)
    pipeline = begun(processors="{type: planted, id: hangs}", tuning=tuning)
    state = pipeline.request_copy()
    running = RunningLane(pipeline)
    wait_until(lambda: pipeline.status()[0] == "blocked")
    assert pipeline.control.progress().reason == (
        "the copy beside the stream: rows of script.rows are not rendered yet, the log waits"
    )
    returns.set()
    wait_until(lambda: state().settled)
    wait_until(lambda: pipeline.status()[0] == "running")
    pipeline.want("stopped")
    assert running.end().why == "stopped"


def test_a_lane_asked_to_end_while_a_processor_waits_ends_as_asked(monkeypatch):
    def work(_):
        raise RetryableError("away")

    plant(monkeypatch, slow=work)
    pipeline = begun(processors="{type: planted, id: slow}")
    running = RunningLane(pipeline)
    wait_until(lambda: pipeline.status()[0] == "blocked")
    pipeline.want("paused")
    assert running.end().why == "paused"
    assert CLOSED == ["slow"]


def test_a_processor_that_does_not_open_ends_the_lane_with_its_class(monkeypatch):
    plant(monkeypatch, one=doubling)
    pipeline = begun(processors="{type: planted, id: one}, {type: planted, id: two}")
    outcome = Lane(pipeline.context(), 60.0).run()
    assert (outcome.why, outcome.error_class) == ("failed", "fatal")
    assert "processor two" in outcome.reason
    assert CLOSED == ["one"]


def test_copied_rows_go_the_same_way(monkeypatch):
    plant(monkeypatch, some=keeping(lambda text: orjson.loads(text)["id"] <= 5), twice=doubling)
    pipeline = InProcess(
        snapshot="initial",
        processors="{type: planted, id: some}, {type: planted, id: twice}",
    )
    pipeline.control.take_epoch(DRIVER)
    (told,) = copy_chunks(
        DriverAssignment(pipeline.document, pipeline.location, DRIVER, 1), "r1", [CHUNK]
    )

    assert (told.outcome, told.rows, told.taken["out"].events) == (None, 10, 10)
    assert [event["after"]["id"] for event in events(pipeline)] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert told.processors["some"]["counts"] == {"dropped": 5}
    assert told.processors["twice"]["events_out"] == 10
    assert CLOSED == ["some", "twice"]


def test_a_refused_copied_row_stops_the_snapshot(monkeypatch):
    plant(monkeypatch, picky=refusing(lambda text: orjson.loads(text)["id"] == 4))
    pipeline = InProcess(snapshot="initial", processors="{type: planted, id: picky}")
    pipeline.control.take_epoch(DRIVER)
    (told,) = copy_chunks(
        DriverAssignment(pipeline.document, pipeline.location, DRIVER, 1), "r1", [CHUNK]
    )

    assert told.outcome.error_class == "event"
    assert "processor picky: 1 of 10 events cannot be processed" in told.outcome.reason
    assert told.processors["picky"]["errors"] == 1
    assert (events(pipeline), CLOSED) == ([], ["picky"])


def test_counters_go_on_from_the_snapshot_to_the_stream(monkeypatch):
    plant(monkeypatch, twice=doubling)
    pipeline = InProcess(snapshot="initial", processors="{type: planted, id: twice}")
    outcome = []
    driver = threading.Thread(
        target=lambda: outcome.append(
            drive_stream(
                DriverArguments(pipeline.name, pipeline.location, 1, tuning=pipeline.tuning),
                LocalRunner(),
            )
        ),
        daemon=True,
    )
    driver.start()
    wait_until(lambda: pipeline.status()[0] == "running")
    pipeline.want("stopped")
    driver.join(PATIENCE_S)

    told = pipeline.control.progress().processors["twice"].model_dump()
    copied = len(events(pipeline)) // 2
    assert (told["events_in"], told["events_out"]) == (copied, 2 * copied)
    assert outcome[0].why == "stopped"
    assert CLOSED.count("twice") >= 2


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("exclude_synthetic: true", {None}),
        ("synthetic_only: true", {"twice", "thrice"}),
        ("producers: [thrice]", {"thrice"}),
    ],
)
def test_a_sink_takes_the_events_its_filter_wants(monkeypatch, wanted, expected):
    plant(monkeypatch, twice=doubling, thrice=doubling)
    pipeline = begun(
        processors="{type: planted, id: twice}, {type: planted, id: thrice}",
        sink=f"filter: {{{wanted}}}",
    )
    progress = run_to_the_end(pipeline)
    assert {event.get("synthetic") for event in events(pipeline)} == expected
    assert progress.sinks["out"].events == len(events(pipeline)) > 0


def test_with_a_filter_and_processors_the_refused_event_is_the_one_that_is_named(monkeypatch):
    """Its row in the messages is neither that of the batch rendered nor that of the source's."""
    plant(monkeypatch, most=keeping(lambda text: row_of(text) != 0), twice=doubling)
    pipeline = begun(
        processors="{type: planted, id: most}, {type: planted, id: twice}",
        sink="filter: {synthetic_only: true}",
        journal="enabled: true",
    )
    pipeline.log().refuses = lambda value: b'"tx":7,"row":1' in value
    run_to_the_end(pipeline)

    (letter,) = DeadLetterRecords(pipeline.store, pipeline.name).read()
    assert (letter.event["after"]["tx"], letter.event["after"]["row"]) == (7, 1)
    assert letter.event["synthetic"] == "twice"
    assert letter.event_id == letter.event["event_id"]
    assert letter.event_id not in {event["event_id"] for event in events(pipeline)}
    assert len(events(pipeline)) == 39
