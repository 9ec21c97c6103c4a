"""What a repair deletes: rows that it is to find, and that are nowhere."""

import json

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.engine.snapshot.repair import key_in, with_deletes
from airflow_provider_deltaforge.engine.snapshot.snapshot_run import SnapshotRun
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.storage.records.requests import SnapshotRequest
from tests.engine.in_process import InProcess
from tests.engine.test_copy_window import rows

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
