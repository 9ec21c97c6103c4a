"""Metrics of data drift."""

from collections.abc import Iterator

from airflow_provider_deltaforge.control.metrics.metric import MetricRow, Observed, Sample, gauge
from airflow_provider_deltaforge.storage.records.measurements import OTHER_TABLES, TABLES_MAX


def _events(observed: Observed) -> Iterator[Sample]:
    """Yield the counts of the first tables by name, and of all others together."""
    others: dict[str, int] = {}
    for number, (table, counts) in enumerate(sorted(observed.status.data_drift.tables.items())):
        for drift_type, count in counts.items():
            if number < TABLES_MAX:
                yield (table, drift_type), count
            else:
                others[drift_type] = others.get(drift_type, 0) + count
    for drift_type, count in others.items():
        yield (OTHER_TABLES, drift_type), count
    for name, sensed in observed.counts.sensing.items():
        if ":" in name and sensed.drifted:  # Of a JSON column; rows are held to the catalog.
            yield (name, "json_structure_change"), sensed.drifted


ROWS: tuple[MetricRow, ...] = (
    # It only rises; as a counter it would bear another name than in the documents.
    gauge(
        "schema_drift_detected",
        "Batches with events that differ from what the catalog says of their tables.",
        lambda observed: observed.status.data_drift.batches or None,
    ),
    MetricRow(
        "schema_drift_events",
        "counter",
        "Values that differ so, by drift type.",
        ("table", "drift_type"),
        _events,
    ),
)
