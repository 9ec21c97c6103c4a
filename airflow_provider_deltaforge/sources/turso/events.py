"""Collects change events and makes one Arrow batch of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns.value_codes import repeated
from airflow_provider_deltaforge.events.change import ChangeBatch, Position, Positions
from airflow_provider_deltaforge.events.ids import id_key, row_ids
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.shared.change_rows import (
    change_rows,
    id_column,
)
from airflow_provider_deltaforge.sources.turso.positions import FilePosition
from airflow_provider_deltaforge.sources.turso.tables import DB


@dataclass(frozen=True, slots=True)
class FileTxPositions:
    """The positions behind a batch's transactions, at least one."""

    ends: Sequence[FilePosition]

    def after(self, tx: int) -> Position:
        """Return where reading may resume after transaction ``tx``."""
        return self.ends[min(tx, len(self.ends) - 1)].as_json()


@dataclass(slots=True)
class Events:
    """Rows of a batch to be, column by column."""

    op: list[str] = field(default_factory=list)
    table: list[str] = field(default_factory=list)
    before: list[bytes | None] = field(default_factory=list)
    after: list[bytes | None] = field(default_factory=list)
    key: list[bytes | None] = field(default_factory=list)
    ts_ms: list[int] = field(default_factory=list)
    tx: list[int] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    tx_id: list[str | None] = field(default_factory=list)
    tx_end: list[bool] = field(default_factory=list)
    name: list[bytes] = field(default_factory=list)
    """What distinguishes each event from all others of the seed; its id is a hash of it."""
    source_position: list[bytes | None] = field(default_factory=list)
    schema: list[TableSchema | None] = field(default_factory=list)
    """What each row's table looked like."""
    ddl: list[bytes | None] = field(default_factory=list)

    def __len__(self) -> int:
        """Return how many events there are."""
        return len(self.op)

    def batch(self, end: Position, positions: Positions, *seed: str, **flags: Any) -> ChangeBatch:
        """Return the events as a batch that ends at a position.

        Args:
            end: the resume position after the last complete transaction.
            positions: behind the batch's transactions.
            seed: of the event ids: the source's id, and what distinguishes its kinds of events.
            flags: ``open_tx`` and ``continues`` of the batch.
        """
        # Bytes that may be changed: the kernel that reads them is kept for such only.
        names = np.frombuffer(bytearray().join(self.name), np.uint8)
        ends = np.cumsum([0, *map(len, self.name)], dtype=np.int64)
        rows = change_rows(
            len(self),
            {
                "op": _encoded(self.op),
                "db": repeated(DB, len(self)),
                "table": _encoded(self.table),
                "before": pa.array(self.before, pa.binary()),
                "after": pa.array(self.after, pa.binary()),
                "key": pa.array(self.key, pa.binary()),
                "ts_ms": pa.array(self.ts_ms, pa.int64()),
                "tx": pa.array(self.tx, pa.int32()),
                "row": pa.array(self.row, pa.int32()),
                "tx_id": _encoded(self.tx_id),
                "tx_end": pa.array(self.tx_end, pa.bool_()),
                "event_id": id_column(row_ids(id_key(*seed), names, ends)),
                "source_position": _encoded(self.source_position, pa.binary()),
                "schema_version": _encoded([s and s.fingerprint for s in self.schema]),
                "ddl": pa.array(self.ddl, pa.binary()),
            },
        )
        schemas = tuple({id(s): s for s in self.schema if s is not None}.values())
        return ChangeBatch(rows, positions, end, "turso", rows.nbytes, schemas=schemas, **flags)


def _encoded(values: Sequence[Any], kind: pa.DataType | None = None) -> pa.DictionaryArray:
    return pa.array(values, kind or pa.utf8()).dictionary_encode()
