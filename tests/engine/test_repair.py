"""What a repair deletes: rows that it is to find, and that are nowhere."""

import json
from contextlib import closing, nullcontext
from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.engine.read.registrar import registry_of
from airflow_provider_deltaforge.engine.snapshot.chunk_split import ChunkSplitter, LargeChunk
from airflow_provider_deltaforge.engine.snapshot.repair import key_in, repair_chunks, with_deletes
from airflow_provider_deltaforge.engine.snapshot.snapshot_run import SnapshotRun
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.scripted import ScriptedSnapshotter, ScriptedSource
from airflow_provider_deltaforge.storage.records.requests import SnapshotRequest
from airflow_provider_deltaforge.storage.records.verifications import (
    DifferingKeys,
    Verification,
    Verifications,
)
from tests.engine.in_process import InProcess
from tests.engine.test_copy_window import rows
from tests.engine.test_passed_over_deletes import TABLE, Shrunk

CHUNK = TableChunk("c", "db", None, "t", {"keys": ['{"id":1}', '{"id":2}', '{"id":3}']})
NONE = pa.array([], pa.binary())


def test_what_is_not_there_is_deleted_under_the_same_id_each_time():
    copied, shown = rows((1, 5)), pa.array([b'{"id": 3}'])
    found = [with_deletes("run", CHUNK, copied, shown) for _ in range(2)]

    event, row = found[0].to_pylist()
    assert (event["op"], event["after"], row["op"]) == ("d", None, "r")
    assert json.loads(event["key"]) == json.loads(event["before"]) == {"id": 2}
    assert event["tx_end"]
    assert found[0].to_pylist() == found[1].to_pylist()


def test_a_chunk_of_any_other_copy_deletes_nothing():
    for chunk in (TableChunk("c", "db", None, "t"), CHUNK):
        copied = rows((1, 5), (2, 5), (3, 5))
        assert with_deletes("run", chunk, copied, NONE) is copied


def test_a_row_under_its_key_in_other_words_is_deleted_first_and_then_sent():
    """A consumer that reads keys, and does not compare their texts, ends with the row."""
    bounds = {"keys": ['{"id": 1}', '{"id": 2}']}
    chunk = TableChunk("c", "db", None, "t", bounds)

    found = with_deletes("run", chunk, rows((1, 5)), pa.array([b'{"id":2}'])).to_pylist()

    assert [(event["op"], event["key"]) for event in found] == [
        ("d", b'{"id": 1}'),
        ("r", b'{"id":1}'),
    ]


@pytest.mark.parametrize(
    ("text", "is_key"),
    [
        ('{"a":1,"b":"x"}', True),
        ('{"b":{"_base64":"AA=="},"a":1}', True),
        ('{"a":1}', False),
        ('{"a":1,"c":"x"}', False),
        ('{"a":1.5,"b":"x"}', False),
        ('{"a":1,"b":[1]}', False),
        ('"text"', False),
        ("no JSON", False),
        ("[" * 100_000, False),
    ],
)
def test_a_key_of_another_shape_would_delete_a_row_that_is_there(text, is_key):
    columns = tuple(Column(name, "int", "int") for name in "abc")
    table = TableSchema("db", None, "t", columns, ("a", "b"))
    assert key_in(table, text) == (json.loads(text) if is_key else None)


def test_a_repair_needs_a_stream_that_it_can_join_and_what_was_found():
    pipeline = InProcess()
    context = pipeline.context()
    request = SnapshotRequest(id="r", requested_at_ms=0, by="me", repairs="gone")
    with pytest.raises(SpecError, match="joins the log of a running stream"):
        SnapshotRun(context, request).prepare()
    with pytest.raises(SpecError, match="not kept any more; verify again"):
        SnapshotRun(context, request, is_live=True).prepare()


@pytest.mark.parametrize(
    ("sink", "deletes"),
    [
        ("key: '${after.id}', ", True),
        ("topic: 't${after.row}', ", False),
        ("key: '${after.row}', ", False),
    ],
)
def test_no_delete_goes_elsewhere_than_its_row_went(sink, deletes, monkeypatch, caplog):
    """Made of the key alone, it would go where the other columns are empty."""
    monkeypatch.setattr(ScriptedSource, "chunk_of_keys", lambda _self, chunk, *_: chunk)
    pipeline = Shrunk(sink=sink)
    context = pipeline.context()
    found = Verification(id="v", by="a test", started_at_ms=0)
    verifications = Verifications(context.store, pipeline.name)
    assert verifications.begin(found)
    keys = {"out": {TABLE: {"missing": ['{"id":1}'], "extra": ['{"id":39}']}}}
    verifications.finish(found, DifferingKeys(id="v", keys=keys))

    with closing(context.pipeline.spec.source.open_snapshot()) as snapshotter:
        chunks = [*repair_chunks(context, registry_of(context), snapshotter, "v")]

    copied = [with_deletes("run", chunk, rows((1, 5)), NONE) for chunk in chunks]
    assert [[event["op"] for event in some.to_pylist()] for some in copied] == [
        ["d", "r"] if deletes else ["r"]
    ]
    assert ("stay in the sinks: out sends" in caplog.text) is not deletes


class Halving(ScriptedSnapshotter):
    """Splits whatever it is asked to."""

    def is_splittable(self, _chunk):
        return True

    def split(self, chunk, _rows):
        return [replace(chunk, id=f"{chunk.id}-{part}") for part in range(2)]


@pytest.mark.parametrize(("bounds", "is_split"), [({}, True), (CHUNK.bounds, False)])
def test_a_chunk_of_keys_is_never_split(bounds, is_split):
    """Each part would delete the rows that the others have sent."""
    pipeline = InProcess()
    context = pipeline.context()
    splitter = ChunkSplitter(context, "run", Halving(context.pipeline.spec.source))
    chunk = replace(CHUNK, bounds=bounds)
    with pytest.raises(LargeChunk) if is_split else nullcontext():
        splitter.check(chunk, 1, (batch for batch in ()))
