"""What a sink's position is worth to a pipeline by the state store and the source that it names."""

import sqlite3
from contextlib import closing

import pytest

from airflow_provider_deltaforge.control import pipelines, sinks
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.sinks.position_contract import SinkPosition
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Put
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.foreign_positions import ForeignPositions
from tests.engine.exact_memory import change, exact_pipeline, held
from tests.engine.test_sink_positions import TRANSACTIONS, Running, finish
from tests.waiting import wait_until


@pytest.fixture
def begin(monkeypatch, tmp_path):
    """Make pipelines of one name, each with a store in a file of its own."""
    opened = []

    def make(file, **settings):
        name = tmp_path.name
        dsn = f"sqlite:///{tmp_path / file}"
        made = exact_pipeline(
            monkeypatch, name=name, dsn=dsn, transactions=TRANSACTIONS, **settings
        )
        opened.append(made.store)
        return made

    yield make
    for store in opened:
        store.close()


def copy_store(path, copy):
    with closing(sqlite3.connect(path)) as store, closing(sqlite3.connect(copy)) as target:
        store.backup(target)


def begin_at_zero(pipeline):
    pipeline.begin_at(**dict.fromkeys(pipeline.sinks, 0))
    return pipeline


def refused(pipeline, *stores):
    """Run a lane that ends by itself; every store is named, and nothing was given."""
    former = list(held(pipeline).ids)
    outcome = Running(pipeline).end()
    assert (outcome.why, outcome.error_class) == ("failed", "fatal")
    for store in (pipeline.store, *stores):
        assert f"{store.identity:x}" in outcome.reason
    assert f"`deltaforge sinks adopt {pipeline.name} out`" in outcome.reason
    assert held(pipeline).ids == former
    return outcome.reason


def adopt(pipeline, sink="out"):
    return sinks.adopt(pipeline.store, pipeline.name, sink, "me")


def test_a_new_store_goes_on_at_the_position_of_a_lost_one_when_that_is_adopted(begin):
    lost = begin_at_zero(begin("lost.db"))
    finish(lost)

    pipeline = begin("new.db")
    refused(pipeline, lost.store)
    assert pipeline.checkpoints().load() == {}
    assert adopt(pipeline).store == f"{lost.store.identity:x}"
    finish(pipeline)
    assert ForeignPositions(pipeline.store, pipeline.name).load() == {}
    finish(pipeline)


@pytest.mark.parametrize("in_headers", [False, True], ids=["atomic", "in headers"])
def test_a_position_inside_a_transaction_is_adopted_to_the_event(begin, in_headers):
    settings = {"batch": "respect_source_tx: false, ", "source": "chunk_transactions: 7, "}
    lost = begin_at_zero(begin("lost.db", **settings))
    held(lost).in_headers = in_headers
    held(lost).fail_after = [None] * 4 + [0] * 1000
    change(lost, "max_events: 30", "max_events: 4")
    running = Running(lost)
    wait_until(lambda: len(held(lost).ids) == 16)
    running.stop()
    held(lost).fail_after = []
    assert held(lost).cursor.event_id is not None

    pipeline = begin("new.db", **settings)
    held(pipeline).fail_after = [0] * 1000
    change(pipeline, "max_events: 30", "max_events: 1")
    refused(pipeline, lost.store)
    adopt(pipeline)
    running = Running(pipeline)  # Killed before it wrote anything of its own.
    wait_until(lambda: pipeline.checkpoints().load() and len(held(pipeline).fail_after) < 1000)
    running.stop()
    held(pipeline).fail_after = []
    change(pipeline, "max_events: 1", "max_events: 5")
    finish(pipeline)


def test_a_checkpoint_is_not_moved_to_the_position_of_another_store(begin):
    other, pipeline = begin("other.db"), begin_at_zero(begin("own.db"))
    change(other, f"transactions: {TRANSACTIONS}", "transactions: 20")
    begin_at_zero(other)
    running = Running(other)
    wait_until(lambda: other.checkpoints().load() == {"out": {"tx": 20}})
    running.stop()
    held(other).values.clear()  # Whatever they were, they are none of ours.

    refused(pipeline, other.store)
    refused(pipeline, other.store)
    assert pipeline.checkpoints().load() == {"out": {"tx": 0}}
    adopt(pipeline)
    finish(pipeline)


def test_it_is_adopted_from_the_store_that_was_found_and_no_other(begin):
    lost = begin_at_zero(begin("lost.db"))
    finish(lost)
    pipeline, third = begin("new.db"), begin("third.db")
    refused(pipeline, lost.store)
    adopt(pipeline)
    at = held(pipeline).cursor
    held(pipeline).cursors.append(
        SinkPosition(at.position, at.event_id, f"{third.store.identity:x}", at.source)
    )

    refused(pipeline, third.store)


def test_a_store_that_was_moved_goes_on(begin, tmp_path):
    former = begin_at_zero(begin("former.db", source="rate: 100, started_ms: 1, "))
    running = Running(former)
    wait_until(lambda: held(former).ids)
    running.stop()
    copy_store(tmp_path / "former.db", tmp_path / "moved.db")

    finish(begin("moved.db"))


def test_an_older_store_that_was_restored_goes_on_where_the_sink_stands(begin, tmp_path):
    pipeline = begin_at_zero(begin("state.db"))
    held(pipeline).fail_after = [None, None] + [0] * 1000
    running = Running(pipeline)
    wait_until(lambda: held(pipeline).ids)
    running.stop()
    copy_store(tmp_path / "state.db", tmp_path / "backup.db")
    held(pipeline).fail_after = []
    finish(begin("state.db"))

    finish(begin("backup.db"))


def test_checkpoints_that_were_brought_to_another_store_go_on(begin):
    former = begin_at_zero(begin("former.db"))
    finish(former)
    pipeline = begin("new.db")
    stored = former.store.items(names.CHECKPOINTS, f"{former.name}/")
    pipeline.store.transact([Put(names.CHECKPOINTS, key, text) for key, text in stored])

    finish(pipeline)


def test_reset_begins_anew_whatever_another_store_left(begin):
    lost = begin_at_zero(begin("lost.db"))
    finish(lost)
    pipeline = begin("new.db")
    refused(pipeline, lost.store)
    pipeline.want("stopped")
    pipelines.reset_checkpoint(pipeline.store, pipeline.name, confirm=pipeline.name)
    pipeline.want("running")

    for _ in range(2):
        running = Running(pipeline)
        wait_until(lambda: pipeline.checkpoints().load().get("out") == {"tx": TRANSACTIONS})
        assert running.stop().why == "stopped"
    with pytest.raises(SpecError, match="nothing to adopt"):
        adopt(pipeline)


def test_a_position_of_another_source_is_no_place_in_this_one(begin):
    """Two databases one after the other, under one name and in one store."""
    pipeline = begin_at_zero(begin("state.db"))
    finish(pipeline)
    change(
        pipeline,
        f"id: {pipeline.name}-source, transactions: {TRANSACTIONS}",
        "id: later, transactions: 7",
    )

    checkpoints = Checkpoints(pipeline.store, pipeline.name, "later")
    for _ in range(2):
        running = Running(pipeline)
        wait_until(lambda: checkpoints.load() == {"out": {"tx": 7}})
        assert running.stop().why == "stopped"


def test_a_position_of_another_source_is_none_when_it_is_adopted(begin):
    """The stream begins as a new one does."""
    lost = begin_at_zero(begin("lost.db"))
    finish(lost)
    pipeline = begin("new.db")
    change(
        pipeline,
        f"id: {pipeline.name}-source, transactions: {TRANSACTIONS}",
        "id: later, transactions: 7",
    )
    assert "of another source" in refused(pipeline, lost.store)
    adopt(pipeline)

    checkpoints = Checkpoints(pipeline.store, pipeline.name, "later")
    running = Running(pipeline)
    wait_until(lambda: checkpoints.load() == {"out": {"tx": 7}})
    assert running.stop().why == "stopped"


def test_a_position_without_a_store_counts_as_ours(begin):
    pipeline = begin_at_zero(begin("state.db"))
    finish(pipeline)
    at = held(pipeline).cursor
    held(pipeline).cursors.append(SinkPosition(at.position, at.event_id))

    finish(pipeline)
