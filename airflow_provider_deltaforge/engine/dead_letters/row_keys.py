"""Rows of tables as places that events change one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetter, EarlierPlace

_BETWEEN = "\0"


@dataclass(frozen=True, slots=True)
class RowKey:
    """What an event changed: one row, every row of a table, or something nobody can name.

    Attributes:
        table: its full name.
        row: table and primary key; None of a table without one, and of what concerns no row.
        former: the row under the key that an update took from it.
        whole: every row of the table, as a truncation does.
        earlier: what it was before processors gave the event another table or key; entries of
            those processors know the row by that.
    """

    table: bytes
    row: bytes | None
    whole: bool = False
    former: bytes | None = None
    earlier: tuple["RowKey", ...] = ()

    @property
    def rows(self) -> frozenset[bytes]:
        """The rows it names."""
        return frozenset(row for row in (self.row, self.former) if row is not None)

    @property
    def names(self) -> tuple["RowKey", ...]:
        """All that the row is known by, itself first."""
        return (self, *self.earlier)

    def meets(self, other: "RowKey") -> bool:
        """Return whether the order of two events matters."""
        return any(_meet(mine, its) for mine in self.names for its in other.names)

    def as_earlier(self) -> EarlierPlace:
        """Return it as an entry keeps it.

        Raises:
            UnicodeError: no text can hold it.
        """
        start = len(self.table) + len(_BETWEEN)
        keys = [None if row is None else row[start:].decode() for row in (self.row, self.former)]
        table = self.table.decode().split(_BETWEEN)
        return EarlierPlace(table=table, key=keys[0], former_key=keys[1])


def _meet(first: RowKey, other: RowKey) -> bool:
    if first.whole or other.whole:
        return first.table == other.table
    return not first.rows.isdisjoint(other.rows)


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

    @property
    def wide(self) -> np.ndarray:
        """Which events concern more rows than one."""
        found: np.ndarray = self.whole | np.asarray(self.former.is_valid())
        return found

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


def places_of(rows: pa.RecordBatch, earlier: Sequence[pa.RecordBatch] = ()) -> list[RowKey]:
    """Return the place of every event of a small batch.

    Args:
        rows: the events.
        earlier: what they concerned in front of processors.
    """
    found, before = RowKeys.of(rows), [RowKeys.of(each) for each in earlier]
    places = []
    for row in range(rows.num_rows):
        place = found.at(row)
        others = {each.at(row): None for each in before}
        others.pop(place, None)
        places.append(replace(place, earlier=tuple(others)) if others else place)
    return places


def place_of(dead_letter: DeadLetter) -> RowKey | None:
    """Return what the event of a dead letter changed; None if it cannot be sent again."""
    if dead_letter.rest is None or dead_letter.payload_truncated:
        return None
    source = dead_letter.event.get("source") or {}
    names = [source.get("db") or "", source.get("schema") or "", source.get("table") or ""]
    rest, op = dead_letter.rest, dead_letter.event.get("op")
    if op == "ddl":
        return RowKey(_BETWEEN.join(names).encode(), None)
    own = EarlierPlace(table=names, key=rest.key, former_key=rest.former_key)
    place, *earlier = (_stored(each, whole=op == "t") for each in (own, *(rest.earlier or ())))
    return replace(place, earlier=tuple(earlier))


def _stored(place: EarlierPlace, *, whole: bool) -> RowKey:
    row, former = (
        None if key is None else _BETWEEN.join((*place.table, key)).encode()
        for key in (place.key, place.former_key)
    )
    return RowKey(_BETWEEN.join(place.table).encode(), row, whole, former)
