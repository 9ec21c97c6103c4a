"""Makes the schemas of a batch known before its rows are delivered, and gives rows their sequence.

A schema is registered once, in a transaction that holds only under the lane's fence. Killed
between that and the delivery, the replay finds it registered: the same version, the same sequence.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns.binary_columns import number_column
from airflow_provider_deltaforge.encodings.contract import Schemas
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, ChangeBatch, Position
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.schemas.registry import Registry
from airflow_provider_deltaforge.schemas.versions import TableName, name_of

_SEQUENCE = CHANGE_SCHEMA.get_field_index("schema_sequence")
_NAMES = ("db", "schema", "table", "schema_version")


def registry_of(context: TaskContext) -> Registry:
    """Return the registry of a pipeline's source."""
    pipeline = context.pipeline
    return Registry(context.store, pipeline.spec.source.id, pipeline.metadata.tenant)


def lookup(registry: Registry) -> Schemas:
    """Return what finds a table as an event's ``schema_version`` names it."""

    def known(db: str, schema: str | None, table: str, fingerprint: str) -> TableSchema | None:
        versions = registry.versions(db, schema, table)
        return next((v.schema for v in versions if v.fingerprint == fingerprint), None)

    def find(
        db: str, schema: str | None, table: str, fingerprint: str | None
    ) -> TableSchema | None:
        found = known(db, schema, table, fingerprint) if fingerprint is not None else None
        if found is None and fingerprint is not None:
            registry.refresh()  # Another worker of the same driver may have registered it.
            found = known(db, schema, table, fingerprint)
        latest = registry.latest(db, schema, table) if found is None else None
        return found if latest is None else latest.schema

    return find


class Registrar:
    """Registers what batches bring. Used by one thread.

    Args:
        context: the open job; its fence guards every write.
        registry: of the source.
        retry: repeats a call to the store while it is away.
        start: where the log is read from; None for a snapshot, whose batches end where their
            view stands.
        missed: hears how many tables of a batch had another schema than before.
    """

    def __init__(
        self,
        context: TaskContext,
        registry: Registry,
        retry: Callable[[Callable[[], Any]], Any],
        start: Position | None = None,
        missed: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._missed = missed
        self._compare = context.pipeline.spec.source.compare
        self._fence = context.fence
        self._registry = registry
        self._retry = retry
        self._before = start
        self._present: dict[TableName, TableSchema] = {}
        self._sequences: dict[tuple[TableName, str], int] = {}

    def admit(self, batch: ChangeBatch) -> ChangeBatch:
        """Return the batch with ``schema_sequence`` filled; its schemas are durable then.

        Raises:
            FencedError: a newer driver has started; nothing was registered.
        """
        ordinals = _ordinals(batch) if batch.schemas and batch.rows.num_rows else None
        missed = sum(self._present.get(name_of(each)) is not each for each in batch.schemas)
        if missed:
            self._missed(missed)
            self._learn(batch, ordinals)
        if self._before is not None:
            self._before = batch.end
        if ordinals is None:
            return batch
        # One that no row has, and that was already another again, needs no sequence.
        known = [self._sequences.get((name_of(s), s.fingerprint)) for s in batch.schemas]
        if len(known) == 1 and known[0] is not None and not ordinals.null_count:
            column = number_column(np.full(len(ordinals), known[0], np.int64), pa.int64())
        else:
            column = pa.array(known, pa.int64()).take(ordinals)
        field = CHANGE_SCHEMA.field(_SEQUENCE)
        return replace(batch, rows=batch.rows.set_column(_SEQUENCE, field, column))

    def _learn(self, batch: ChangeBatch, ordinals: pa.Array | None) -> None:
        found = [
            (schema, position)
            for schema, position in self._coming(batch, ordinals)
            if self._sees(schema)
        ]
        if not found:
            return
        versions = self._retry(
            lambda: self._registry.register_all(found, compare=self._compare, fence=self._fence)
        )
        reach(CrashPoint.SCHEMA_REGISTERED)
        for (schema, _), version in zip(found, versions, strict=True):
            self._sequences[name_of(schema), schema.fingerprint] = version.sequence

    def _sees(self, schema: TableSchema) -> bool:
        """Take note of a table's schema; return whether it was another one until now."""
        name = name_of(schema)
        former = self._present.get(name)
        self._present[name] = schema
        return former != schema

    def _coming(
        self, batch: ChangeBatch, ordinals: pa.Array | None
    ) -> Iterator[tuple[TableSchema, Position]]:
        """Yield each schema in the order it comes into force, with the position before that.

        In a log that is the position before the transaction of the first row: who starts to read
        there needs it. A snapshot's rows are as their view shows them.
        """
        schemas = batch.schemas
        used: set[int] = set()
        if ordinals is not None:
            rows = ordinals.fill_null(-1).to_numpy(zero_copy_only=False)
            for row in _changes(rows, [name_of(schema) for schema in schemas]):
                used.add(int(rows[row]))
                yield schemas[rows[row]], self._position_before(batch, row)
        # Of a table that no row tells of behind its last change, that one is in force at the end.
        last = {name_of(schema): ordinal for ordinal, schema in enumerate(schemas)}
        for ordinal in last.values():
            if ordinal not in used:
                yield schemas[ordinal], batch.end

    def _position_before(self, batch: ChangeBatch, row: int) -> Position:
        if self._before is None:
            return batch.end
        tx = int(batch.rows.column("tx")[row].as_py())
        return batch.positions.after(tx - 1) if tx > 0 else self._before


def _changes(rows: Any, tables: Sequence[TableName]) -> list[int]:
    """Return the rows at which a table's schema is another one than in its row before.

    Args:
        rows: the ordinal of each row's schema, -1 for none.
        tables: whose each schema is.
    """
    whose: dict[TableName, int] = {}
    table_of = np.array([whose.setdefault(name, len(whose)) for name in tables] + [-1])
    found: list[int] = []
    for table in range(len(whose)):
        mine = np.flatnonzero(table_of[rows] == table)
        if len(mine):
            turns = np.flatnonzero(np.diff(rows[mine])) + 1
            found += [int(mine[0]), *mine[turns].tolist()]
    return sorted(found)


def _ordinals(batch: ChangeBatch) -> pa.Array:
    """Return which of the batch's schemas each row has; null for none."""
    versions = batch.rows.column("schema_version")
    if versions.dictionary.to_pylist() == [schema.fingerprint for schema in batch.schemas]:
        return versions.indices  # The dictionary tells the schemas apart.
    return _by_table(batch.rows, batch.schemas)


def _by_table(rows: pa.RecordBatch, schemas: Sequence[TableSchema]) -> pa.Array:
    """Return each row's schema by table and fingerprint: two tables may look the same."""
    columns = [rows.column(name) for name in _NAMES]
    sizes = [len(column.dictionary) + 1 for column in columns]
    code = np.zeros(rows.num_rows, np.int64)
    for column, size in zip(columns, sizes, strict=True):
        indices = column.indices.fill_null(size - 1).to_numpy(zero_copy_only=False)
        code = code * size + indices
    places = [{text: i for i, text in enumerate(c.dictionary.to_pylist())} for c in columns]
    known: dict[int, int] = {}
    for ordinal, schema in enumerate(schemas):
        number = 0
        texts = (schema.db, schema.schema, schema.table, schema.fingerprint)
        for place, size, text in zip(places, sizes, texts, strict=True):
            at = size - 1 if text is None else place.get(text, -1)
            number = number * size + at if at >= 0 and number >= 0 else -1
        if number >= 0:
            known[number] = ordinal
    codes, inverse = np.unique(code, return_inverse=True)
    found = np.array([known.get(int(value), -1) for value in codes], np.int32)[inverse]
    return pa.array(found, pa.int32(), mask=found < 0)
