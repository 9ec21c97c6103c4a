"""Names of the metrics, and the metric families made from what drivers report.

Only what a progress record holds is exported: a metric that always says zero is a lie.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from airflow_provider_deltaforge.telemetry import processing

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


class PipelineMetrics(processing.ProcessorMetrics, Protocol):
    """What the families below need of a pipeline's status."""

    @property
    def name(self) -> str:
        """Name of the pipeline."""

    @property
    def status(self) -> str:
        """One word, as people see it."""

    @property
    def lag_ms(self) -> int | None:
        """Age of the last event at its delivery, milliseconds."""

    @property
    def heartbeat_age_s(self) -> float | None:
        """Seconds since the driver last spoke."""

    @property
    def restarts(self) -> int:
        """Restarts of this generation."""

    @property
    def events(self) -> int:
        """Events delivered."""

    @property
    def bytes(self) -> int:
        """Bytes delivered."""

    @property
    def sinks(self) -> Mapping[str, Any]:
        """By sink id: status, events, bytes, retries, error_class."""

    @property
    def stopped_tables(self) -> Mapping[str, Any]:
        """Tables whose rows are passed over, by full name."""

    @property
    def tables(self) -> Mapping[str, Any]:
        """By table: ``{"events": {op: count}}``."""


def families(reports: Iterable[PipelineMetrics]) -> Iterator[Metric]:
    """Yield every metric family, filled from the pipelines' reports."""
    reports = list(reports)
    yield from _pipeline_families(reports)
    yield from _sink_families(reports)
    yield _source_events(reports)
    yield from processing.processing_families(reports)


def _pipeline_families(reports: list[PipelineMetrics]) -> Iterator[Metric]:
    status = GaugeMetricFamily(
        f"{PREFIX}pipeline_status",
        "1 running, 0.75 blocked, 0.5 paused, 0.25 starting, 0 stopped, -1 failed or lost.",
        labels=["pipeline"],
    )
    lag = GaugeMetricFamily(
        f"{PREFIX}source_lag_seconds",
        "Age of the last event delivered, at its delivery.",
        labels=["pipeline"],
    )
    heartbeat = GaugeMetricFamily(
        f"{PREFIX}heartbeat_age_seconds",
        "Seconds since the driver last wrote its progress.",
        labels=["pipeline"],
    )
    restarts = GaugeMetricFamily(
        f"{PREFIX}pipeline_restarts",
        "Restarts of the present generation.",
        labels=["pipeline"],
    )
    stopped = GaugeMetricFamily(
        f"{PREFIX}tables_stopped",
        "Tables whose rows are passed over until they are copied again.",
        labels=["pipeline"],
    )
    size = CounterMetricFamily(f"{PREFIX}bytes", "Bytes delivered.", labels=["pipeline"])
    for report in reports:
        status.add_metric([report.name], _STATUS_VALUES[report.status])
        restarts.add_metric([report.name], report.restarts)
        stopped.add_metric([report.name], len(report.stopped_tables))
        size.add_metric([report.name], report.bytes)
        if report.lag_ms is not None:
            lag.add_metric([report.name], report.lag_ms / 1000)
        if report.heartbeat_age_s is not None:
            heartbeat.add_metric([report.name], report.heartbeat_age_s)
    yield from (status, lag, heartbeat, restarts, stopped, size)


def _sink_families(reports: list[PipelineMetrics]) -> Iterator[Metric]:
    labels = ["pipeline", "sink"]
    counters = {
        "events": CounterMetricFamily(f"{PREFIX}sink_events", "Events durable.", labels=labels),
        "bytes": CounterMetricFamily(f"{PREFIX}sink_bytes", "Bytes durable.", labels=labels),
        "retries": CounterMetricFamily(f"{PREFIX}sink_retries", "Writes repeated.", labels=labels),
    }
    up = GaugeMetricFamily(
        f"{PREFIX}sink_checkpoint_status",
        "1 while the sink takes batches, 0 while it is behind an error.",
        labels=labels,
    )
    lacking = GaugeMetricFamily(
        f"{PREFIX}sink_lag_seconds",
        "How long ago the oldest event was committed that a sink lacks which is behind.",
        labels=labels,
    )
    standing = GaugeMetricFamily(
        f"{PREFIX}sink_standing",
        "1 with the others, 0.5 behind and caught up, 0 given up.",
        labels=labels,
    )
    for report in reports:
        for sink, state in report.sinks.items():
            up.add_metric([report.name, sink], 0.0 if state.get("error_class") else 1.0)
            word = state.get("status") or ""
            standing.add_metric([report.name, sink], _STANDING.get(word, 1.0))
            if state.get("lag_ms") is not None:
                lacking.add_metric([report.name, sink], state["lag_ms"] / 1000)
            for key, family in counters.items():
                family.add_metric([report.name, sink], state.get(key) or 0)
    yield from (*counters.values(), up, lacking, standing)


def _source_events(reports: list[PipelineMetrics]) -> Metric:
    family = CounterMetricFamily(
        f"{PREFIX}source_events",
        "Change events by table and operation; op r is the snapshot.",
        labels=["pipeline", "table", "op"],
    )
    for report in reports:
        for table, counts in report.tables.items():
            for op, count in (counts.get("events") or {}).items():
                family.add_metric([report.name, table, op], count)
    return family
