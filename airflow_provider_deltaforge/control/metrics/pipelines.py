"""Metrics of pipelines as a whole, and of the processes that carry them."""

from collections.abc import Callable, Iterator

from airflow_provider_deltaforge.control.metrics.metric import (
    MetricRow,
    Observed,
    Sample,
    counter,
    gauge,
    seconds,
)
from airflow_provider_deltaforge.storage.records.measurements import ProcessMeasurements

_STATUS_VALUES = {
    "running": 1.0,
    "snapshotting": 1.0,
    "blocked": 0.75,
    "paused": 0.5,
    "starting": 0.25,
    "pending": 0.0,
    "stopped": 0.0,
    "failed": -1.0,
    "lost": -1.0,
}


def _stages(observed: Observed) -> Iterator[Sample]:
    for stage, triggers in observed.counts.stages.items():
        for trigger, latency in triggers.items():
            yield (stage, trigger), latency


def _tables(observed: Observed) -> Iterator[Sample]:
    for table, latency in observed.counts.tables.items():
        yield (table,), latency.delivered


def _depths(observed: Observed) -> Iterator[Sample]:
    for channel, depth in observed.gauges.channel_depth.items():
        if channel != "bytes":
            yield (channel,), depth


def _checkpoint_ms(observed: Observed) -> int | None:
    sinks = observed.status.sinks.values()
    return min((sink.checkpoint_ms for sink in sinks if sink.checkpoint_ms), default=None)


def checkpoint_age_s(observed: Observed, checkpoint_ms: int | None) -> float | None:
    """Return the age of a checkpoint, all by the driver's clock."""
    status = observed.status
    if checkpoint_ms is None or status.heartbeat_age_s is None or not status.heartbeat_at_ms:
        return None
    return max(0.0, (status.heartbeat_at_ms - checkpoint_ms) / 1000) + status.heartbeat_age_s


def _driver(observed: Observed) -> Iterator[Sample]:
    if observed.measured is not None and observed.status.alive:
        yield (observed.measured.version, observed.status.host), 1.0


def _of_processes(
    value: Callable[[ProcessMeasurements], float | None],
) -> Callable[[Observed], Iterator[Sample]]:
    def samples(observed: Observed) -> Iterator[Sample]:
        for role, process in observed.gauges.processes.items():
            yield (role,), value(process)

    return samples


ROWS: tuple[MetricRow, ...] = (
    gauge(
        "pipeline_status",
        "1 running, 0.75 blocked, 0.5 paused, 0.25 starting, 0 stopped, -1 failed or lost.",
        lambda observed: _STATUS_VALUES[observed.status.status],
    ),
    gauge("pipeline_info", "Always 1.", lambda _: 1.0),
    gauge(
        "heartbeat_age_seconds",
        "Seconds since the driver last wrote its progress.",
        lambda observed: observed.status.heartbeat_age_s,
    ),
    counter(
        "pipeline_restarts",
        "Drivers that died and were started again by their supervisor.",
        lambda observed: observed.status.restarts_total,
    ),
    counter(
        "pipeline_pauses",
        "Times that somebody paused the pipeline.",
        lambda observed: observed.status.pauses,
    ),
    counter(
        "pipeline_resumes",
        "Times that somebody resumed it from a pause.",
        lambda observed: observed.status.resumes,
    ),
    counter(
        "panics",
        "Lanes that ended by an error nobody foresaw.",
        lambda observed: observed.counts.panics if observed.measured is not None else None,
    ),
    gauge(
        "tables_stopped",
        "Tables whose rows are passed over until they are copied again.",
        lambda observed: len(observed.status.stopped_tables),
    ),
    counter("bytes", "Bytes of log delivered.", lambda observed: observed.status.bytes),
    counter("checkpoints", "Checkpoints stored.", lambda observed: observed.status.checkpoints),
    gauge(
        "last_checkpoint_ts",
        "When the checkpoint of the slowest sink was stored, in seconds since the epoch.",
        lambda observed: seconds(_checkpoint_ms(observed)),
    ),
    gauge(
        "checkpoint_age_seconds",
        "Age of that checkpoint; it grows while the source writes nothing, too.",
        lambda observed: checkpoint_age_s(observed, _checkpoint_ms(observed)),
    ),
    counter(
        "transaction_splits",
        "Batches that end inside a transaction because it was too large.",
        lambda observed: observed.status.transaction_splits,
    ),
    MetricRow(
        "e2e_latency_seconds",
        "histogram",
        "From the commit in the source until every sink holds the event.",
        ("table",),
        _tables,
    ),
    MetricRow(
        "batch_events",
        "histogram",
        "Events of a batch that every sink has taken.",
        (),
        lambda observed: [((), observed.status.batch_events)],
    ),
    MetricRow(
        "batch_bytes",
        "histogram",
        "Bytes of such a batch in the source's log.",
        (),
        lambda observed: [((), observed.status.batch_bytes)],
    ),
    MetricRow(
        "stage_latency_seconds",
        "histogram",
        "One batch in one stage: decode (a segment of the log), process, schema_sensing, deliver, "
        "commit; by what made the batch full: events, bytes, timer, idle (sinks), end.",
        ("stage", "trigger"),
        _stages,
    ),
    MetricRow(
        "pipeline_channel_depth",
        "gauge",
        "What waits inside the driver: segments to be decoded, batches to be delivered.",
        ("channel",),
        _depths,
    ),
    gauge(
        "pipeline_channel_bytes",
        "Bytes of log in batches that are prepared and not delivered.",
        lambda observed: observed.gauges.channel_depth.get("bytes"),
    ),
    MetricRow("driver_info", "gauge", "Always 1.", ("version", "host"), _driver),
    MetricRow(
        "driver_resident_memory_bytes",
        "gauge",
        "Memory of the process that carries the lane, and of the JVM around it.",
        ("process",),
        _of_processes(lambda process: process.rss_bytes),
    ),
    MetricRow(
        "driver_cpu_seconds",
        "counter",
        "CPU time of these processes.",
        ("process",),
        _of_processes(lambda process: process.cpu_s),
    ),
    MetricRow(
        "driver_open_fds",
        "gauge",
        "Open files and sockets of these processes.",
        ("process",),
        _of_processes(lambda process: process.open_fds),
    ),
    MetricRow(
        "driver_threads",
        "gauge",
        "Threads of these processes.",
        ("process",),
        _of_processes(lambda process: process.threads),
    ),
    MetricRow(
        "driver_start_time_seconds",
        "gauge",
        "When these processes began, in seconds since the epoch.",
        ("process",),
        _of_processes(lambda process: process.started_s),
    ),
)
