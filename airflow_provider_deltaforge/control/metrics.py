"""Names of the metrics, and how their values are read from the status of pipelines.

Only what a driver reported is exported: a metric that always says zero is a lie.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from airflow_provider_deltaforge import __version__
from airflow_provider_deltaforge.control.status import PipelineStatus
from airflow_provider_deltaforge.storage.records.stats import (
    DeadLetterCounts,
    Latency,
    ProcessorCounts,
    SinkProgress,
    Sizes,
)

PREFIX = "deltaforge_"

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
_STANDING = {"behind": 0.5, "catching_up": 0.5, "given_up": 0.0}

_DROPPED = "dropped"
_TRANSFORMED = "transformed"
_LACKING = "strict_missing_fields"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Gauge(Generic[T]):
    """A metric with one value of each pipeline, sink or processor; None is left out."""

    name: str
    description: str
    value: Callable[[T], float | None]
    family = GaugeMetricFamily


@dataclass(frozen=True, slots=True)
class _Counter(_Gauge[T]):
    """One that only rises; ``_total`` joins its name."""

    family = CounterMetricFamily


_PIPELINE: tuple[_Gauge[PipelineStatus], ...] = (
    _Gauge(
        "pipeline_status",
        "1 running, 0.75 blocked, 0.5 paused, 0.25 starting, 0 stopped, -1 failed or lost.",
        lambda pipeline: _STATUS_VALUES[pipeline.status],
    ),
    _Gauge(
        "source_lag_seconds",
        "Age of the last event delivered, at its delivery.",
        lambda pipeline: _seconds(pipeline.lag_ms),
    ),
    _Gauge(
        "heartbeat_age_seconds",
        "Seconds since the driver last wrote its progress.",
        lambda pipeline: pipeline.heartbeat_age_s,
    ),
    _Gauge(
        "pipeline_restarts",
        "Restarts of the present generation.",
        lambda pipeline: pipeline.restarts,
    ),
    _Gauge(
        "tables_stopped",
        "Tables whose rows are passed over until they are copied again.",
        lambda pipeline: len(pipeline.stopped_tables),
    ),
    _Counter("bytes", "Bytes delivered.", lambda pipeline: pipeline.bytes),
    _Counter("checkpoints", "Checkpoints stored.", lambda pipeline: pipeline.checkpoints),
    _Gauge(
        "last_checkpoint_ts",
        "When the checkpoint of the slowest sink was stored, in seconds since the epoch.",
        lambda pipeline: _seconds(min(_checkpoints_ms(pipeline), default=None)),
    ),
)

_SOURCE: tuple[_Gauge[PipelineStatus], ...] = (
    _Counter(
        "source_reconnects",
        "Times that the source answered again.",
        lambda pipeline: pipeline.source_reconnects,
    ),
)

_SINK: tuple[_Gauge[SinkProgress], ...] = (
    _Counter("sink_events", "Events durable.", lambda sink: sink.events),
    _Counter("sink_bytes", "Bytes durable.", lambda sink: sink.bytes),
    _Counter("sink_batch", "Batches durable.", lambda sink: sink.batches),
    _Counter("sink_retries", "Writes repeated.", lambda sink: sink.retries),
    _Counter("sink_errors", "Writes that failed.", lambda sink: sink.retries),
    _Gauge(
        "sink_last_checkpoint_ts",
        "When its checkpoint was stored, in seconds since the epoch.",
        lambda sink: _seconds(sink.checkpoint_ms),
    ),
    _Gauge(
        "sink_checkpoint_status",
        "1 while the sink takes batches, 0 while it is behind an error.",
        lambda sink: 0.0 if sink.error_class else 1.0,
    ),
    _Gauge(
        "sink_lag_seconds",
        "How long ago the oldest event was committed that a sink lacks which is behind.",
        lambda sink: _seconds(sink.lag_ms),
    ),
    _Gauge(
        "sink_standing",
        "1 with the others, 0.5 behind and caught up, 0 given up.",
        lambda sink: _STANDING.get(sink.status, 1.0),
    ),
)

_PROCESSOR: tuple[_Gauge[ProcessorCounts], ...] = (
    _Counter("processor_events_in", "Events that went in.", lambda counts: counts.events_in),
    _Counter("processor_events_out", "Events that came out.", lambda counts: counts.events_out),
    _Counter(
        "processor_errors", "Events refused, and calls that failed.", lambda counts: counts.errors
    ),
)

_DEAD_LETTERS: tuple[_Gauge[DeadLetterCounts], ...] = (
    _Gauge("dlq_entries", "Events in the dead-letter queue now.", lambda dlq: dlq.entries),
    _Gauge(
        "dlq_saturation_ratio",
        "Its entries by its limit.",
        lambda dlq: (dlq.entries or 0) / dlq.max_entries if dlq.max_entries else None,
    ),
    _Counter("dlq_evicted", "Entries that made room for others.", lambda dlq: dlq.evicted),
    _Counter("dlq_rejected", "Events lost because the queue was full.", lambda dlq: dlq.rejected),
    _Counter("dlq_expired", "Entries that were too old.", lambda dlq: dlq.expired),
    _Counter("dlq_replayed", "Entries that were sent again.", lambda dlq: dlq.replayed),
    _Counter(
        "dlq_write_failures",
        "Attempts to store entries that failed.",
        lambda dlq: dlq.write_failures,
    ),
)


def families(pipelines: Iterable[PipelineStatus]) -> Iterator[Metric]:
    """Yield every metric family, filled from the status of the pipelines."""
    shown = list(pipelines)
    sinks = [((p.name, sink_id), sink) for p in shown for sink_id, sink in p.sinks.items()]
    processors = [((p.name, name), counts) for p in shown for name, counts in p.processors.items()]
    queues = [((p.name,), p.dlq) for p in shown if p.dlq.entries is not None]
    yield _build()
    yield _infos(shown)
    yield from _filled(_PIPELINE, ["pipeline"], [((p.name,), p) for p in shown])
    yield from _filled(_SOURCE, ["pipeline", "source"], [((p.name, p.source_id), p) for p in shown])
    yield from _filled(_SINK, ["pipeline", "sink"], sinks)
    yield _source_events(shown)
    yield _snapshot_rows(shown)
    yield from _histograms(shown)
    yield from _filled(_PROCESSOR, ["pipeline", "processor"], processors)
    yield _latency(processors)
    yield from _processors_own(processors)
    yield from _filled(_DEAD_LETTERS, ["pipeline"], queues)
    yield _dead_letter_events(queues)


def _filled(
    metrics: Iterable[_Gauge[T]], labels: list[str], found: Sequence[tuple[tuple[str, ...], T]]
) -> Iterator[Metric]:
    for metric in metrics:
        family = metric.family(f"{PREFIX}{metric.name}", metric.description, labels=labels)
        for names, counted in found:
            value = metric.value(counted)
            if value is not None:
                family.add_metric([*names], value)
        yield family


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _source_events(pipelines: list[PipelineStatus]) -> Metric:
    family = CounterMetricFamily(
        f"{PREFIX}source_events",
        "Change events by table and operation; op r is the snapshot.",
        labels=["pipeline", "table", "op"],
    )
    for pipeline in pipelines:
        for table, counts in pipeline.tables.items():
            for op, count in counts.events.items():
                family.add_metric([pipeline.name, table, op], count)
    return family


def _checkpoints_ms(pipeline: PipelineStatus) -> list[int]:
    return [sink.checkpoint_ms for sink in pipeline.sinks.values() if sink.checkpoint_ms]


def _build() -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}build_info", "Always 1.", labels=["version", "python"])
    family.add_metric([__version__, platform.python_version()], 1)
    return family


def _infos(pipelines: list[PipelineStatus]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}pipeline_info", "Always 1.", labels=["pipeline", "tenant"])
    for pipeline in pipelines:
        family.add_metric([pipeline.name, pipeline.tenant], 1)
    return family


def _snapshot_rows(pipelines: list[PipelineStatus]) -> Metric:
    family = CounterMetricFamily(
        f"{PREFIX}snapshot_rows", "Rows copied by snapshots.", labels=["pipeline", "table"]
    )
    for pipeline in pipelines:
        for table, counts in pipeline.tables.items():
            if (rows := counts.events.get("r")) is not None:
                family.add_metric([pipeline.name, table], rows)
    return family


def _histograms(pipelines: list[PipelineStatus]) -> Iterator[Metric]:
    """Yield the histograms of a lane's batches."""
    latency = _histogram(
        "e2e_latency_seconds", "From the commit in the source until every sink holds the event."
    )
    events = _histogram("batch_events", "Events of a batch that every sink has taken.")
    nbytes = _histogram("batch_bytes", "Bytes of such a batch in the source's log.")
    for pipeline in pipelines:
        _add(latency, [pipeline.name], pipeline.latency)
        _add(events, [pipeline.name], pipeline.batch_events)
        _add(nbytes, [pipeline.name], pipeline.batch_bytes)
    yield from (latency, events, nbytes)


def _latency(processors: list[tuple[tuple[str, str], ProcessorCounts]]) -> Metric:
    words = "Time of one call, for one batch."
    family = _histogram("processor_latency_seconds", words, "processor")
    for names, counts in processors:
        _add(family, [*names], counts.latency)
    return family


def _histogram(name: str, description: str, *labels: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(f"{PREFIX}{name}", description, labels=["pipeline", *labels])


def _add(family: HistogramMetricFamily, names: list[str], found: Latency | Sizes) -> None:
    if isinstance(found, Latency):
        bounds, total = [*map(str, found.buckets_s)], found.sum_s
    else:
        bounds, total = [*map(str, found.buckets)], float(found.sum)
    buckets = list(zip([*bounds, "+Inf"], accumulate(found.counts), strict=True))
    family.add_metric(names, buckets, total)


def _processors_own(
    processors: list[tuple[tuple[str, str], ProcessorCounts]],
) -> Iterator[Metric]:
    """Yield what processors count themselves, by names that they choose."""
    labels = ["pipeline", "processor"]
    transformed = CounterMetricFamily(
        f"{PREFIX}outbox_transformed", "Outbox rows that became routed events.", labels=labels
    )
    reasons = CounterMetricFamily(
        f"{PREFIX}outbox_dropped", "Outbox rows left out or refused.", labels=[*labels, "reason"]
    )
    filtered = CounterMetricFamily(
        f"{PREFIX}filter_dropped", "Events that did not pass.", labels=labels
    )
    others = CounterMetricFamily(
        f"{PREFIX}processor_counts", "What a processor counts.", labels=[*labels, "what"]
    )
    for names, counts in processors:
        for what, count in counts.counts.items():
            if what == _DROPPED:
                filtered.add_metric([*names], count)
            elif what == _TRANSFORMED:
                transformed.add_metric([*names], count)
            elif what.startswith(f"{_DROPPED}:") or what == _LACKING:
                reasons.add_metric([*names, what.removeprefix(f"{_DROPPED}:")], count)
            else:
                others.add_metric([*names, what], count)
    yield from (transformed, reasons, filtered, others)


def _dead_letter_events(queues: list[tuple[tuple[str], DeadLetterCounts]]) -> Metric:
    family = CounterMetricFamily(
        f"{PREFIX}dlq_events",
        "Events set aside.",
        labels=["pipeline", "sink", "processor", "error_kind"],
    )
    for names, dlq in queues:
        for series in dlq.events:
            labels = [*names, series.sink, series.processor, series.error_kind]
            family.add_metric(labels, series.count)
    return family
