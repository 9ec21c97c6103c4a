"""Decodes a row image of the capture table: a record in SQLite's file format.

The engine's own function for it refuses BLOBs and rounds nothing exactly, so it is not used.
"""

import struct
from typing import Any

from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.sources.turso.tables import Table

_SIZES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
_REAL = struct.Struct(">d")


def row_of(table: Table, record: bytes) -> list[Any]:
    """Return a row image's values, in table order.

    Raises:
        SchemaError: the image does not fit the table.
    """
    try:
        values = values_of(record)
    except (IndexError, struct.error) as error:
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
    size, at = _varint(record, 0)
    kinds = []
    while at < size:
        kind = record[at]
        if kind < 0x80:
            at += 1
        else:
            kind, at = _varint(record, at)
        kinds.append(kind)
    at = size
    values: list[Any] = []
    for kind in kinds:
        if kind >= 12:
            stop = at + (kind - 12) // 2
            if stop > len(record):
                raise IndexError
            data = record[at:stop]
            values.append(_text(data) if kind % 2 else data)
        elif kind == 0:
            stop = at
            values.append(None)
        elif kind == 7:
            stop = at + 8
            values.append(_REAL.unpack_from(record, at)[0])
        elif kind >= 8:
            stop = at
            values.append(kind - 8)
        else:
            stop = at + _SIZES[kind]
            values.append(int.from_bytes(record[at:stop], "big", signed=True))
        at = stop
    return values


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
