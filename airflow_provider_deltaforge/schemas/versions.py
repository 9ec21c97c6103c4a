"""Versions of a table's schema, and which of them is in force at a position."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_provider_deltaforge.errors import PositionLostError
from airflow_provider_deltaforge.events.position import Position
from airflow_provider_deltaforge.events.schema import TableSchema

Compare = Callable[[Position, Position], int]
TableName = tuple[str, str | None, str]
"""Database, schema (None where the source has none) and table."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a table's schema, as one entry of the log holds it.

    Attributes:
        number: counts the table's different fingerprints, from 1.
        sequence: of the version's first entry: what its events carry.
        fingerprint: what its events carry as ``schema_version``.
        schema: the table; attributes that the fingerprint leaves out are those of this entry.
        registered_at_ms: when this entry was written.
        position: where the schema was first in force, or was again; None when nobody knows.
        entry: the entry's own number in the log.
    """

    number: int
    sequence: int
    fingerprint: str
    schema: TableSchema
    registered_at_ms: int
    position: Position | None
    entry: int


def name_of(schema: TableSchema) -> TableName:
    """Return what identifies a table within its source."""
    return schema.db, schema.schema, schema.table


def in_force(places: Sequence[Position | None], position: Position, compare: Compare) -> int | None:
    """Return which of several places is the last at or before a position; of equal ones the later.

    Places of another history, and unknown ones, are passed over.
    """
    best: int | None = None
    reached: Position = {}
    for index, place in enumerate(places):
        if place is None:
            continue
        order = compared(compare, place, position)
        if order is None or order > 0:
            continue
        if best is None or compared(compare, place, reached) != -1:
            best, reached = index, place
    return best


def compared(compare: Compare, left: Position, right: Position) -> int | None:
    """Return the order of two positions; None when they lie on different histories."""
    try:
        return compare(left, right)
    except PositionLostError:
        return None
