"""What differs between a table as it was known and as a server shows it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from airflow_provider_deltaforge.events.schema import Column, TableSchema

_FIRST_PLANE = 0xFFFF


@dataclass(frozen=True, slots=True)
class Delta:
    """One difference of one table.

    Attributes:
        table: its full name.
        kind: ``column_added``, ``column_dropped``, ``column_type_changed``, ``table_dropped`` or
            ``primary_key_changed``.
        column: the column's name; None for the last two kinds.
        was: the former type or key; None for an added column.
        now: the present type or key; None for what is gone.
    """

    table: str
    kind: str
    column: str | None = None
    was: str | None = None
    now: str | None = None

    def __str__(self) -> str:
        name = f"{self.table}.{self.column}" if self.column else self.table
        change = f" ({self.was or 'nothing'} -> {self.now or 'nothing'})"
        return f"{name}: {self.kind}{change if self.was or self.now else ''}"


def deltas(known: TableSchema, live: TableSchema | None) -> list[Delta]:
    """Return what differs in what rows are made of: columns, their types, the primary key."""
    if live is None:
        return [Delta(known.full_name, "table_dropped")]
    return [*_columns(known, live), *_keys(known, live)]


def described(found: Sequence[Delta], most: int = 20) -> str:
    """Return differences as one line of text."""
    shown = "; ".join(str(delta) for delta in found[:most])
    return shown + (f"; and {len(found) - most} more" if len(found) > most else "")


def _columns(known: TableSchema, live: TableSchema) -> Iterator[Delta]:
    table = known.full_name
    was = {column.name: column for column in known.columns}
    now = {column.name: column for column in live.columns}
    for name, column in was.items():
        if name not in now:
            yield Delta(table, "column_dropped", name, was=column.column_type)
        elif _type(column, now[name]) != _type(now[name], column):
            yield Delta(
                table, "column_type_changed", name, column.column_type, now[name].column_type
            )
    for name, column in now.items():
        if name not in was:
            yield Delta(table, "column_added", name, now=column.column_type)


def _keys(known: TableSchema, live: TableSchema) -> Iterator[Delta]:
    if known.primary_key != live.primary_key:
        was, now = (", ".join(table.primary_key) or None for table in (known, live))
        yield Delta(known.full_name, "primary_key_changed", was=was, now=now)


def _type(column: Column, other: Column) -> tuple[object, ...]:
    """Return what is compared of a type.

    A schema that came out of the log lacks details that the catalog has; only what both sides say
    can differ.
    """
    details = ("char_max_length", "numeric_precision", "numeric_scale")
    attributes = [
        getattr(column, name) if getattr(column, name) and getattr(other, name) else None
        for name in details
    ]
    labels = column.labels if other.labels else ()
    return (column.data_type, column.unsigned, *map(_label, labels), *attributes)


def _label(text: str) -> str:
    """Return a label as MySQL's catalog keeps it: letters beyond the first plane are a ``?``."""
    return "".join("?" if ord(letter) > _FIRST_PLANE else letter for letter in text)
