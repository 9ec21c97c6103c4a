"""Decodes a row image of the capture table: a record in SQLite's file format.

The engine's own function for it refuses BLOBs and rounds nothing exactly, so it is not used.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.sources.turso.tables import Table

_SHAPES = {1: "b", 2: "h", 3: "3s", 4: "i", 5: "6s", 6: "q", 7: "d"}


def row_of(table: Table, record: bytes) -> list[Any]:
    """Return a row image's values, in table order.

    Raises:
        SchemaError: the image does not fit the table.
    """
    try:
        values = values_of(record)
    except (IndexError, KeyError, struct.error) as error:
        raise SchemaError(f"main.{table.name}: a captured row is damaged; {_REMEDY}") from error
    if len(values) != len(table.columns):
        raise SchemaError(
            f"main.{table.name}: a captured row has {len(values)} columns, its table "
            f"{len(table.columns)} ({', '.join(table.columns)}); {_REMEDY}"
        )
    for at, real in enumerate(table.real):
        if real and type(values[at]) is int:
            values[at] = float(values[at])
    return values


_REMEDY = "the table was altered without being captured; snapshot it again"


def values_of(record: bytes) -> list[Any]:
    """Return the values of a record."""
    size = record[0] if record[0] < 0x80 else _varint(record, 0)[0]
    plan = _plan(record[:size])
    found = plan.body.unpack_from(record, size)
    if plan.known is None:
        values = list(found)
    else:
        values = list(plan.known)
        for at, value in zip(plan.places, found, strict=True):
            values[at] = value
    for at in plan.texts:
        values[at] = _text(values[at])
    for at in plan.odd:
        values[at] = int.from_bytes(values[at], "big", signed=True)
    return values


@dataclass(frozen=True, slots=True)
class _Plan:
    """How to read the records with one header.

    Attributes:
        body: everything behind the header.
        known: values that are in the header itself; None without any.
        places: where the body's values belong, if some are known.
        texts: values to decode.
        odd: integers of three or six bytes.
    """

    body: struct.Struct
    known: tuple[Any, ...] | None
    places: tuple[int, ...]
    texts: tuple[int, ...]
    odd: tuple[int, ...]


@lru_cache(maxsize=8192)
def _plan(header: bytes) -> _Plan:
    """Read a header; rows of one table mostly share a few."""
    at = _varint(header, 0)[1]
    shape = [">"]
    known: list[int | None] = []
    places, texts, odd = [], [], []
    while at < len(header):
        kind, at = _varint(header, at)
        index = len(known)
        known.append(kind - 8 if kind in (8, 9) else None)
        if kind in (0, 8, 9):
            continue
        places.append(index)
        if kind >= 12:
            shape.append(f"{(kind - 12) // 2}s")
            if kind % 2:
                texts.append(index)
        else:
            shape.append(_SHAPES[kind])
            if kind in (3, 5):
                odd.append(index)
    every = len(places) == len(known)
    body = struct.Struct("".join(shape))
    return _Plan(body, None if every else tuple(known), tuple(places), tuple(texts), tuple(odd))


def _text(data: bytes) -> str | bytes:
    """Keep the bytes of a text that is none: they are then written as base64."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in SQLite's variable length, and where it ends."""
    value = 0
    for step in range(8):
        byte = data[at + step]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + step + 1
    return value << 8 | data[at + 8], at + 9
