"""Rows of tables as places that events change one after the other."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetter

_BETWEEN = "\0"


@dataclass(frozen=True, slots=True)
class RowKey:
    """What an event changed: one row, every row of a table, or something nobody can name.

    Attributes:
        table: its full name.
        row: table and primary key; None of a table without one, and of what concerns no row.
        former: the row under the key that an update took from it.
        whole: every row of the table, as a truncation does.
    """

    table: bytes
    row: bytes | None
    whole: bool = False
    former: bytes | None = None

    @property
    def rows(self) -> frozenset[bytes]:
        """The rows it names."""
        return frozenset(row for row in (self.row, self.former) if row is not None)

    def meets(self, other: "RowKey") -> bool:
        """Return whether the order of two events matters."""
        if self.whole or other.whole:
            return self.table == other.table
        return not self.rows.isdisjoint(other.rows)


@dataclass(frozen=True, slots=True)
class RowKeys:
    """The places of a batch, in columns.

    Attributes:
        tables: binary, one name per event.
        rows: binary, table and key; null without a key.
        former: the same with the key that an update changed; null of all others.
        whole: which events concern the whole table.
        named: which events concern a table at all: a statement only describes it.
    """

    tables: pa.BinaryArray
    rows: pa.BinaryArray
    former: pa.BinaryArray
    whole: np.ndarray
    named: np.ndarray

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> "RowKeys":
        """Return the places that change events concern."""
        names = [pc.fill_null(rows[name].cast(pa.utf8()), "") for name in ("db", "schema", "table")]
        tables = pc.binary_join_element_wise(*names, _BETWEEN).cast(pa.binary())
        op = rows["op"].cast(pa.utf8())
        return cls(
            tables,
            pc.binary_join_element_wise(tables, rows["key"], _BETWEEN.encode()),
            pc.binary_join_element_wise(tables, rows["former_key"], _BETWEEN.encode()),
            np.asarray(pc.equal(op, "t")),
            np.asarray(pc.not_equal(op, "ddl")),
        )

    def at(self, row: int) -> RowKey:
        """Return the place of one event."""
        key = self.rows[row].as_py() if self.named[row] else None
        former = self.former[row].as_py() if self.named[row] else None
        return RowKey(self.tables[row].as_py(), key, bool(self.whole[row]), former)


def places_of(rows: pa.RecordBatch) -> list[RowKey]:
    """Return the place of every event of a small batch."""
    found = RowKeys.of(rows)
    return [found.at(row) for row in range(rows.num_rows)]


def place_of(dead_letter: DeadLetter) -> RowKey | None:
    """Return what the event of a dead letter changed; None if it cannot be sent again."""
    if dead_letter.rest is None or dead_letter.payload_truncated:
        return None
    source = dead_letter.event.get("source") or {}
    names = (source.get("db") or "", source.get("schema") or "", source.get("table") or "")
    table = _BETWEEN.join(names).encode()
    op = dead_letter.event.get("op")
    keys = (None, None) if op == "ddl" else (dead_letter.rest.key, dead_letter.rest.former_key)
    row, former = (None if key is None else _BETWEEN.join((*names, key)).encode() for key in keys)
    return RowKey(table, row, op == "t", former)
