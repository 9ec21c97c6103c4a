"""When checkpoints move: for batches that share one, and over what holds nothing for sinks."""

import time
from types import SimpleNamespace

from airflow_provider_deltaforge.engine.base import data_drift
from airflow_provider_deltaforge.engine.base.tuning import TUNING
from airflow_provider_deltaforge.engine.lane.commits import Commits, StoredWithCheckpoint
from airflow_provider_deltaforge.engine.lane.lane import Lane
from airflow_provider_deltaforge.engine.read.batcher import SourceBatch
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sensing.data_drift.findings import TableFindings
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from tests.engine.planted import plant, refusing
from tests.engine.running import begun


class Quiet:
    """Sinks without trouble, and a log that hears what is stored."""

    searching = ()

    def __init__(self):
        self.acknowledged: list[Position] = []

    def deliver(self, batch):
        return {name: [] for name in batch.rendered.messages}

    def passed(self, batch):
        pass

    def put(self, name, position):
        return self.checkpoints.put(name, position)

    def takes_rows(self):
        return True

    def passed_alone(self, position):
        return []

    def acknowledge(self, reader, position):
        self.acknowledged.append(position)


def opened(pipeline, context):
    """Return a lane with its rendering open, quiet sinks, and what moves their checkpoints."""
    lane, quiet = Lane(context, 60.0), Quiet()
    lane._rendering.open()
    quiet.checkpoints = pipeline.checkpoints()
    shared = SimpleNamespace(context=context, stats=lane._stats, retry=lambda call: call())
    parts = StoredWithCheckpoint(
        lane._dead_letters, lane._source_identity, lane._tables, lane._data_drift
    )
    return lane, quiet, Commits(shared, quiet, quiet, lane._skip_list, parts, lane._store)


def rows_of(context):
    """Return the rows of the first transactions."""
    source = context.pipeline.spec.source
    reader = source.open({"tx": 0}, lambda: False)
    return reader.decode(reader.read(1.0)).rows


def test_batches_share_a_checkpoint_until_somebody_needs_it():
    pipeline = begun()
    context = pipeline.context()
    rows = rows_of(context)
    lane, quiet, commits = opened(pipeline, context)
    ahead = lane._rendering.ahead(lambda _: True)

    def deliver(number):
        batch = SourceBatch(rows.slice(3 * (number - 1), 3), {"tx": number}, 1)
        lane._deliver(lane._prepare(ahead, batch), quiet, commits)

    deliver(1)
    deliver(2)
    assert quiet.acknowledged == []
    assert 0 < commits.wait_s(1.0) <= TUNING.checkpoint_s
    commits.settle()
    assert quiet.acknowledged == [{"tx": 2}]

    deliver(3)
    time.sleep(TUNING.checkpoint_s)
    commits.tend()
    assert quiet.acknowledged == [{"tx": 2}, {"tx": 3}]

    # A batch that is being counted leaves nothing with the checkpoint in front of it.
    deliver(4)
    commits.counts()
    commits.settle()
    assert quiet.acknowledged == [{"tx": 2}, {"tx": 3}]
    lane._rendering.close()


def test_what_an_open_transaction_refuses_waits_for_its_end(monkeypatch):
    """Stored with an earlier position it would be there twice after a kill."""
    plant(monkeypatch, picky=refusing(lambda _: True))
    pipeline = begun(processors="{type: planted, id: picky}", journal="enabled: true")
    context = pipeline.context()
    rows = rows_of(context)
    queue = DeadLetterRecords(pipeline.store, pipeline.name)
    lane, quiet, commits = opened(pipeline, context)
    ahead = lane._rendering.ahead(lambda _: True)

    def deliver(batch):
        lane._deliver(lane._prepare(ahead, batch), quiet, commits)

    deliver(SourceBatch(rows.slice(0, 0), {"tx": 1}, 0))
    deliver(SourceBatch(rows.slice(0, 2), None, 1, splits_transaction=True))
    time.sleep(TUNING.idle_checkpoint_s)
    commits.tend()
    commits.settle()
    assert queue.count() == 0

    deliver(SourceBatch(rows.slice(2, 1), {"tx": 2}, 1))
    assert (queue.count(), quiet.acknowledged) == (3, [{"tx": 2}])
    lane._rendering.close()


def test_a_transaction_whose_end_holds_nothing_is_stored_where_somebody_needs_it():
    """Read again, its parts would come behind rows of a copy."""
    pipeline = begun()
    context = pipeline.context()
    rows = rows_of(context)
    lane, quiet, commits = opened(pipeline, context)
    ahead = lane._rendering.ahead(lambda _: True)

    for batch in (
        SourceBatch(rows.slice(0, 2), None, 1, splits_transaction=True),
        SourceBatch(rows.slice(0, 0), {"tx": 1}, 0),
    ):
        lane._deliver(lane._prepare(ahead, batch), quiet, commits)
    commits.settle()
    assert quiet.acknowledged == [{"tx": 1}]
    lane._rendering.close()


def test_what_waits_for_room_is_not_stored_with_the_checkpoint_in_front_of_it(monkeypatch):
    """The lane ends meanwhile: it is refused, and stored, once more by the next one."""
    plant(monkeypatch, picky=refusing(lambda text: b'"tx":2,' in text))
    pipeline = begun(
        processors="{type: planted, id: picky}",
        journal="enabled: true, dlq: {max_entries: 3, overflow_policy: block}",
    )
    context = pipeline.context()
    rows = rows_of(context)
    queue = DeadLetterRecords(pipeline.store, pipeline.name)
    lane, quiet, commits = opened(pipeline, context)
    ahead = lane._rendering.ahead(lambda _: True)

    def deliver(number):
        batch = SourceBatch(rows.slice(3 * (number - 1), 3), {"tx": number}, 1)
        lane._deliver(lane._prepare(ahead, batch), quiet, commits)

    deliver(2)
    assert (queue.count(), quiet.acknowledged) == (3, [{"tx": 2}])
    deliver(3)
    lane._heartbeat.ending.set()
    deliver(2)
    queue.purge()
    commits.settle()
    assert (queue.count(), quiet.acknowledged) == (0, [{"tx": 2}])
    lane._rendering.close()


def test_counts_that_come_late_take_nothing_of_an_open_transaction_with_them(monkeypatch):
    plant(monkeypatch, picky=refusing(lambda _: True))
    pipeline = begun(processors="{type: planted, id: picky}", journal="enabled: true")
    context = pipeline.context()
    rows = rows_of(context)
    queue = DeadLetterRecords(pipeline.store, pipeline.name)
    lane, quiet, commits = opened(pipeline, context)
    ahead = lane._rendering.ahead(lambda _: True)
    lane._data_drift.add([TableFindings("script.rows", "", 1, delivered=1)])
    lane._data_drift.checkpointed([])
    monkeypatch.setattr(data_drift, "STORE_EVERY_S", 0.0)
    assert lane._data_drift.late_writes()

    part = SourceBatch(rows.slice(0, 2), None, 1, splits_transaction=True)
    lane._deliver(lane._prepare(ahead, part), quiet, commits)
    commits.tend()
    assert queue.count() == 0
    end = SourceBatch(rows.slice(2, 1), {"tx": 1}, 1)
    lane._deliver(lane._prepare(ahead, end), quiet, commits)
    assert (queue.count(), lane._data_drift.late_writes()) == (3, [])
    lane._rendering.close()
