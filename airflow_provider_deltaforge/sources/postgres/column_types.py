"""The column types of PostgreSQL: one row for each whose JSON or schema needs more than its text.

A type that a server adds is text unless it has a row here. One whose values the kernels know is one
row: stream and snapshot, which both read the server's text, the schemas and the columns of
arrays and domains follow. Only its Avro type is elsewhere (``encodings.avro.column_types``),
because encodings know no source; without one it is text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from airflow_provider_deltaforge.sources.postgres import column_kinds as k

_HEADER = 4
"""Bytes of a value's head, which modifiers count."""
_BITS_MAX = 64


@dataclass(frozen=True, slots=True)
class PostgresType:
    """One type.

    Attributes:
        name: as ``pg_type`` has it.
        oid: built-in ones never change; 0 for a type of an extension.
        kind: how the server's text becomes JSON, see ``column_kinds``.
        modifier: what the type's modifier says: of a text its length in characters, of a number
            its digits, of bits how many they are.
        printer: the function that makes an extension's text, which identifies the type.
    """

    name: str
    oid: int
    kind: int
    modifier: Literal["", "length", "precision", "bits"] = ""
    printer: str = ""


TYPES = (
    PostgresType("bool", 16, k.BOOL),
    PostgresType("bytea", 17, k.BYTEA),
    PostgresType("int8", 20, k.NUMBER),
    PostgresType("int2", 21, k.NUMBER),
    PostgresType("int2vector", 22, k.VECTOR),
    PostgresType("int4", 23, k.NUMBER),
    PostgresType("oid", 26, k.NUMBER),
    PostgresType("oidvector", 30, k.VECTOR),
    PostgresType("json", 114, k.JSON),
    PostgresType("float4", 700, k.FLOAT),
    PostgresType("float8", 701, k.FLOAT),
    PostgresType("bpchar", 1042, k.TEXT, "length"),
    PostgresType("varchar", 1043, k.TEXT, "length"),
    PostgresType("date", 1082, k.PLAIN),
    PostgresType("time", 1083, k.PLAIN),
    PostgresType("timestamp", 1114, k.TIMESTAMP),
    PostgresType("timestamptz", 1184, k.TIMESTAMPTZ),
    PostgresType("timetz", 1266, k.TIMETZ),
    PostgresType("bit", 1560, k.BIT, "bits"),
    PostgresType("numeric", 1700, k.PLAIN, "precision"),
    PostgresType("uuid", 2950, k.PLAIN),
    PostgresType("jsonb", 3802, k.JSON),
    PostgresType("hstore", 0, k.HSTORE, printer="hstore_out"),
)

BY_OID: Mapping[int, PostgresType] = {row.oid: row for row in TYPES if row.oid}
BY_PRINTER: Mapping[str, PostgresType] = {row.printer: row for row in TYPES if row.printer}


def kind_of(oid: int, typmod: int, printer: str, *, decimal_numbers: bool) -> int:
    """Return how a type's text becomes JSON; that of an unknown type is text.

    Args:
        oid: of the type, no domain and no array.
        typmod: its modifier, -1 without one.
        printer: the function that makes its text.
        decimal_numbers: ``numeric`` becomes a JSON number, not a string.
    """
    row = BY_OID.get(oid) or BY_PRINTER.get(printer)
    if row is None:
        return k.TEXT
    if row.modifier == "bits":
        if not 1 <= typmod <= _BITS_MAX:
            return k.TEXT
        return k.BIT1 if typmod == 1 else row.kind
    if row.modifier == "precision" and decimal_numbers:
        # As floats are: digits as they are, but NaN and the infinities in quotes.
        return k.FLOAT
    return row.kind


def length_of(oid: int, typmod: int) -> int | None:
    """Return how many characters a text may have, None if its type does not say it."""
    row = BY_OID.get(oid)
    return typmod - _HEADER if row and row.modifier == "length" and typmod > 0 else None


def precision_of(oid: int, typmod: int) -> tuple[int | None, int | None]:
    """Return a number's precision and its scale, which may be negative, where its type has them."""
    row = BY_OID.get(oid)
    if row is None or row.modifier != "precision" or typmod <= 0:
        return None, None
    digits = typmod - _HEADER
    return digits >> 16, ((digits & 0x7FF) ^ 1024) - 1024
