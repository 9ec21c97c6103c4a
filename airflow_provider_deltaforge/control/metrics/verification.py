"""Metrics of the last verification."""

from collections.abc import Iterator

from airflow_provider_deltaforge.control.metrics.metric import (
    MetricRow,
    Observed,
    Sample,
    gauge,
    seconds,
)


def _rows(observed: Observed) -> Iterator[Sample]:
    found = observed.verified
    yield from (((sink,), count) for sink, count in (found.rows if found else {}).items())


def _differences(observed: Observed) -> Iterator[Sample]:
    found = observed.verified
    for sink, kinds in (found.differences if found else {}).items():
        yield from (((sink, kind), count) for kind, count in kinds.items())


ROWS: tuple[MetricRow, ...] = (
    gauge(
        "verify_last_timestamp_seconds",
        "When the last verification came to a result, in seconds since the epoch.",
        lambda observed: seconds(observed.verified.finished_at_ms) if observed.verified else None,
    ),
    MetricRow(
        "verify_rows",
        "gauge",
        "Rows of the source that the last verification compared.",
        ("sink",),
        _rows,
    ),
    MetricRow(
        "verify_differences",
        "gauge",
        "Rows that it found missing, extra, different or inconclusive.",
        ("sink", "kind"),
        _differences,
    ),
)
