"""Metrics: their names, and that what a lane counts arrives in them through the state store."""

import json
import threading
from collections import Counter

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from airflow_provider_deltaforge.control import pipelines, starting
from airflow_provider_deltaforge.control.metrics import Observed, exposition, families, observe
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.engine.base.measurements import LaneMeasurements, watch_retention
from airflow_provider_deltaforge.engine.base.processor_stats import ProcessorStats
from airflow_provider_deltaforge.engine.base.sink_stats import SinkStats
from airflow_provider_deltaforge.errors import PositionLostError, RetryableError
from airflow_provider_deltaforge.storage.memory import MemoryStore
from airflow_provider_deltaforge.storage.records.control import Control, Progress, heartbeat
from airflow_provider_deltaforge.storage.records.measurements import (
    OTHER_TABLES,
    TABLES_MAX,
    LogRetention,
    MeasuredCounts,
    Measurements,
    SensingCounts,
    measurements,
    put,
)
from airflow_provider_deltaforge.storage.records.stats import (
    DataDriftCounts,
    DeadLetterCounts,
    DeadLetterSeries,
    ProcessorCounts,
    SinkProgress,
    Stats,
    TableCounts,
)
from airflow_provider_deltaforge.telemetry.client_counts import ClientCounts
from tests.engine.driving import Driving
from tests.engine.in_process import InProcess
from tests.engine.running import run_to_the_end
from tests.waiting import wait_until


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
        "archive",
    }
    assert shown.as_dict()["tables"] == {"shop.orders": {"events": {"u": 7}, "durable": 0}}


def series_of(*observed):
    return {
        (sample.name.removeprefix("deltaforge_"), *sample.labels.values()): sample.value
        for family in families(observed)
        for sample in family.samples
    }


def test_series_name_the_pipeline_its_tenant_and_its_source(shown):
    series = series_of(Observed(shown))
    who = ("orders", "acme")
    assert series[("pipeline_info", *who)] == 1
    assert series[("source_reconnects_total", *who, "shop")] == shown.source_reconnects
    assert series[("source_events_total", *who, "shop", "shop.orders", "u")] == 7
    assert series[("batch_events_bucket", *who, "5")] == 0
    assert series[("batch_events_bucket", *who, "10")] == 1
    assert series[("batch_events_count", *who)] == 1
    assert series["pipelines_total",] == shown.generation


def test_data_drift_is_counted_by_table_and_type(shown):
    drift = DataDriftCounts(
        batches=4,
        tables={f"shop.t{at:03}": {"type_mismatch": 2} for at in range(TABLES_MAX + 3)},
    )
    structure = {"shop.t:j": SensingCounts(drifted=5), "shop.t": SensingCounts(drifted=7)}
    measured = Measurements(generation=1, counts=MeasuredCounts(sensing=structure))
    series = series_of(Observed(shown.model_copy(update={"data_drift": drift}), measured))
    assert series["schema_drift_detected", "orders", "acme"] == 4
    name = ("schema_drift_events_total", "orders", "acme")
    assert series[(*name, "shop.t000", "type_mismatch")] == 2
    assert series[(*name, OTHER_TABLES, "type_mismatch")] == 6
    assert series[(*name, "shop.t:j", "json_structure_change")] == 5
    assert (*name, "shop.t", "json_structure_change") not in series
    assert not any("drift" in name for name, *_ in series_of(Observed(shown)))


def test_what_nobody_has_measured_is_not_shown(shown):
    names = {name for name, *_ in series_of(Observed(shown))}
    for name in ("source_bytes_total", "panics_total", "sink_errors_total", "source_idle_seconds"):
        assert name not in names


def measured_lane():
    """Return the measurements of a lane in which everything happened once, and its status."""
    lane = LaneMeasurements()
    now_ms = 1_700_000_000_000
    commit_ms = np.array([now_ms - 400, now_ms - 300, now_ms - 20_000])
    tables = ["shop.orders", "shop.items"]
    lane.delivered(tables, np.array([0, 0, 1]), commit_ms, now_ms - 100.0, float(now_ms))
    lane.decoded(4096, 0.002, 3, has_events=True)
    lane.schemas_missed(1)
    lane.stage("commit", "timer", 0.004)
    lane.source_failed(PositionLostError("gone"))
    lane.ended_by(ValueError("nobody foresaw it"))
    lane.sink_failed("out", RetryableError("away"))
    lane.sink_failed("out", RetryableError("away"))
    lane.sink_reconnected("out")
    lane.sink_timed_out("out")
    client = ClientCounts({"txn_commits": 2, "produce_retries": 3}, {"queue_messages": 5})
    lane.sink_ended("out", 0.03, client)
    lane.sink_begins("out", 7, 700)
    lane.encodes_by(lambda: {"out": {"encoded:ddl": 6, "registered": 1}})
    lane.reads_from(lambda: {"segments": 2, "batches": 1, "bytes": 99})
    lane.retains(LogRetention(kept_bytes=1, behind_bytes=2, left_bytes=3, left_s=4.5))
    return lane


def test_what_a_lane_measures_arrives_with_its_labels(shown):
    lane = measured_lane()
    measured = Measurements(
        generation=1, version="9", required=["out"], counts=lane.counts(), gauges=lane.gauges()
    )
    store = MemoryStore()
    store.transact([put("orders", measured)])
    series = series_of(*observe(store, [shown]))
    who = ("orders", "acme")

    assert series[("e2e_latency_seconds_bucket", *who, "shop.orders", "0.25")] == 0
    assert series[("e2e_latency_seconds_bucket", *who, "shop.orders", "0.5")] == 2
    assert series[("e2e_latency_seconds_sum", *who, "shop.orders")] == pytest.approx(0.7)
    assert series[("e2e_latency_seconds_bucket", *who, "shop.items", "30.0")] == 1
    assert series[("source_latency_seconds_sum", *who, "shop.orders")] == pytest.approx(0.5)
    assert series[("source_table_lag_seconds", *who, "shop.orders")] == 0.3
    assert series[("source_table_lag_seconds", *who, "shop.items")] == 20
    assert series[("stage_latency_seconds_count", *who, "commit", "timer")] == 1
    assert series[("source_bytes_total", *who, "shop")] == 4096
    assert series[("source_schema_cache_hits_total", *who, "shop")] == 2
    assert series[("source_schema_cache_misses_total", *who, "shop")] == 1
    assert series[("source_errors_total", *who, "shop", "position_lost")] == 1
    assert series[("source_errors_total", *who, "shop", "retryable")] == 0
    assert series[("source_idle_seconds", *who, "shop")] >= 0
    assert series[("panics_total", *who)] == 1
    assert series[("sink_errors_total", *who, "out", "retryable")] == 2
    assert series[("sink_reconnects_total", *who, "out")] == 1
    assert series[("coordinator_sink_timeout_total", *who, "out")] == 1
    assert series[("sink_latency_seconds_sum", *who, "out")] == 0.03
    assert series[("sink_checkpoint_status", *who, "out", "true")] == 1
    assert series[("sink_txn_commits_total", *who, "out")] == 2
    assert series[("kafka_produce_retries_total", *who, "out")] == 3
    assert series[("kafka_producer_queue_messages", *who, "out")] == 5
    assert series[("sink_buffer_messages", *who, "out")] == 7
    assert series[("sink_buffer_bytes", *who, "out")] == 700
    assert series[("avro_encode_total", *who, "out", "ddl")] == 6
    assert series[("avro_schema_registrations_total", *who, "out")] == 1
    assert series[("pipeline_channel_depth", *who, "segments")] == 2
    assert series[("pipeline_channel_bytes", *who)] == 99
    kept = ("log_kept_bytes", "log_behind_bytes", "retention_left_bytes", "retention_left_seconds")
    assert [series[(f"source_{name}", *who, "shop")] for name in kept] == [1, 2, 3, 4.5]
    assert series[("driver_resident_memory_bytes", *who, "lane")] > 1_000_000
    assert series[("driver_open_fds", *who, "lane")] > 0

    dead = shown.model_copy(update={"status": "lost"})
    series = series_of(*observe(store, [dead]))
    assert ("driver_open_fds", *who, "lane") not in series
    assert ("source_idle_seconds", *who, "shop") not in series
    assert series[("source_bytes_total", *who, "shop")] == 4096


def test_a_new_lane_goes_on_with_every_measurement():
    lane = measured_lane()
    again = LaneMeasurements()
    again.resume(MeasuredCounts.model_validate_json(lane.counts().model_dump_json()), ["out"])
    assert again.counts() == lane.counts()
    lane.sink_timed_out("out")
    again.add({"sinks": {"out": {"timeouts": 1}}})
    assert again.counts() == lane.counts()
    without = LaneMeasurements()
    without.resume(lane.counts(), [])
    assert without.counts().sinks == {}


def test_what_a_source_keeps_is_known_as_soon_as_there_is_a_position():
    """Not after a whole interval more, which was an hour's blindness for a long one."""
    lane, ending = LaneMeasurements(), threading.Event()
    answers = iter([None, None])
    watch_retention(lane, lambda: next(answers, LogRetention(kept_bytes=7)), ending, 3600.0)
    try:
        wait_until(lambda: lane.gauges().retention == LogRetention(kept_bytes=7))
    finally:
        ending.set()


def test_what_tasks_count_beside_each_other_adds_up():
    whole = LaneMeasurements()
    encoded = Counter()
    for _ in range(3):
        task = LaneMeasurements()
        task.encodes_by(lambda: {"out": encoded.copy()})
        for _ in range(2):
            task.sink_ended("out", 0.2, ClientCounts({"txn_commits": 1}))
            encoded["encoded:ddl"] += 5
            whole.add(json.loads(json.dumps(task.take())))
        encoded.clear()
    sink = whole.counts().sinks["out"]
    assert sum(sink.latency.counts) == 6
    assert (sink.counts, sink.encoding) == ({"txn_commits": 6}, {"encoded:ddl": 30})


def test_tables_behind_the_first_ones_are_counted_together(shown):
    lane = LaneMeasurements()
    names = [f"shop.t{number}" for number in range(TABLES_MAX + 20)]
    for tables in (names, names[::-1]):
        count = len(tables)
        lane.delivered(tables, np.arange(count), np.zeros(count, np.int64), 0.0, 1000.0)
    counts = lane.counts()
    assert list(counts.tables) == [*names[:TABLES_MAX], OTHER_TABLES]
    found = {sum(counts.tables[name].delivered.counts) for name in names[:TABLES_MAX]}
    assert found == {2}
    assert sum(counts.tables[OTHER_TABLES].delivered.counts) == 40
    again = LaneMeasurements()
    again.resume(counts, [])
    assert again.counts().tables == counts.tables

    tables = {name: TableCounts(events={"c": 1, "u": 2}) for name in names}
    series = series_of(Observed(shown.model_copy(update={"tables": tables})))
    events = {key: value for key, value in series.items() if key[0] == "source_events_total"}
    assert events["source_events_total", "orders", "acme", "shop", OTHER_TABLES, "u"] == 40
    assert len(events) == 2 * (TABLES_MAX + 1)
    assert sum(events.values()) == 3 * len(names)


def test_pauses_resumes_and_restarts_outlive_generations():
    pipeline = InProcess()
    for _ in range(2):
        pipelines.pause(pipeline.store, pipeline.name)
        pipelines.pause(pipeline.store, pipeline.name)  # Asked again, it is the same pause.
        pipelines.resume(pipeline.store, pipeline.name)
    starting.count_restart(pipeline.store, pipeline.name, 1, None)
    pipeline.want("running", 2)
    pipeline.control.update(lambda old: old.model_copy(update={"restarts": []}))
    series = series_of(Observed(status(pipeline.store, pipeline.name)))
    who = (pipeline.name, "tests")
    assert series[("pipeline_pauses_total", *who)] == series[("pipeline_resumes_total", *who)] == 2
    assert series[("pipeline_restarts_total", *who)] == 1
    assert series["pipelines_total",] == 3


def test_a_lane_that_runs_measures_itself():
    pipeline = InProcess()
    pipeline.begin_at(out=0)
    progress = run_to_the_end(pipeline)
    measured = measurements(pipeline.store, pipeline.name)
    (table,) = measured.counts.tables
    assert progress.tables[table].events == {"u": 60}
    assert sum(measured.counts.tables[table].delivered.counts) == 60
    assert sum(measured.counts.tables[table].read.counts) == 60
    assert {*measured.counts.stages} == {"decode", "process", "deliver", "commit"}
    assert sum(measured.counts.sinks["out"].latency.counts) == progress.sinks["out"].batches
    assert measured.counts.source_bytes > 0
    assert measured.required == ["out"]
    assert measured.gauges.processes["lane"].rss_bytes > 0


def test_the_text_of_a_scrape_says_what_the_families_say(shown):
    lane = measured_lane()
    tables = ['shop."quoted"', "shop.back\\slash", "shop.new\nline", "shop.ünï"]
    now = np.full(4, 1_700_000_000_000)
    lane.delivered(tables, np.arange(4), now, now[0] - 1.0, now[0] + 1.0)
    measured = Measurements(generation=1, counts=lane.counts(), gauges=lane.gauges())
    observed = [Observed(shown, measured), Observed(shown.model_copy(update={"name": 'a"\\b'}))]

    def samples(found):
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in found
            for sample in family.samples
        }

    read = [*text_string_to_metric_families(exposition(observed).decode())]
    assert samples(read) == samples(families(observed))
    expected = {family.name: (family.type, family.documentation) for family in families(observed)}
    assert {family.name: (family.type, family.documentation) for family in read} == expected


@pytest.mark.parametrize(("generation", "counted"), [(1, 120), (2, 60)])
def test_drivers_of_one_generation_count_on_and_another_begins_anew(generation, counted):
    pipeline = InProcess()
    pipeline.begin_at(out=0)
    for number, transactions in ((1, 20), (generation, 40)):
        document = pipeline.document.replace("transactions: 20", f"transactions: {transactions}")
        pipelines.apply(pipeline.store, document)
        pipeline.want("running", number)
        driving = Driving(pipeline, generation=number)
        end = {"tx": transactions}
        wait_until(lambda end=end: pipeline.checkpoints().load()["out"] == end)
        pipeline.want("stopped", number)
        assert driving.end().why == "stopped"
    counts = measurements(pipeline.store, pipeline.name).counts
    (table,) = counts.tables.values()
    assert sum(table.delivered.counts) == pipeline.control.progress().events == counted
    assert sum(counts.sinks["out"].latency.counts) == pipeline.control.progress().batches
