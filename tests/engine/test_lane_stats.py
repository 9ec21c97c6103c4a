"""What a lane tells of itself: latency begins at the source's commit, counters go on."""

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.engine.base import lane_stats as board_module
from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.engine.base.processor_stats import (
    BatchStats,
    SinkCounts,
)
from airflow_provider_deltaforge.engine.base.sink_stats import SinkStats
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.storage.records.stats import LATENCY_BUCKETS_S


class Clock:
    """Stands in for the module ``time``, and stands still."""

    def __init__(self):
        self.now_s = 1_700_000_000.0

    def time(self):
        return self.now_s


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(board_module, "time", made)
    return made


def facts(ages_s):
    now_ms = board_module.time.time() * 1000
    rows = [
        {"op": "c", "db": "shop", "table": "orders", "ts_ms": int(now_ms - age * 1000)}
        for age in ages_s
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=CHANGE_SCHEMA)
    return BatchStats.of(batch, 100, read_ms=now_ms - 1000)


def test_latency_is_counted_from_the_commit_and_not_from_the_receipt():
    stats = LaneStats()
    stats.delivered(facts([20.0, 20.0, 0.0]), {"kafka": SinkCounts(1, 10)})

    latency = stats.report().latency
    counts = dict(zip([*LATENCY_BUCKETS_S, None], latency.counts, strict=True))
    assert counts[30.0] == 2
    assert sum(counts.values()) == 3
    assert latency.sum_s == 40.0


def test_batches_are_counted_before_anybody_looks():
    stats = LaneStats({"kafka": SinkStats()})
    for _ in range(3):
        stats.delivered(facts([2.0, 1.0]), {"kafka": SinkCounts(2, 10)})

    report = stats.report()
    assert (report.batches, report.events, report.bytes) == (3, 6, 300)
    assert sum(report.batch_events.counts) == 3
    kafka = report.sinks["kafka"]
    assert (kafka.events, kafka.bytes, kafka.batches) == (6, 30, 3)
    assert sum(stats.measured.counts().tables["shop.orders"].delivered.counts) == 6


def test_batches_that_nobody_asks_for_are_counted_all_the_same():
    stats = LaneStats({"kafka": SinkStats()})
    for _ in range(3):
        stats.delivered(facts([1.0] * 2000), {"kafka": SinkCounts(2000, 10)})

    assert stats.counted.events == 6000


def test_rows_are_durable_once_a_checkpoint_covers_them():
    stats = LaneStats({"kafka": SinkStats()})

    def durable():
        return stats.report().tables["shop.orders"].durable

    stats.delivered(facts([2.0, 1.0]), {"kafka": SinkCounts(2, 10)})
    assert durable() == 0
    stats.checkpointed({"tx": 2}, ["kafka"])
    assert durable() == 2
    stats.delivered(facts([1.0]), {"kafka": SinkCounts(1, 10)})
    stats.checkpointed({"tx": 2}, [])  # Where a lane begins; nothing is stored.
    assert durable() == 2

    successor = LaneStats({"kafka": SinkStats()})
    successor.resume(stats.report())
    assert successor.report().tables["shop.orders"].durable == 2


def test_lag_is_the_age_of_the_newest_event():
    stats = LaneStats()
    stats.delivered(facts([90.0, 20.0]), {"kafka": SinkCounts(1, 10)})

    assert stats.lag_ms() == 20_000


def test_lag_grows_while_a_sink_is_away(clock):
    stats = LaneStats()
    stats.delivered(facts([0.0]), {"kafka": SinkCounts(1, 10)})
    stats.report_sink_error("kafka", RuntimeError("away"))
    clock.now_s += 7

    assert stats.lag_ms() == 7000


def test_snapshot_rows_count_for_every_sink():
    stats = LaneStats()
    stats.copied("shop.orders", 7, {"kafka": SinkCounts(7, 700), "file": SinkCounts(7, 70)})

    assert stats.report().tables["shop.orders"].events == {"r": 7}
    assert {name: (sink.events, sink.bytes) for name, sink in stats.report().sinks.items()} == {
        "kafka": (7, 700),
        "file": (7, 70),
    }
