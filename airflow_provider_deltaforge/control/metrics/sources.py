"""Metrics of sources."""

from collections.abc import Callable, Iterator

from airflow_provider_deltaforge.control.metrics.metric import (
    MetricRow,
    Observed,
    Sample,
    gauge,
    seconds,
)
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.storage.records.measurements import LogRetention, MeasuredCounts
from airflow_provider_deltaforge.storage.records.stats import ArchiveProgress

_SOURCE = ("source",)


def _of_source(
    value: Callable[[Observed], float | None],
) -> Callable[[Observed], Iterator[Sample]]:
    def samples(observed: Observed) -> Iterator[Sample]:
        yield (observed.status.source_id,), value(observed)

    return samples


def _counted(value: Callable[[MeasuredCounts], int]) -> Callable[[Observed], Iterator[Sample]]:
    return _of_source(
        lambda observed: value(observed.counts) if observed.measured is not None else None
    )


def _retained(
    value: Callable[[LogRetention], float | None],
) -> Callable[[Observed], Iterator[Sample]]:
    def retained(observed: Observed) -> float | None:
        retention = observed.gauges.retention
        return value(retention) if retention is not None else None

    return _of_source(retained)


def _archived(
    value: Callable[[ArchiveProgress], float | None],
) -> Callable[[Observed], Iterator[Sample]]:
    def archived(observed: Observed) -> float | None:
        archive = observed.status.archive
        return value(archive) if archive is not None else None

    return _of_source(archived)


def _events(observed: Observed) -> Iterator[Sample]:
    for table, counts in observed.tables.items():
        for op, count in counts.events.items():
            yield (observed.status.source_id, table, op), count


def _snapshot_rows(observed: Observed) -> Iterator[Sample]:
    for table, counts in observed.tables.items():
        yield (table,), counts.events.get("r")


def _errors(observed: Observed) -> Iterator[Sample]:
    if observed.measured is not None:
        for kind, count in (
            {RetryableError.error_class: 0} | observed.counts.source_errors
        ).items():
            yield (observed.status.source_id, kind), count


def _table_lags(observed: Observed) -> Iterator[Sample]:
    for table, lag_ms in observed.gauges.table_lag_ms.items():
        yield (table,), seconds(lag_ms)


def _latencies(observed: Observed) -> Iterator[Sample]:
    for table, latency in observed.counts.tables.items():
        yield (table,), latency.read


ROWS: tuple[MetricRow, ...] = (
    MetricRow(
        "source_events",
        "counter",
        "Change events delivered, by table and operation; op r is the snapshot.",
        ("source", "table", "op"),
        _events,
    ),
    MetricRow(
        "source_bytes",
        "counter",
        "Bytes of log that were read and decoded, also of tables that are not captured.",
        _SOURCE,
        _counted(lambda counts: counts.source_bytes),
    ),
    MetricRow(
        "source_reconnects",
        "counter",
        "Times that the source answered again.",
        _SOURCE,
        _of_source(lambda observed: observed.status.source_reconnects),
    ),
    MetricRow(
        "source_errors",
        "counter",
        "Reads that failed, by error class; retryable ones were tried again.",
        ("source", "kind"),
        _errors,
    ),
    gauge(
        "source_lag_seconds",
        "Age of the last event delivered, at its delivery; it grows while the pipeline is blocked.",
        lambda observed: seconds(observed.status.lag_ms),
    ),
    MetricRow(
        "source_table_lag_seconds",
        "gauge",
        "Age of a table's last event, at its delivery.",
        ("table",),
        _table_lags,
    ),
    MetricRow(
        "source_latency_seconds",
        "histogram",
        "From the commit in the source until the event was read and decoded.",
        ("table",),
        _latencies,
    ),
    MetricRow(
        "source_idle_seconds",
        "gauge",
        "Since the last change of a captured table was read.",
        _SOURCE,
        _of_source(lambda observed: observed.gauges.idle_s),
    ),
    MetricRow(
        "source_schema_cache_hits",
        "counter",
        "Tables of log segments whose schema was known.",
        _SOURCE,
        _counted(lambda counts: counts.schema_cache_hits),
    ),
    MetricRow(
        "source_schema_cache_misses",
        "counter",
        "Tables of log segments whose schema was another one, or new.",
        _SOURCE,
        _counted(lambda counts: counts.schema_cache_misses),
    ),
    MetricRow(
        "source_log_kept_bytes",
        "gauge",
        "Log that PostgreSQL keeps back for the pipeline's replication slot.",
        _SOURCE,
        _retained(lambda retention: retention.kept_bytes),
    ),
    MetricRow(
        "source_log_behind_bytes",
        "gauge",
        "Log from the pipeline's position to the end.",
        _SOURCE,
        _retained(lambda retention: retention.behind_bytes),
    ),
    MetricRow(
        "source_retention_left_bytes",
        "gauge",
        "MySQL: older log that the server drops before what the pipeline needs. PostgreSQL: what "
        "may still be written, where max_slot_wal_keep_size limits it.",
        _SOURCE,
        _retained(lambda retention: retention.left_bytes),
    ),
    MetricRow(
        "source_retention_left_seconds",
        "gauge",
        "MySQL: until the server may drop what the pipeline needs, at the earliest.",
        _SOURCE,
        _retained(lambda retention: retention.left_s),
    ),
    MetricRow(
        "archive_rows",
        "counter",
        "Changes that were written to the archive of the log (spec.archive).",
        _SOURCE,
        _archived(lambda archive: archive.rows),
    ),
    MetricRow(
        "archive_bytes",
        "counter",
        "Bytes of the archive's files that were written.",
        _SOURCE,
        _archived(lambda archive: archive.bytes),
    ),
    MetricRow(
        "archive_holes",
        "counter",
        "Stretches of the log that the archive lacks, because the source had dropped them.",
        _SOURCE,
        _archived(lambda archive: archive.holes),
    ),
    MetricRow(
        "archive_lag_seconds",
        "gauge",
        "Age of the oldest change that waits to be archived; none where nothing waits.",
        _SOURCE,
        _archived(lambda archive: seconds(archive.lag_ms)),
    ),
    MetricRow(
        "archive_written_timestamp_seconds",
        "gauge",
        "When the archive was written to last.",
        _SOURCE,
        _archived(lambda archive: seconds(archive.written_ms)),
    ),
    MetricRow(
        "archive_failing",
        "gauge",
        "1 while the archive cannot be written.",
        _SOURCE,
        _archived(lambda archive: float(archive.reason is not None)),
    ),
    MetricRow("snapshot_rows", "counter", "Rows copied by snapshots.", ("table",), _snapshot_rows),
)
