"""Metric families of processors and of the dead-letter queue."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

_PREFIX = "deltaforge_"
_DROPPED = "dropped"
_TRANSFORMED = "transformed"
_LACKING = "strict_missing_fields"


class ProcessorMetrics(Protocol):
    """What the families below need of a pipeline's status."""

    @property
    def name(self) -> str:
        """Name of the pipeline."""

    @property
    def processors(self) -> Mapping[str, Any]:
        """By processor id: events_in, events_out, errors, counts, latency."""

    @property
    def dlq(self) -> Mapping[str, Any]:
        """Entries, max_entries, events by who refused them, and what the limits did."""


def processing_families(reports: Iterable[ProcessorMetrics]) -> Iterator[Metric]:
    """Yield the families, filled from the pipelines' reports."""
    reports = list(reports)
    yield from _processors(reports)
    yield from _counts(reports)
    yield from _dead_letters(reports)


def _processors(reports: list[ProcessorMetrics]) -> Iterator[Metric]:
    labels = ["pipeline", "processor"]
    latency = HistogramMetricFamily(
        f"{_PREFIX}processor_latency_seconds", "Time of one call, for one batch.", labels=labels
    )
    counters = {
        "events_in": CounterMetricFamily(
            f"{_PREFIX}processor_events_in", "Events that went in.", labels=labels
        ),
        "events_out": CounterMetricFamily(
            f"{_PREFIX}processor_events_out", "Events that came out.", labels=labels
        ),
        "errors": CounterMetricFamily(
            f"{_PREFIX}processor_errors", "Events refused, and calls that failed.", labels=labels
        ),
    }
    for report in reports:
        for processor, counts in report.processors.items():
            for key, family in counters.items():
                family.add_metric([report.name, processor], counts[key])
            times = counts["latency"]
            bounds = [*map(str, times["buckets_s"]), "+Inf"]
            buckets = list(zip(bounds, accumulate(times["counts"]), strict=True))
            latency.add_metric([report.name, processor], buckets, times["sum_s"])
    yield from (latency, *counters.values())


def _counts(reports: list[ProcessorMetrics]) -> Iterator[Metric]:
    """Yield what processors count themselves, by names that they choose."""
    labels = ["pipeline", "processor"]
    transformed = CounterMetricFamily(
        f"{_PREFIX}outbox_transformed", "Outbox rows that became routed events.", labels=labels
    )
    reasons = CounterMetricFamily(
        f"{_PREFIX}outbox_dropped", "Outbox rows left out or refused.", labels=[*labels, "reason"]
    )
    filtered = CounterMetricFamily(
        f"{_PREFIX}filter_dropped", "Events that did not pass.", labels=labels
    )
    others = CounterMetricFamily(
        f"{_PREFIX}processor_counts", "What a processor counts.", labels=[*labels, "what"]
    )
    for report in reports:
        for processor, counts in report.processors.items():
            who = [report.name, processor]
            for what, count in counts["counts"].items():
                if what == _DROPPED:
                    filtered.add_metric(who, count)
                elif what == _TRANSFORMED:
                    transformed.add_metric(who, count)
                elif what.startswith(f"{_DROPPED}:") or what == _LACKING:
                    reasons.add_metric([*who, what.removeprefix(f"{_DROPPED}:")], count)
                else:
                    others.add_metric([*who, what], count)
    yield from (transformed, reasons, filtered, others)


def _dead_letters(reports: list[ProcessorMetrics]) -> Iterator[Metric]:
    who = ["pipeline", "sink", "processor", "error_kind"]
    events = CounterMetricFamily(f"{_PREFIX}dlq_events", "Events set aside.", labels=who)
    entries = GaugeMetricFamily(
        f"{_PREFIX}dlq_entries", "Events in the dead-letter queue now.", labels=["pipeline"]
    )
    ratio = GaugeMetricFamily(
        f"{_PREFIX}dlq_saturation_ratio", "Its entries by its limit.", labels=["pipeline"]
    )
    counters = {
        key: CounterMetricFamily(f"{_PREFIX}dlq_{key}", text, labels=["pipeline"])
        for key, text in (
            ("evicted", "Entries that made room for others."),
            ("rejected", "Events lost because the queue was full."),
            ("expired", "Entries that were too old."),
            ("replayed", "Entries that were sent again."),
            ("write_failures", "Attempts to store entries that failed."),
        )
    }
    for report in reports:
        dlq = report.dlq
        if not dlq:
            continue
        entries.add_metric([report.name], dlq["entries"])
        if dlq.get("max_entries"):
            ratio.add_metric([report.name], dlq["entries"] / dlq["max_entries"])
        for series in dlq.get("events", ()):
            labels = [report.name, series["sink"], series["processor"], series["error_kind"]]
            events.add_metric(labels, series["count"])
        for key, family in counters.items():
            family.add_metric([report.name], dlq.get(key, 0))
    yield from (events, entries, ratio, *counters.values())
