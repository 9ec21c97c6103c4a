"""An entry keeps its place where a processor behind the refusing one changes table or key."""

import orjson
import pyarrow as pa
import pytest

from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.processors.contract import Processed
from tests.engine.planted import WORKS, keeping, plant, refusing
from tests.engine.running import begun, run_to_the_end
from tests.engine.test_replay import (
    HOLDS,
    by_row,
    counts,
    entries,
    here,
    history,
    refuses,
    takes_all,
)


def renaming(rows):
    """A work that gives every event another table."""
    return Processed(with_column(rows, "table", ["renamed"] * rows.num_rows))


def keying(rows):
    """A work that gives every event another key."""
    keys = [b'{"tenant":1,%b' % key[1:] for key in rows["key"].to_pylist()]
    return Processed(with_column(rows, "key", keys))


def with_column(rows, name, values):
    at = CHANGE_SCHEMA.get_field_index(name)
    column = pa.array(values, pa.binary() if name == "key" else pa.utf8())
    return rows.set_column(at, CHANGE_SCHEMA.field(at), column.cast(CHANGE_SCHEMA.field(at).type))


def each(test):
    """Run a test for what is changed, in a batch as a whole and in parts."""
    test = pytest.mark.parametrize("second", [renaming, keying])(test)
    return pytest.mark.parametrize("parallelism", [1, 4])(test)


def refused(monkeypatch, second, parallelism, journal):
    plant(
        monkeypatch,
        picky=refusing(lambda text: orjson.loads(text)["tx"] == 3),
        drops=keeping(lambda text: orjson.loads(text)["id"] != 9),
        second=second,
    )
    names = ("drops", "picky", "second")
    pipeline = begun(
        processors=", ".join(f"{{type: planted, id: {name}}}" for name in names),
        journal=journal,
        keys=9,
        policy=f"delivery: {{parallelism: {parallelism}}}",
    )
    run_to_the_end(pipeline)
    return pipeline


@each
def test_an_old_state_does_not_follow_a_newer_one(monkeypatch, second, parallelism):
    pipeline = refused(monkeypatch, second, parallelism, "enabled: true")
    monkeypatch.setitem(WORKS, "picky", keeping(lambda _: True))
    assert counts(here(pipeline)) == {"overtaken": len(entries(pipeline))}


@each
def test_held_events_follow_in_the_order_of_the_log(monkeypatch, second, parallelism):
    pipeline = refused(monkeypatch, second, parallelism, HOLDS)
    assert {one.meta.error_kind for one in entries(pipeline)} == {"processor", "held"}
    # What was refused is refused again: nothing of its rows goes in front of it.
    assert counts(here(pipeline)).keys() == {"refused", "behind"}
    monkeypatch.setitem(WORKS, "picky", keeping(lambda _: True))
    assert counts(here(pipeline)).keys() == {"sent"}
    wanted = {key: rows for key, rows in history(pipeline).items() if key != 9}
    assert by_row(pipeline) == wanted


@each
def test_what_the_sink_refuses_waits_for_it(monkeypatch, second, parallelism):
    plant(monkeypatch, picky=refusing(lambda _: False), second=second)
    pipeline = begun(
        processors="{type: planted, id: picky}, {type: planted, id: second}",
        journal="enabled: true",
        policy=f"delivery: {{parallelism: {parallelism}}}",
    )
    first, *later = history(pipeline)[1]
    monkeypatch.setitem(WORKS, "picky", refusing(lambda text: b'"tx":%d,"row":%d' % first in text))
    refuses(pipeline, *later)
    run_to_the_end(pipeline)
    takes_all(pipeline)
    assert counts(here(pipeline)) == {"refused": 1, "behind": len(later)}
    monkeypatch.setitem(WORKS, "picky", keeping(lambda _: True))
    assert counts(here(pipeline)) == {"sent": 1 + len(later)}
    assert by_row(pipeline)[1] == [first, *later]
