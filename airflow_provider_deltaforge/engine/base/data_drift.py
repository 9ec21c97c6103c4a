"""Counts data drift, and keeps the counts in the state store beside the checkpoints they cover."""

import logging
import threading
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.sensing.data_drift.detector import (
    DriftDetector,
    DriftSettings,
    SchemaLookup,
)
from airflow_provider_deltaforge.sensing.data_drift.findings import ColumnFinding, TableFindings
from airflow_provider_deltaforge.sensing.data_drift.row_check_kernel import SAMPLES
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.spec.load import spec_hash
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.data_drift import (
    ColumnDrift,
    DataDriftRecords,
    TableDataDrift,
)
from airflow_provider_deltaforge.storage.records.record import now_ms
from airflow_provider_deltaforge.storage.records.stats import DataDriftCounts
from airflow_provider_deltaforge.telemetry.redaction import redacted

_log = logging.getLogger(__name__)

STORE_EVERY_S = 2.0
"""How much of its counts of clean events a driver may lose that is killed; drift is stored with the
first checkpoint behind it."""

COLUMNS_MAX = 200
"""Columns and ways in which they differ that are kept of one table."""


class ProcessedEvents(Protocol):
    """What processors made of a batch."""

    @property
    def rows(self) -> pa.RecordBatch:
        """Return the events."""

    @property
    def origins(self) -> Any:
        """Return the row of the source that each stands for; None: one for one."""


class DriftWatch:
    """Finds data drift, and never holds up what is delivered. Used by one thread at a time."""

    def __init__(self, detector: DriftDetector) -> None:
        self._detector: DriftDetector | None = detector

    def open(self) -> None:
        """Compile what is not compiled yet."""
        if self._detector is not None:
            self._detector.open()

    def examine(self, source: pa.RecordBatch, done: ProcessedEvents) -> list[TableFindings]:
        """Return what was found in a batch: nothing, once that has failed.

        Args:
            source: change events as the source has them.
            done: what processors made of them.
        """
        if self._detector is None:
            return []
        try:
            return self._detector.examine(source, done.rows, done.origins)
        except RetryableError:
            return []  # The store is away, which knows the tables: these are not counted.
        except Exception as error:  # noqa: BLE001 - delivery goes on without it
            self._detector = None
            frames = traceback.format_list(traceback.extract_tb(error.__traceback__))
            # What it says may quote a row.
            _log.error(
                "data drift is not looked for: %s at\n%s", type(error).__name__, "".join(frames)
            )
            return []


def drift_watch_of(pipeline: Pipeline, schemas: SchemaLookup) -> DriftWatch | None:
    """Return what finds data drift in a pipeline's events; None where it is not asked for."""
    spec = pipeline.spec
    sensing = spec.schema_sensing
    if not (sensing.enabled and sensing.tracking.detect_drift):
        return None
    settings = DriftSettings(
        sensing,
        spec.source.type_system,
        bool(spec.processors),
        lambda table, column: any(p.hides(table, column) for p in spec.processors),
    )
    return DriftWatch(DriftDetector(settings, schemas))


class DataDriftCounter:
    """Counts for one driver. Used by one thread but for ``report``.

    Args:
        context: the open job.
    """

    def __init__(self, context: TaskContext) -> None:
        self._records = DataDriftRecords(context.store, context.pipeline.name)
        self._spec_hash = spec_hash(context.job.document)
        self._tables: dict[str, TableDataDrift] = {}
        self._changed: set[str] = set()
        self._is_covered = True
        self._is_urgent = False
        self._is_off = False
        self._stored_at = time.monotonic()
        self._lock = threading.Lock()
        self._report: DataDriftCounts = DataDriftCounts()

    def load(self) -> None:
        """Go on with what is stored: what was counted beside it is read again, or is lost.

        Records that this release cannot read are left as they are, and nothing is counted.

        Raises:
            RetryableError: the store is away.
        """
        try:
            self._tables = self._records.all()
        except FatalError as error:
            self._is_off = True
            _log.error("data drift is not counted", extra={"reason": redacted(str(error))})
        self._changed.clear()
        self._is_covered, self._is_urgent = True, False
        self._show(self._tables)

    def add(self, findings: Iterable[TableFindings]) -> None:
        """Count what was found in events that are delivered, and not behind a checkpoint yet."""
        at_ms = now_ms()
        for found in () if self._is_off else findings:
            self._is_covered = False
            self._changed.add(found.table)
            self._is_urgent |= _add(self._record(found, at_ms), found, at_ms)

    def writes(self, *, now: bool = False) -> list[Write]:
        """Return what is due to be stored with a checkpoint behind everything counted.

        Args:
            now: do not wait until it is due.
        """
        is_due = now or self._is_urgent or time.monotonic() - self._stored_at >= STORE_EVERY_S
        if not self._changed or not is_due:
            return []
        return [*self._records.put(self._tables[name] for name in sorted(self._changed))]

    def late_writes(self, *, now: bool = False) -> list[Write]:
        """Return what is due to be stored without a checkpoint, since one covers it already."""
        return self.writes(now=now) if self._is_covered else []

    def checkpointed(self, writes: Sequence[Write]) -> None:
        """Note that a checkpoint behind everything counted is stored, together with these."""
        self._is_covered = True
        self._show({name: self._tables[name] for name in self._changed})
        if writes:
            self._changed.clear()
            self._is_urgent = False
            self._stored_at = time.monotonic()

    def report(self) -> DataDriftCounts:
        """Return what was counted up to the last checkpoint. Called by any thread."""
        with self._lock:
            return self._report

    def _show(self, tables: Mapping[str, TableDataDrift]) -> None:
        shown = self._report.tables
        found = {name: table.totals for name, table in tables.items() if table.totals}
        batches = sum(table.batches_with_drift for table in self._tables.values())
        if found or batches != self._report.batches:
            with self._lock:
                fresh = {name: dict(totals) for name, totals in found.items()}
                self._report = DataDriftCounts(batches=batches, tables={**shown, **fresh})

    def _record(self, found: TableFindings, at_ms: int) -> TableDataDrift:
        former = self._tables.get(found.table)
        basis = found.fingerprint, self._spec_hash
        if former is not None and (former.fingerprint, former.spec_hash) == basis:
            return former
        fresh = TableDataDrift(
            table=found.table, fingerprint=basis[0], spec_hash=basis[1], since_ms=at_ms
        )
        if former is not None:
            fresh.totals, fresh.batches_with_drift = former.totals, former.batches_with_drift
            fresh.last_drift_ms = former.last_drift_ms
        self._tables[found.table] = fresh
        return fresh


def _add(record: TableDataDrift, found: TableFindings, at_ms: int) -> bool:
    """Count findings; return whether any event differs."""
    missing = [*_missing(record, found)]
    for column in [*found.columns, *missing]:
        _add_column(record, column, at_ms)
    record.unlisted += found.unlisted
    drifted = found.delivered + found.drifted_rows if missing else found.drifted
    if drifted:
        record.last_drift_ms = at_ms
        record.batches_with_drift += 1
    record.events_analyzed += found.events
    record.events_delivered += found.delivered
    record.events_with_drift += drifted
    return drifted > 0


def _missing(record: TableDataDrift, found: TableFindings) -> Iterable[ColumnFinding]:
    """Yield the declared columns that no event has had; forget those that one has now."""
    never = {name for name, (count, _) in found.absent.items() if count == found.delivered}
    known = {column.column for column in record.columns if column.drift_type == "missing_column"}
    if known - never and found.delivered:
        record.columns = [
            column
            for column in record.columns
            if column.drift_type != "missing_column" or column.column in never
        ]
    for name in sorted(never):
        if name in known or not record.events_delivered:
            count, column_type = found.absent[name]
            yield ColumnFinding(name, "missing_column", column_type, count, ("absent",))


def _add_column(record: TableDataDrift, found: ColumnFinding, at_ms: int) -> None:
    record.totals[found.drift_type] = record.totals.get(found.drift_type, 0) + found.count
    for column in record.columns:
        if (column.column, column.drift_type) == (found.column, found.drift_type):
            break
    else:
        if len(record.columns) >= COLUMNS_MAX:
            record.unlisted += found.count
            return
        column = ColumnDrift(
            column=found.column,
            drift_type=found.drift_type,
            expected=found.expected,
            first_seen_ms=at_ms,
            last_seen_ms=at_ms,
            events_before=record.events_analyzed,
        )
        record.columns.append(column)
    column.count += found.count
    column.last_seen_ms = at_ms
    column.observed = [*dict.fromkeys([*column.observed, *found.observed])]
    column.samples = [*dict.fromkeys([*column.samples, *found.samples])][:SAMPLES]
