"""Metrics: their names, and that what a lane counts arrives in them through the state store."""

import pytest

from airflow_provider_deltaforge.control.metrics import families
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats, SinkStats
from airflow_provider_deltaforge.engine.base.processor_stats import ProcessorStats
from airflow_provider_deltaforge.storage.memory import MemoryStore
from airflow_provider_deltaforge.storage.records.control import Control, Progress, heartbeat
from airflow_provider_deltaforge.storage.records.stats import (
    DeadLetterCounts,
    DeadLetterSeries,
    ProcessorCounts,
    SinkProgress,
    Stats,
)

NAMES = {
    *("pipeline_status", "source_lag_seconds", "heartbeat_age_seconds", "pipeline_restarts"),
    *("build_info", "pipeline_info", "checkpoints", "last_checkpoint_ts", "source_reconnects"),
    *("tables_stopped", "bytes", "source_events", "snapshot_rows"),
    *("batch_events", "batch_bytes", "e2e_latency_seconds"),
    *("sink_events", "sink_bytes", "sink_batch", "sink_retries", "sink_errors"),
    "sink_last_checkpoint_ts",
    *("sink_checkpoint_status", "sink_lag_seconds", "sink_standing"),
    *("processor_events_in", "processor_events_out", "processor_errors", "processor_counts"),
    *("processor_latency_seconds", "filter_dropped", "outbox_dropped", "outbox_transformed"),
    *("dlq_entries", "dlq_saturation_ratio", "dlq_events", "dlq_evicted", "dlq_rejected"),
    *("dlq_expired", "dlq_replayed", "dlq_write_failures"),
}


def _numbers(kind):
    """Return another number for every counter of a record."""
    counters = [name for name, field in kind.model_fields.items() if field.annotation is int]
    return {name: 100 + number for number, name in enumerate(counters)}


@pytest.fixture
def shown():
    """The status of a pipeline in whose lane every counter has another number."""
    stats = LaneStats({"out": SinkStats()}, processors=ProcessorStats(["few"]))
    stats.counted = Stats(**_numbers(Stats))
    stats.sinks["out"].counted = SinkProgress(**_numbers(SinkProgress))
    stats.counted.batch_events.note(7)
    stats.counted.batch_bytes.note(2**40)
    stats.by_table["shop.orders", "u"] = 7
    stats.processors.add({"few": ProcessorCounts(**_numbers(ProcessorCounts))})
    series = DeadLetterSeries(sink="out", processor="", error_kind="routing", count=9)
    stats.dead_letters.add(DeadLetterCounts(events=[series], **_numbers(DeadLetterCounts)))
    report = stats.report()
    report.dlq.max_entries = 1000

    store = MemoryStore()
    control = Control(store, "orders")
    control.apply("metadata: {}", "h", "shop", "acme")
    control.update(lambda old: old.model_copy(update={"generation": 1, "desired": "running"}))
    fence = control.take_epoch("driver")
    now = {"status": "running", "since_ms": 1, "epoch": 1, "generation": 1, **heartbeat(None)}
    store.transact([control.put_progress(Progress(**report.fields(), **now))], fence)
    return status(store, "orders")


def test_the_metrics_have_the_names_that_are_documented(shown):
    assert {family.name.removeprefix("deltaforge_") for family in families([shown])} == NAMES


def test_every_number_of_a_lane_arrives_in_its_status(shown):
    assert {name: getattr(shown, name) for name in _numbers(Stats)} == _numbers(Stats)
    for kind, found in (
        (SinkProgress, shown.sinks["out"]),
        (ProcessorCounts, shown.processors["few"]),
        (DeadLetterCounts, shown.dlq),
    ):
        assert {name: getattr(found, name) for name in _numbers(kind)} == _numbers(kind)
    assert shown.tables["shop.orders"].events == {"u": 7}
    assert shown.dlq.events[0].count == 9
    assert (shown.batch_events.counts[:4], shown.batch_events.sum) == ([0, 0, 1, 0], 7)
    assert (shown.batch_bytes.counts[-2:], shown.batch_bytes.sum) == ([0, 1], 2**40)


def test_a_new_lane_goes_on_with_every_number(shown):
    again = LaneStats({"out": SinkStats()}, processors=ProcessorStats(["few"]))
    again.resume(shown)
    report = again.report()

    assert {name: getattr(report, name) for name in _numbers(Stats)} == _numbers(Stats)
    assert report.sinks["out"].counted() == shown.sinks["out"].counted()
    assert (report.processors, report.tables) == (shown.processors, shown.tables)
    assert report.dlq.events == shown.dlq.events
    again.counted.batch_events.note(8)
    assert again.counted.batch_events.sum == 15
    assert (shown.batch_events.sum, again.counted.batch_bytes) == (7, shown.batch_bytes)


def test_what_a_status_shows_over_http_has_the_fields_it_always_had(shown):
    assert {*shown.as_dict()} == {
        *("name", "tenant", "source_id"),
        *("status", "desired", "generation", "since_ms", "reason", "error_class"),
        *("heartbeat_age_s", "lag_ms", "position", "events", "bytes", "restarts", "sinks"),
        *("tables", "handle", "stopped_tables", "processors", "dlq", "has_run"),
    }
    assert shown.as_dict()["tables"] == {"shop.orders": {"events": {"u": 7}}}


def test_series_name_the_pipeline_its_tenant_and_its_source(shown):
    series = {
        (sample.name.removeprefix("deltaforge_"), *sample.labels.values()): sample.value
        for family in families([shown])
        for sample in family.samples
    }
    assert series["pipeline_info", "orders", "acme"] == 1
    assert series["source_reconnects_total", "orders", "shop"] == shown.source_reconnects
    assert series["batch_events_bucket", "orders", "5"] == 0
    assert series["batch_events_bucket", "orders", "10"] == 1
    assert series["batch_events_count", "orders"] == 1
