"""Which rows of a chunk join the log, and as what."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.engine.snapshot.copy_window import WatchedLog
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.sources.contract import TableChunk
from tests.engine.test_snapshot_seam import NAME, SOURCE, batch, change

CHUNK = TableChunk("db.t:0", "db", None, "t")


@pytest.fixture
def log():
    return new_log()


def new_log():
    return WatchedLog(SOURCE, {"tx": 10}, lambda batch: batch)


def rows(*images, key=True, version=None):
    """Return rows of the chunk as a view shows them; an image is its id and its ``v``."""
    events = []
    for number, v in images:
        key_text = json.dumps({"id": number}, separators=(",", ":")).encode() if key else None
        event = change("c", 0, {"id": number}) | {"op": "r", "key": key_text}
        text = json.dumps({"id": number, "v": v}, separators=(",", ":")).encode()
        events.append(event | {"after": text, "before": None, "schema_version": version})
    return pa.RecordBatch.from_pylist(events, schema=CHANGE_SCHEMA)


def joins(log, cut, chunk_rows, *changes, **more):
    """Return which rows join of a chunk whose view was opened at ``cut``; None: none, read again.

    All changes come between the opening of the window and the place where the chunk joins.
    """
    window = log.open("run", CHUNK)
    log.admit(batch(*changes[:1], end=changes[0]["tx"] if changes else 10))
    assert log.view(window, {"tx": cut, **more})
    log.read(window)
    log.admit(batch(*changes[1:], end=200))
    assert window in log.joining() or window.is_void
    found = window.as_of_now(chunk_rows)
    return None if found is None else [json.loads(text) for text in found["after"].to_pylist()]


def test_a_row_joins_as_the_log_has_left_it(log):
    changes = [
        change("u", 11, {"id": 1}),  # In the view.
        change("u", 21, {"id": 2}),
        change("u", 22, {"id": 2}),
        change("d", 23, {"id": 3}),
        change("d", 24, {"id": 4}),
        change("c", 25, {"id": 4}),
        change("c", 26, {"id": 9}),  # The log has shown it; no row of the chunk.
    ]

    found = joins(log, 20, rows((1, 11), (2, 5), (3, 6), (4, 7), (5, 8)), *changes)

    assert found == [
        {"id": 1, "v": 11},
        {"id": 2, "v": 22},
        {"id": 4, "v": 25},
        {"id": 5, "v": 8},
    ]


def test_a_row_whose_key_changed_joins_under_neither_or_its_last_key(log):
    changes = [
        change("u", 21, {"id": 7}, former={"id": 1}),
        change("u", 22, {"id": 8}, former={"id": 2}),
        change("u", 23, {"id": 2}, former={"id": 8}),
    ]

    assert joins(log, 20, rows((1, 5), (2, 6)), *changes) == [{"id": 2, "v": 23}]


def test_of_rows_without_a_key_as_many_are_left_out_as_are_gone(log):
    gone = change("d", 21, {"id": 1}) | {"key": None, "before": b'{"id":1,"v":5}'}

    found = joins(log, 20, rows((1, 5), (1, 5), (2, 5), key=False), gone)

    assert found == [{"id": 1, "v": 5}, {"id": 2, "v": 5}]


def test_rows_without_a_key_are_read_again_where_the_view_may_lack_them_already(log):
    gone = change("d", 21, {"id": 1}) | {"key": None, "before": b'{"id":1,"v":5}'}
    copied = rows((1, 5), (2, 5), key=False)

    assert joins(log, 20, copied, gone, inexact=True) is None
    assert joins(new_log(), 120, copied, gone, inexact=True) == [
        {"id": 1, "v": 5},
        {"id": 2, "v": 5},
    ]


def test_a_change_that_leaves_out_a_value_has_only_its_own_row_read_again(log):
    partial = change("u", 21, {"id": 1}) | {"unchanged": b'["big"]'}

    assert joins(log, 20, rows((1, 5)), partial) is None
    assert joins(new_log(), 120, rows((1, 5)), partial) == [{"id": 1, "v": 5}]
    assert joins(new_log(), 20, rows((2, 5)), partial) == [{"id": 2, "v": 5}]


@pytest.mark.parametrize(
    ("statement", "is_void"),
    [
        pytest.param(change("t", 21, None), True, id="truncated"),
        pytest.param(change("ddl", 21, None, ddl={"tables": [NAME]}), True, id="altered"),
        pytest.param(change("ddl", 21, None, ddl={}), True, id="altered, nobody knows what"),
        pytest.param(
            change("ddl", 21, None, table="other", ddl={"tables": ["db.other"]}),
            False,
            id="another",
        ),
        pytest.param(change("t", 21, None, table="other"), False, id="another truncated"),
        pytest.param(change("t", 19, None), False, id="before the view"),
    ],
)
def test_a_chunk_of_a_table_that_became_another_one_is_read_again(log, statement, is_void):
    found = joins(log, 20, rows((1, 5)), statement)

    assert found == (None if is_void else [{"id": 1, "v": 5}])


def test_rows_of_an_older_schema_than_the_log_has_are_read_again(log):
    newer = change("u", 21, {"id": 9}) | {"schema_version": "b"}

    assert joins(log, 20, rows((1, 5), version="a"), newer) is None
    assert joins(new_log(), 20, rows((1, 5), version="b"), newer) == [{"id": 1, "v": 5}]


def test_a_view_that_lacks_what_was_delivered_before_is_of_no_use(log):
    log.admit(batch(change("c", 15, {"id": 1}), end=15))
    window = log.open("run", CHUNK)

    assert not log.view(window, {"tx": 14})
    assert log.view(window, {"tx": 15})


def test_a_chunk_joins_between_two_transactions_behind_its_view(log):
    window = log.open("run", CHUNK)
    log.view(window, {"tx": 20})
    log.admit(batch(end=30))
    assert log.joining() == ()  # Its rows are not there yet.
    log.read(window)
    log.admit(replace(batch(end=30), open_tx=True))
    assert log.joining() == ()
    assert log.open("run", CHUNK) is None
    log.admit(batch(end=30))
    assert log.joining() == (window,)
    assert log.joining() == ()
    assert window.closed.is_set()


def test_a_chunk_waits_until_the_log_has_passed_its_view(log):
    window = log.open("run", CHUNK)
    log.view(window, {"tx": 20})
    log.read(window)
    log.admit(batch(end=19))
    assert log.joining() == ()
    log.admit(batch(end=20))
    assert log.joining() == (window,)


def test_the_log_goes_on_between_two_chunks(log):
    windows = [log.open("run", CHUNK) for _ in range(2)]
    for window in windows:
        log.view(window, {"tx": 10})
        log.read(window)

    assert [log.joining(), log.joining()] == [(windows[0],), (windows[1],)]
