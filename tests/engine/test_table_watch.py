"""Arrivals become requests once, whatever dies between the steps."""

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.engine.catch_up.table_watch import TableWatch, ask_for_arrivals
from airflow_provider_deltaforge.engine.lane.lane import Lane
from airflow_provider_deltaforge.engine.read.registrar import registry_of
from airflow_provider_deltaforge.engine.snapshot.attempts import needs_the_log_to_wait
from airflow_provider_deltaforge.engine.snapshot.snapshot_run import SnapshotRun
from airflow_provider_deltaforge.errors import FencedError, TableError
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.reader_contract import AppearedTable
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.storage.records.requests import (
    SnapshotRequest,
    SnapshotResults,
    result_of,
)
from airflow_provider_deltaforge.storage.records.tables import TableRecords
from tests.engine.in_process import InProcess
from tests.schemas.registered import register

DDL = b'{"sql":"RENAME TABLE x TO a","database":"s","tables":["s.x","s.a"],"copies":["s.a"]}'


AT = {"tx": 10}


class Reader:
    """A source that reports what appeared, and can leave tables out."""

    def __init__(self, *found):
        self.found = found
        self.left_out = None

    def appeared_tables(self):
        return self.found

    def skip_tables(self, tables):
        self.left_out = tables


def statement(event_id=b"1" * 16):
    row = {"op": "ddl", "db": "s", "table": "_ddl", "ddl": DDL, "event_id": event_id}
    return pa.RecordBatch.from_pylist([row], schema=CHANGE_SCHEMA)


@pytest.fixture
def pipeline():
    return InProcess()


def test_a_stream_that_begins_anew_learns_how_tables_look_by_then(pipeline, monkeypatch):
    former, present = (TableSchema("s", None, "t", (Column(n, "int", "int"),)) for n in "ab")
    context = pipeline.context()
    registry = registry_of(context)
    register(registry, former, {"tx": 1})
    monkeypatch.setattr(ScriptedSource, "schemas_at", lambda *_: [present])
    # Renamed while nobody read: nothing of the log says so any more.
    lane = Lane(context, 60.0)
    lane._open()
    history = lane._tables.history()
    assert history.schema_at("s", None, "t", {"tx": 21}) == present
    monkeypatch.setattr(ScriptedSource, "schemas_at", lambda *_: pytest.fail("it goes on"))
    Lane(pipeline.context(), 60.0)._open()


def test_an_own_snapshot_that_begins_anew_learns_how_tables_look_by_then(monkeypatch):
    pipeline = InProcess(snapshot="initial")
    former, present = (TableSchema("s", None, "t", (Column(n, "int", "int"),)) for n in "ab")
    context = pipeline.context()
    register(registry_of(context), former, {"tx": 1})
    monkeypatch.setattr(ScriptedSource, "schemas_at", lambda *_: [present])
    SnapshotRun(context).prepare()
    assert registry_of(context).latest("s", None, "t").schema == present


def watch_of(pipeline):
    context = pipeline.context()
    return context, TableWatch(context, registry_of(context))


def wishes(pipeline):
    return [request.tables for request in pipeline.control.read().requests]


def test_an_arrival_is_stored_with_the_checkpoint_and_asked_for_behind_it(pipeline):
    context, watch = watch_of(pipeline)
    watch.begin(Reader())
    watch.watch(statement())
    writes = watch.passed(AT, Reader())
    assert wishes(pipeline) == [], "before the checkpoint nothing may be copied"
    context.store.transact(writes, context.fence)
    # Killed here, the next driver asks.
    ask_for_arrivals(context)
    assert wishes(pipeline) == [["s.a"]]
    assert TableRecords(pipeline.store, pipeline.name).arrivals() == []


def test_a_replay_asks_for_no_second_copy(pipeline):
    context, watch = watch_of(pipeline)
    for _ in range(2):
        watch.watch(statement())
        context.store.transact(watch.passed(AT, Reader()), context.fence)
        watch.stored()
    assert wishes(pipeline) == [["s.a"]]
    (request,) = pipeline.control.read().requests
    pipeline.store.transact(
        SnapshotResults(pipeline.store, pipeline.name).put(result_of(request, "done"))
    )
    pipeline.control.update(lambda old: old.model_copy(update={"requests": []}))
    watch.watch(statement())
    context.store.transact(watch.passed(AT, Reader()), context.fence)
    watch.stored()
    assert wishes(pipeline) == []
    # Another statement of the same words is another arrival.
    watch.watch(statement(b"2" * 16))
    context.store.transact(watch.passed(AT, Reader()), context.fence)
    watch.stored()
    assert wishes(pipeline) == [["s.a"]]


def test_what_a_source_reports_is_asked_for_once_a_session(pipeline):
    context, watch = watch_of(pipeline)
    reader = Reader(AppearedTable("s.new", None))
    for _ in range(2):
        context.store.transact(watch.passed(AT, reader), context.fence)
        watch.stored()
    assert wishes(pipeline) == [["s.new"]]


def test_what_the_log_says_later_is_not_copied_before(pipeline):
    context, watch = watch_of(pipeline)
    reader = Reader(AppearedTable("s.new", {"tx": 11}))
    assert watch.passed(AT, reader) == []
    # A lane that reads the same again, after a copy or a kill, asks for no second one.
    for _ in range(2):
        context.store.transact(watch.passed({"tx": 11}, reader), context.fence)
        watch.stored()
        assert wishes(pipeline) == [["s.new"]]
        (request,) = pipeline.control.read().requests
        context, watch = watch_of(pipeline)
        watch.begin(reader)
    results = SnapshotResults(pipeline.store, pipeline.name)
    pipeline.store.transact(results.put(result_of(request, "done")))
    pipeline.control.update(lambda old: old.model_copy(update={"requests": []}))
    context.store.transact(watch.passed({"tx": 11}, reader), context.fence)
    watch.stored()
    assert wishes(pipeline) == []


def test_a_stop_is_fenced(pipeline):
    _, watch = watch_of(pipeline)
    pipeline.control.take_epoch("another")
    watch._context.pipeline.spec.source.__dict__["on_undecodable"] = "stop_table"
    with pytest.raises(FencedError):
        watch.stop(TableError("no names", "s.a"), Reader())
    assert TableRecords(pipeline.store, pipeline.name).stopped() == {}


def test_a_reason_that_quotes_a_statement_shows_no_password(pipeline, caplog):
    _, watch = watch_of(pipeline)
    watch._context.pipeline.spec.source.__dict__["on_undecodable"] = "stop_table"
    said = "CREATE TABLE a (b int) ENGINE=FEDERATED CONNECTION='mysql://u:planted@h/s/a'"
    watch.stop(TableError(f"no names. The statement was: {said}", "s.a"), Reader())
    assert "planted" not in TableRecords(pipeline.store, pipeline.name).stopped()["s.a"].reason
    assert "planted" not in caplog.text


def test_a_source_that_cannot_leave_a_table_out_fails_with_the_command(pipeline):
    _, watch = watch_of(pipeline)
    with pytest.raises(TableError, match="deltaforge snapshot FILE --tables"):
        watch.stop(TableError("no names", "s.a"), object())


def test_a_stopped_table_is_shown_and_left_out(pipeline):
    _, watch = watch_of(pipeline)
    tables = TableRecords(pipeline.store, pipeline.name)
    pipeline.store.transact([tables.stop("s.a", "no names", 0)])
    reader = Reader()
    watch.begin(reader)
    assert list(reader.left_out) == ["s.a"]
    assert status(pipeline.store, pipeline.name).stopped_tables["s.a"]["reason"] == "no names"


def test_a_table_that_was_left_out_in_vain_fails_the_pipeline(pipeline):
    _, watch = watch_of(pipeline)
    watch._context.pipeline.spec.source.__dict__["on_undecodable"] = "stop_table"
    watch.begin(Reader())
    watch.stop(TableError("no names", "s.a"), Reader())
    watch.stop(TableError("no names", "s.a"), Reader())  # The answer of the store was lost.
    watch.begin(Reader())
    with pytest.raises(TableError, match="no names"):
        watch.stop(TableError("no names", "s.a"), Reader())


def test_a_pipeline_that_is_stopped_itself_is_not_called_degraded(pipeline):
    tables = TableRecords(pipeline.store, pipeline.name)
    pipeline.store.transact([tables.stop("s.a", "no names", 0)])
    assert status(pipeline.store, pipeline.name).reason == "degraded, 1 table stopped: s.a"
    pipeline.want("stopped")
    told = status(pipeline.store, pipeline.name)
    assert (told.words, list(told.stopped_tables)) == ("stopped", ["s.a"])


def test_a_copy_of_a_table_that_stops_meanwhile_begins_anew(pipeline):
    context, watch = watch_of(pipeline)
    request = SnapshotRequest(id="copy", requested_at_ms=0, by="a test")
    pipeline.control.update(lambda old: old.model_copy(update={"requests": [request]}))
    begun = SnapshotRun(context, request, is_live=True).prepare().run
    assert SnapshotRun(context, request, is_live=True).prepare().run == begun

    watch.begin(Reader())
    watch._context.pipeline.spec.source.__dict__["on_undecodable"] = "stop_table"
    watch.stop(TableError("it cannot be decoded", "script.rows"), Reader())

    assert needs_the_log_to_wait(context)
    again = SnapshotRun(context, request).prepare().run
    assert (again.id != begun.id, again.tables) == (True, begun.tables)
