"""Decodes a row image of the capture table: a record in SQLite's file format.

The engine's own function for it refuses BLOBs and rounds nothing exactly, so it is not used.
"""

import struct
from typing import Any

from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.sources.turso.tables import TursoTable

_WIDTHS = (0, 1, 2, 3, 4, 6, 8, 8)
_REAL = struct.Struct(">d").unpack


def row_of(table: TursoTable, record: bytes) -> list[Any]:
    """Return a row image's values, in table order.

    Raises:
        SchemaError: the image does not fit the table.
    """
    try:
        values = values_of(record)
    except (IndexError, ValueError, struct.error) as error:
        raise SchemaError(f"main.{table.name}: a captured row is damaged; {_REMEDY}") from error
    if len(values) != len(table.columns):
        raise SchemaError(
            f"main.{table.name}: a captured row has {len(values)} columns, its table "
            f"{len(table.columns)} ({', '.join(table.columns)}); {_REMEDY}"
        )
    for at in table.real_at:
        if type(values[at]) is int:
            values[at] = float(values[at])
    return values


_REMEDY = "the table was altered without being captured; snapshot it again"


def values_of(record: bytes) -> list[Any]:
    """Return the values of a record.

    Raises:
        ValueError: the record is longer than its bytes.
    """
    size, at = (record[0], 1) if record[0] < 0x80 else _varint(record, 0)
    body = size
    values: list[Any] = []
    while at < size:
        kind = record[at]
        at += 1
        if kind >= 12:
            if kind >= 0x80:
                kind, at = _varint(record, at - 1)
            data = record[body : body + (kind - 12) // 2]
            body += (kind - 12) // 2
            values.append(_text(data) if kind % 2 else data)
        elif kind == 0:
            values.append(None)
        elif kind in (8, 9):
            values.append(kind - 8)
        else:
            data = record[body : body + _WIDTHS[kind]]
            body += _WIDTHS[kind]
            if kind == 7:
                values.append(_REAL(data)[0])
            else:
                values.append(int.from_bytes(data, "big", signed=True))
    if body > len(record):
        raise ValueError("a value ends behind the record")
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
