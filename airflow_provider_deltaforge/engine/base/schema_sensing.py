"""Schema sensing of a lane or a copy: keeps what was learned of events in the state store.

A thread of its own writes, in fenced transactions beside those of checkpoints. A lane that is
killed leaves an older state, and its successor learns the rest again; a lane that lost its fence
writes nothing more.
"""

import logging
import threading
from collections.abc import Iterable, Sequence

import pyarrow as pa

from airflow_provider_deltaforge.encodings.contract import Schemas
from airflow_provider_deltaforge.engine.base.measurements import LaneMeasurements
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.errors import FatalError, FencedError, RetryableError
from airflow_provider_deltaforge.sensing.row_samples import RowSample
from airflow_provider_deltaforge.sensing.sensor import SchemaSensor
from airflow_provider_deltaforge.storage.records.sensing import SensedTable, SensedTables
from airflow_provider_deltaforge.telemetry.redaction import redacted

_TICK_S = 2.0
_QUIET_S = 10.0
_COUNTED_S = 60.0
_RECORDS_MAX = 25  # Of one transaction, so that no checkpoint waits long for it.
_JOIN_S = 5.0

_log = logging.getLogger(__name__)


class LaneSensing:
    """Senses for one lane or copy. ``observe`` is called by one thread, the rest by its owner's.

    Args:
        context: the opened job; its fence guards every write.
        measured: where the work is counted.
        schemas: finds what the catalog says of a table.
    """

    def __init__(self, context: TaskContext, measured: LaneMeasurements, schemas: Schemas) -> None:
        self._context, self._measured, self._schemas = context, measured, schemas
        meta = context.pipeline.metadata
        self._records = SensedTables(context.store, context.pipeline.name, meta.tenant)
        self._sensor: SchemaSensor | None = None
        self._emits = context.pipeline.spec.schema_sensing.output.emit_events
        self._evolved: dict[str, SensedTable] = {}
        self._evolved_lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="schema sensing", daemon=True)
        self._is_fenced = False

    def open(self) -> None:
        """Go on with what is stored, and begin to write. Called once.

        Raises:
            RetryableError: the store is away.
        """
        meta, settings = self._context.pipeline.metadata, self._context.pipeline.spec.schema_sensing
        try:
            known = self._records.all()
        except FatalError as error:
            # Nothing is written over records that this release cannot read.
            _log.error("schema sensing is off", extra={"reason": redacted(str(error))})
            return
        self._sensor = SchemaSensor(settings, meta.tenant, self._schemas, known)
        self._note(known)
        self._measured.senses_by(self._sensor)
        self._thread.start()

    def observe(self, rows: pa.RecordBatch, trigger: str) -> None:
        """Take note of change events as sinks receive them.

        Args:
            rows: the events.
            trigger: what made their batch full.
        """
        if self._sensor is not None and rows.num_rows:
            self._measured.stage("schema_sensing", trigger, self._sensor.observe(rows))

    def observe_samples(self, samples: Iterable[RowSample]) -> None:
        """Take note of rows that were copied."""
        if self._sensor is not None:
            self._sensor.observe_samples(samples)

    def evolved(self) -> Sequence[SensedTable]:
        """Return schemas that are stored and came to be others since this was last asked.

        With ``output.emit_events`` only; at first, all of them.
        """
        with self._evolved_lock:
            found, self._evolved = [*self._evolved.values()], {}
        return found

    def not_sent(self, records: Iterable[SensedTable]) -> None:
        """Return what was not sent of them: the log's next opening goes on with it."""
        with self._evolved_lock:
            self._evolved = {record.name: record for record in records} | self._evolved

    def _note(self, records: Iterable[SensedTable]) -> None:
        if self._emits:
            with self._evolved_lock:
                self._evolved |= {record.name: record for record in records}

    def close(self) -> None:
        """Write what is not written, and end. Safe to call twice, and before ``open``."""
        is_first = not self._closing.is_set()
        self._closing.set()
        if self._sensor is None or not is_first:
            return
        self._thread.join(_JOIN_S)
        self._context.job.in_time(lambda: self._write(self._sensor, 0.0, 0.0))

    def _run(self) -> None:
        while not self._closing.wait(_TICK_S):
            self._write(self._sensor, _QUIET_S, _COUNTED_S)

    def _write(self, sensor: SchemaSensor | None, quiet_s: float, counted_s: float) -> None:
        if sensor is None or self._is_fenced:
            return
        try:
            while page := sensor.unwritten(quiet_s, counted_s, _RECORDS_MAX):
                writes = [self._records.put(record) for _, record in page]
                self._context.store.transact(writes, self._context.fence)
                sensor.wrote(token for token, _ in page)
                self._note(record for _, record in page)
        except FencedError:
            self._is_fenced = True
        except RetryableError:
            pass  # The heartbeat tells of it; the next tick tries again.
        except Exception as error:  # noqa: BLE001 - delivery goes on without it
            self._is_fenced = True
            _log.error("sensed schemas are not kept", extra={"reason": redacted(str(error))})
