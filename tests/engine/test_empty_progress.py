"""The position of transactions that held nothing, beside one that is not over."""

import time
from types import SimpleNamespace

from airflow_provider_deltaforge.engine.base.tuning import TUNING
from airflow_provider_deltaforge.engine.lane.commits import Commits, StoredWithCheckpoint
from airflow_provider_deltaforge.engine.lane.lane import Lane
from airflow_provider_deltaforge.engine.read.batcher import SourceBatch
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from tests.engine.planted import plant, refusing
from tests.engine.running import begun


class Quiet:
    """Sinks without trouble, and a log that hears what is stored."""

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


def test_what_an_open_transaction_refuses_waits_for_its_end(monkeypatch):
    """Stored with an earlier position it would be there twice after a kill."""
    plant(monkeypatch, picky=refusing(lambda _: True))
    pipeline = begun(processors="{type: planted, id: picky}", journal="enabled: true")
    context = pipeline.context()
    source = context.pipeline.spec.source
    reader = source.open({"tx": 0}, lambda: False)
    rows = reader.decode(reader.read(1.0)).rows
    queue = DeadLetterRecords(pipeline.store, pipeline.name)
    lane, quiet = Lane(context, 60.0), Quiet()
    lane._rendering.open()
    ahead = lane._rendering.ahead(lambda _: True)
    quiet.checkpoints = pipeline.checkpoints()
    shared = SimpleNamespace(context=context, stats=lane._stats, retry=lambda call: call())
    parts = StoredWithCheckpoint(
        lane._dead_letters, lane._source_identity, lane._tables, lane._data_drift
    )
    commits = Commits(shared, quiet, quiet, lane._skip_list, parts, lane._store)

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
