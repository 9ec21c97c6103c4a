"""Collects change events and makes one Arrow batch of them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.events.change import (
    CHANGE_SCHEMA,
    ChangeBatch,
    Position,
    Positions,
)
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.turso.positions import FilePosition
from airflow_provider_deltaforge.sources.turso.tables import DB


@dataclass(frozen=True, slots=True)
class FileTxPositions:
    """The places behind a batch's transactions, at least one; one is enough for a snapshot."""

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
    """What makes each event itself, hashed into its id."""
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
            seed: of the event ids: the source's id, and what tells these events from others of it.
            flags: ``open_tx`` and ``continues`` of the batch.
        """
        count = len(self)
        given = {
            "db": [DB] * count,
            "schema": None,
            "schema_version": [schema and schema.fingerprint for schema in self.schema],
        }
        arrays = []
        for column in CHANGE_SCHEMA:
            kind = column.type
            told: Any = given.get(column.name, getattr(self, column.name, None))
            if column.name == "event_id":
                ids = pa.py_buffer(_ids(seed, self.name))
                arrays.append(pa.FixedSizeBinaryArray.from_buffers(kind, count, [None, ids]))
            elif told is None:
                arrays.append(pa.nulls(count, kind))
            elif pa.types.is_dictionary(kind):
                arrays.append(pa.array(told, kind.value_type).dictionary_encode().cast(kind))
            else:
                arrays.append(pa.array(told, kind))
        rows = pa.RecordBatch.from_arrays(arrays, schema=CHANGE_SCHEMA)
        schemas = tuple({id(one): one for one in self.schema if one is not None}.values())
        return ChangeBatch(rows, positions, end, "turso", rows.nbytes, schemas=schemas, **flags)


def _ids(seed: tuple[str, ...], names: list[bytes]) -> Any:
    """Return 16 bytes per event that are the same on every replay: UUIDs of version 8."""
    key = hashlib.blake2b(repr(seed).encode(), digest_size=32).digest()
    hashed = b"".join(hashlib.blake2b(n, key=key, digest_size=16).digest() for n in names)
    ids = np.frombuffer(hashed, np.uint8).reshape(-1, 16).copy()
    ids[:, 6] = ids[:, 6] & 0x0F | 0x80
    ids[:, 8] = ids[:, 8] & 0x3F | 0x80
    return ids
