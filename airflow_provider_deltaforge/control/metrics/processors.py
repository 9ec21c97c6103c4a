"""Metrics of processors, and of the dead-letter queue."""

from collections.abc import Callable, Iterator
from operator import attrgetter

from airflow_provider_deltaforge.control.metrics.metric import (
    MetricRow,
    Observed,
    Sample,
    Value,
)
from airflow_provider_deltaforge.storage.records.stats import DeadLetterCounts, ProcessorCounts

_PROCESSOR = ("processor",)
_DROPPED = "dropped"
_TRANSFORMED = "transformed"
_LACKING = "strict_missing_fields"


def _of_processors(
    value: Callable[[ProcessorCounts], Value],
) -> Callable[[Observed], Iterator[Sample]]:
    def samples(observed: Observed) -> Iterator[Sample]:
        for processor_id, counts in observed.status.processors.items():
            yield (processor_id,), value(counts)

    return samples


def _is_reason(what: str) -> bool:
    return what.startswith(f"{_DROPPED}:") or what == _LACKING


def _dropped(observed: Observed) -> Iterator[Sample]:
    for processor_id, counts in observed.status.processors.items():
        for what, count in counts.counts.items():
            if _is_reason(what):
                yield (processor_id, what.removeprefix(f"{_DROPPED}:")), count


def _others(observed: Observed) -> Iterator[Sample]:
    for processor_id, counts in observed.status.processors.items():
        for what, count in counts.counts.items():
            if what not in (_DROPPED, _TRANSFORMED) and not _is_reason(what):
                yield (processor_id, what), count


def _of_queue(
    value: Callable[[DeadLetterCounts], float | None],
) -> Callable[[Observed], Iterator[Sample]]:
    def samples(observed: Observed) -> Iterator[Sample]:
        if observed.status.dlq.entries is not None:
            yield (), value(observed.status.dlq)

    return samples


def _set_aside(observed: Observed) -> Iterator[Sample]:
    for series in observed.status.dlq.events:
        yield (series.sink, series.processor, series.error_kind), series.count


def _saturation(dlq: DeadLetterCounts) -> float | None:
    return (dlq.entries or 0) / dlq.max_entries if dlq.max_entries else None


def _queue_counter(name: str, meaning: str) -> MetricRow:
    """Return the row of a count that the queue keeps under this name."""
    return MetricRow(f"dlq_{name}", "counter", meaning, (), _of_queue(attrgetter(name)))


ROWS: tuple[MetricRow, ...] = (
    MetricRow(
        "processor_latency_seconds",
        "histogram",
        "Time of one call, for one batch.",
        _PROCESSOR,
        _of_processors(lambda counts: counts.latency),
    ),
    MetricRow(
        "processor_events_in",
        "counter",
        "Events that went in.",
        _PROCESSOR,
        _of_processors(lambda counts: counts.events_in),
    ),
    MetricRow(
        "processor_events_out",
        "counter",
        "Events that came out.",
        _PROCESSOR,
        _of_processors(lambda counts: counts.events_out),
    ),
    MetricRow(
        "processor_errors",
        "counter",
        "Events refused, and calls that failed.",
        _PROCESSOR,
        _of_processors(lambda counts: counts.errors),
    ),
    MetricRow(
        "outbox_transformed",
        "counter",
        "Outbox rows that became routed events.",
        _PROCESSOR,
        _of_processors(lambda counts: counts.counts.get(_TRANSFORMED)),
    ),
    MetricRow(
        "outbox_dropped",
        "counter",
        "Outbox rows left out or refused.",
        ("processor", "reason"),
        _dropped,
    ),
    MetricRow(
        "filter_dropped",
        "counter",
        "Events that did not pass.",
        _PROCESSOR,
        _of_processors(lambda counts: counts.counts.get(_DROPPED)),
    ),
    MetricRow(
        "processor_counts",
        "counter",
        "What a processor counts, by names that it chooses.",
        ("processor", "what"),
        _others,
    ),
    MetricRow(
        "dlq_entries",
        "gauge",
        "Events in the dead-letter queue now.",
        (),
        _of_queue(lambda dlq: dlq.entries),
    ),
    MetricRow(
        "dlq_saturation_ratio", "gauge", "Its entries by its limit.", (), _of_queue(_saturation)
    ),
    MetricRow(
        "dlq_events",
        "counter",
        "Events set aside.",
        ("sink", "processor", "error_kind"),
        _set_aside,
    ),
    _queue_counter("evicted", "Entries that made room for others."),
    _queue_counter("rejected", "Events lost because the queue was full."),
    _queue_counter("expired", "Entries that were too old."),
    _queue_counter("replayed", "Entries that were sent again."),
    _queue_counter("write_failures", "Attempts to store entries that failed."),
)
