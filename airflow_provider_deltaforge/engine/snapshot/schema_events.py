"""Sends sinks an event for each evolution of a sensed schema (``output.emit_events``).

An evolution has no place in the log, and a lane that is killed may learn it again in another way.
So nothing is sent before the evolution is stored: its number and fingerprint stay from then on, and
the event's id with them. The events join between two transactions, like rows of a copy, and what
was sent is stored once every sink holds it. A lane that is killed in between sends them again, with
the same ids.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.engine.base.heartbeat import Heartbeat
from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.engine.base.processor_stats import ProcessorStats
from airflow_provider_deltaforge.engine.base.schema_sensing import LaneSensing
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.read.registrar import lookup, registry_of
from airflow_provider_deltaforge.engine.render.render_stage import RenderStage
from airflow_provider_deltaforge.engine.snapshot.copy_window import (
    CopyWindow,
    RenderedRows,
    WatchedLog,
)
from airflow_provider_deltaforge.errors import FencedError, RetryableError
from airflow_provider_deltaforge.events.change import TEXT, ChangeBatch, Position
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.shared.change_rows import change_rows
from airflow_provider_deltaforge.spec.sensing import PRODUCER
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from airflow_provider_deltaforge.storage.records.sensing import Evolution, SensedTable, SentSchemas
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots

_LOOK_S, _POLL_S = 0.25, 0.01
_EVENTS_MAX = 100
_JOIN_S = 5.0


@dataclass(frozen=True, slots=True)
class SchemaEvent:
    """An evolution that is to be sent.

    Attributes:
        schema: of the table, as the catalog says it.
        sensed: what evolved.
        evolution: how.
    """

    schema: TableSchema
    sensed: SensedTable
    evolution: Evolution

    def event_id(self, source_id: str) -> bytes:
        """Return 16 bytes that are the same each time the event is sent."""
        parts = [source_id, self.sensed.name, self.evolution.sequence, self.evolution.fingerprint]
        text = json.dumps([PRODUCER, *parts]).encode()
        found = bytearray(hashlib.blake2b(text, digest_size=16).digest())
        found[6], found[8] = found[6] & 0x0F | 0x80, found[8] & 0x3F | 0x80  # UUID of version 8.
        return bytes(found)

    def ddl(self) -> bytes:
        """Return what happened, as JSON text."""
        happened = {
            "sensed": {
                "schema": self.sensed.name,
                "column": self.sensed.column,
                "sequence": self.evolution.sequence,
                "fingerprint": f"sha256:{self.evolution.fingerprint}",
                "added": self.evolution.added,
                "changed": self.evolution.changed,
            },
            "tables": [self.sensed.table],
        }
        return json.dumps(happened, separators=(",", ":")).encode()


class SchemaEvents:
    """Sends them for one opening of the log.

    Args:
        context: the lane's.
        stats: the lane's.
        heartbeat: says when to end.
        log: what the lane delivers.
        is_ready: asked whether every sink is where the lane is.
        sensing: what evolves; None without schema sensing.
    """

    def __init__(
        self,
        context: TaskContext,
        stats: LaneStats,
        heartbeat: Heartbeat,
        log: WatchedLog,
        is_ready: Callable[[], bool],
        sensing: LaneSensing | None,
    ) -> None:
        self._context, self._stats, self._heartbeat = context, stats, heartbeat
        emits = context.pipeline.spec.schema_sensing.output.emit_events
        self._log, self._is_ready, self._sensing = log, is_ready, sensing if emits else None
        meta = context.pipeline.metadata
        self._records = SentSchemas(context.store, meta.name, meta.tenant)
        self._registry = registry_of(context)
        self._evolved: dict[str, SensedTable] = {}
        self._sent: dict[str, int] | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="schema events", daemon=True)

    def start(self) -> None:
        """Begin to look for evolutions, if they are to be sent."""
        if self._sensing is not None:
            self._thread.start()

    def close(self) -> None:
        """End; whoever opens the log next sends what is left."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        if self._sensing is not None:
            self._sensing.not_sent([*self._evolved.values()])

    @property
    def _is_over(self) -> bool:
        return self._ending.is_set() or self._heartbeat.ending.is_set()

    def _run(self) -> None:
        while self._sensing is not None and not self._is_over:
            try:
                self._look(self._sensing.evolved())
            except RetryableError:
                pass  # Store or sinks are away, which others tell.
            except FencedError:
                return  # The lane will notice.
            except Exception as error:  # noqa: BLE001 - as a row that nobody can take
                self._heartbeat.failure = error
                self._heartbeat.end("failed")
            self._ending.wait(_LOOK_S)

    def _look(self, evolved: Sequence[SensedTable]) -> None:
        self._evolved |= {record.name: record for record in evolved}
        if self._sent is None:
            self._sent = self._records.all()
        while self._evolved and self._is_ready() and not self._is_over:
            events = self._unsent(self._sent)
            if not events:
                return
            if not self._send(events[:_EVENTS_MAX]):
                return
            self._sent |= _sequences(events[:_EVENTS_MAX])

    def _unsent(self, sent: Mapping[str, int]) -> list[SchemaEvent]:
        """Return what was not sent; forget the schemas of which everything was."""
        found: list[SchemaEvent] = []
        self._registry.refresh()
        schemas = {each.schema.full_name: each.schema for each in self._registry.all()}
        for name, record in [*self._evolved.items()]:
            # One that was begun anew counts from 1 again.
            upto = sent.get(name, 0) if record.sequence >= sent.get(name, 0) else 0
            left = [each for each in record.evolutions if each.sequence > upto]
            schema = schemas.get(record.table)
            if schema is None or not left:
                del self._evolved[name]
            else:
                found += [SchemaEvent(schema, record, each) for each in left]
        return found

    def _send(self, events: Sequence[SchemaEvent]) -> bool:
        """Return whether every sink holds events, and that is stored."""
        source = self._context.pipeline.spec.source
        rows = _rows(events, source.id)
        window = SchemaEventWindow(source, events, self._records)
        with closing(self._rendering()) as rendering:
            rendering.open()
            rendered = RenderedRows([(rows, rendering.render(rows))])
            window.rendered.set_result(rendered)
            self._log.add(window)
            try:
                while not window.delivered.done():
                    if self._is_over:
                        return False
                    self._ending.wait(_POLL_S)
            finally:
                self._log.drop(window)
        return window.delivered.result()

    def _rendering(self) -> RenderStage:
        """Return what renders for every sink, without processors: what evolved is behind them."""
        pipeline, store = self._context.pipeline, self._context.store
        plain = pipeline.spec.model_copy(update={"processors": ()})
        given_up = Gaps(store, pipeline.name).open()
        return RenderStage(
            pipeline.model_copy(update={"spec": plain}),
            self._context.origin,
            ProcessorStats(),
            self._stats,
            lambda: self._is_over,
            lookup(self._registry),
            [sink.id for sink in plain.sinks if sink.id not in given_up],
        )


class SchemaEventWindow(CopyWindow):
    """Events that join the log anywhere between two transactions."""

    op = "ddl"

    def __init__(self, source: Any, events: Sequence[SchemaEvent], records: SentSchemas) -> None:
        # Sinks that keep a mark know by its name whether they hold exactly these events.
        ids = b"".join(event.event_id(source.id) for event in events)
        name = hashlib.blake2b(ids, digest_size=16).hexdigest()
        table = events[0].schema
        chunk = TableChunk(name, table.db, table.schema, table.table)
        super().__init__(source, PRODUCER, chunk, {})
        self._writes = [records.put(*sent) for sent in _sequences(events).items()]

    def look(self, batch: ChangeBatch) -> None:
        """Do nothing: no view was opened."""

    def is_ready(self, at: Position) -> bool:
        """Return True."""
        return True

    def done(
        self, records: Snapshots, marks: Mapping[str, str], rows: int, row_bytes: int
    ) -> Sequence[Write]:
        """Return what is stored once every sink holds the events."""
        return self._writes


def _sequences(events: Sequence[SchemaEvent]) -> dict[str, int]:
    """Return the last sequence of each schema."""
    return {event.sensed.name: event.evolution.sequence for event in events}


def _rows(events: Sequence[SchemaEvent], source_id: str) -> pa.RecordBatch:
    count, schemas = len(events), [event.schema for event in events]
    return change_rows(
        count,
        {
            "op": pa.array(["ddl"] * count, TEXT),
            "db": pa.array([schema.db for schema in schemas], TEXT),
            "schema": pa.array([schema.schema for schema in schemas], TEXT),
            "table": pa.array([schema.table for schema in schemas], TEXT),
            "ts_ms": pa.array([event.evolution.at_ms for event in events], pa.int64()),
            "tx": pa.array(np.arange(count, dtype=np.int32)),
            "row": pa.array(np.zeros(count, np.int32)),
            "tx_end": pa.array(np.ones(count, np.bool_)),
            "event_id": pa.array([event.event_id(source_id) for event in events], pa.binary(16)),
            "ddl": pa.array([event.ddl() for event in events], pa.binary()),
            "synthetic": pa.array([PRODUCER] * count, pa.utf8()),
        },
    )
