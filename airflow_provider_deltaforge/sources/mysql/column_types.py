"""The column types of MySQL and MariaDB: one row each, which every part of the source looks up.

A type that a server adds is one row here if the kernels know the kind of its values: the log's
decoder, the schemas made of the log, the grammar of statements, the SELECT of a snapshot and the
bounds of its chunks follow; another name of a type is one of its ``synonyms``. Its
values, which tests hold against servers, are in ``tests/sources/mysql/type_matrix.py``. Only its
Avro type is elsewhere (``encodings.avro.column_types``), because encodings know no source; without
one it is text.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.mysql.binlog import column_kinds as k


class LogCode(int):
    """The log's number for a type; several types may share it.

    Attributes:
        metadata: bytes of its parameter in a table map.
    """

    metadata: int

    def __new__(cls, code: int, metadata: int = 0) -> "LogCode":
        """Make a code."""
        made = super().__new__(cls, code)
        made.metadata = metadata
        return made


TINY, SHORT, INT24, LONG, LONGLONG = map(LogCode, (1, 2, 9, 3, 8))
FLOAT, DOUBLE, NEWDECIMAL, BIT = LogCode(4, 1), LogCode(5, 1), LogCode(246, 2), LogCode(16, 2)
DATE, YEAR = LogCode(10), LogCode(13)
TIMESTAMP2, DATETIME2, TIME2 = LogCode(17, 1), LogCode(18, 1), LogCode(19, 1)
OLD_TIMESTAMP, OLD_TIME, OLD_DATETIME = LogCode(7), LogCode(11), LogCode(12)
VARCHAR, VAR_STRING, STRING = LogCode(15, 2), LogCode(253, 2), LogCode(254, 2)
ENUM, SET = LogCode(247, 2), LogCode(248, 2)
BLOB, JSON, GEOMETRY, VECTOR = LogCode(252, 1), LogCode(245, 1), LogCode(255, 1), LogCode(242, 1)


@dataclass(frozen=True, slots=True)
class ColumnType:
    """One type, or an older form of one that the log still has.

    Attributes:
        name: as the catalog prints it.
        codes: the log's numbers for it.
        kind: how its values lie in the log, see ``column_kinds``; their JSON follows from it.
        synonyms: other names of it in statements, or in one server's catalog.
        size: bytes of a value of fixed size, or of an element.
        digits: the catalog's precision of a number.
        width: the width that MariaDB prints behind a whole number's name.
        length: bytes in the longest value, where the type alone says it.
        mariadb: the name in MariaDB's catalog, where that is a synonym.
    """

    name: str
    codes: tuple[LogCode, ...]
    kind: int
    synonyms: tuple[str, ...] = ()
    size: int = 0
    digits: int = 0
    width: int = 0
    length: int | None = None
    mariadb: str | None = None

    def name_in(self, *, mariadb: bool) -> str:
        """Return the name that one server's catalog prints."""
        return self.mariadb if mariadb and self.mariadb else self.name


TYPES = (
    ColumnType("tinyint", (TINY,), k.INT, ("int1", "bool", "boolean"), 1, 3, 4),
    ColumnType("smallint", (SHORT,), k.INT, ("int2",), 2, 5, 6),
    ColumnType("mediumint", (INT24,), k.INT, ("int3", "middleint"), 3, 7, 9),
    ColumnType("int", (LONG,), k.INT, ("int4", "integer"), 4, 10, 11),
    ColumnType("bigint", (LONGLONG,), k.INT, ("int8",), 8, 19, 20),
    ColumnType("float", (FLOAT,), k.FLOAT, ("float4",), digits=12),
    ColumnType("double", (DOUBLE,), k.DOUBLE, ("float8", "real"), digits=22),
    ColumnType("decimal", (NEWDECIMAL,), k.DECIMAL, ("dec", "numeric", "fixed")),
    ColumnType("bit", (BIT,), k.BIT),
    ColumnType("date", (DATE,), k.DATE),
    ColumnType("year", (YEAR,), k.YEAR),
    ColumnType("time", (TIME2,), k.TIME),
    ColumnType("time", (OLD_TIME,), k.OLD_TIME),
    ColumnType("datetime", (DATETIME2,), k.DATETIME),
    ColumnType("datetime", (OLD_DATETIME,), k.OLD_DATETIME),
    ColumnType("timestamp", (TIMESTAMP2,), k.TIMESTAMP),
    ColumnType("timestamp", (OLD_TIMESTAMP,), k.OLD_TIMESTAMP),
    ColumnType("char", (STRING,), k.TEXT, ("character", "nchar")),
    ColumnType("varchar", (VARCHAR, VAR_STRING), k.TEXT, ("varcharacter", "nvarchar")),
    ColumnType("tinytext", (BLOB,), k.TEXT, length=2**8 - 1),
    ColumnType("text", (BLOB,), k.TEXT, length=2**16 - 1),
    ColumnType("mediumtext", (BLOB,), k.TEXT, ("long",), length=2**24 - 1),
    ColumnType("longtext", (BLOB,), k.TEXT, length=2**32 - 1),
    ColumnType("binary", (STRING,), k.BINARY),
    ColumnType("varbinary", (VARCHAR, VAR_STRING), k.BINARY),
    ColumnType("tinyblob", (BLOB,), k.BINARY, length=2**8 - 1),
    ColumnType("blob", (BLOB,), k.BINARY, length=2**16 - 1),
    ColumnType("mediumblob", (BLOB,), k.BINARY, length=2**24 - 1),
    ColumnType("longblob", (BLOB,), k.BINARY, length=2**32 - 1),
    ColumnType("enum", (ENUM,), k.ENUM),
    ColumnType("set", (SET,), k.SET),
    ColumnType("json", (JSON,), k.JSON),
    ColumnType("json", (BLOB,), k.TEXT),  # MariaDB's longtext, under its other name.
    ColumnType("vector", (VECTOR,), k.BINARY, size=4),
    ColumnType("geometry", (GEOMETRY,), k.GEOMETRY),
    ColumnType("point", (GEOMETRY,), k.GEOMETRY),
    ColumnType("linestring", (GEOMETRY,), k.GEOMETRY),
    ColumnType("polygon", (GEOMETRY,), k.GEOMETRY),
    ColumnType("multipoint", (GEOMETRY,), k.GEOMETRY),
    ColumnType("multilinestring", (GEOMETRY,), k.GEOMETRY),
    ColumnType("multipolygon", (GEOMETRY,), k.GEOMETRY),
    ColumnType(
        "geomcollection",
        (GEOMETRY,),
        k.GEOMETRY,
        ("geometrycollection",),
        mariadb="geometrycollection",
    ),
    ColumnType("uuid", (STRING,), k.UUID, size=16),
    ColumnType("inet6", (STRING,), k.INET, size=16),
    ColumnType("inet4", (STRING,), k.INET, size=4),
    ColumnType("xmltype", (), k.TEXT),  # Its form in the log is not known: copied, not streamed.
)
"""The log alone means the first of the types that share a code; a name means its first form."""

OLD_KINDS = (k.OLD_TIMESTAMP, k.OLD_TIME, k.OLD_DATETIME)
"""Kinds of MySQL 5.5 and MariaDB 5.3."""

BY_NAME: Mapping[str, ColumnType] = {
    name: row for row in reversed(TYPES) for name in (row.name, *row.synonyms)
}
"""Types by name and synonym."""

BY_CODE: Mapping[int, tuple[ColumnType, ...]] = {
    code: tuple(row for row in TYPES if code in row.codes)
    for code in dict.fromkeys(code for row in TYPES for code in row.codes)
}
"""Types by the log's number."""

METADATA_BYTES: Mapping[int, int] = {
    code: code.metadata for row in TYPES for code in row.codes if code.metadata
}
SIGNED_CODES = frozenset(
    code for row in TYPES for code in row.codes if row.kind in (k.INT, k.FLOAT, k.DOUBLE, k.DECIMAL)
)
"""Codes of numbers that may be unsigned."""

DATED = frozenset(r.name for r in TYPES if r.kind in (k.DATE, k.DATETIME, k.TIMESTAMP))
"""Types whose values begin with a day."""

CHARACTER_CODES = frozenset(c for r in TYPES if r.kind == k.TEXT for c in r.codes)
"""Codes of texts in a character set, which is ``binary`` for bytes."""

TEXT_TYPES = frozenset(
    row.name for row in BY_NAME.values() if row.kind in (k.TEXT, k.ENUM, k.SET) and row.codes
)
"""Names of the types whose values are in a character set."""

TEXT_LENGTHS = {row.name: row.length for row in TYPES if row.kind == k.TEXT and row.length}
"""Bytes in the longest value of a text type, the shortest type first."""

BYTES_TYPES = {
    text.name: row.name
    for text in TYPES
    for row in TYPES
    if (text.kind, row.kind) == (k.TEXT, k.BINARY)
    and (text.codes, text.length) == (row.codes, row.length)
}
"""What a text type becomes with the character set ``binary``."""

_ARGUMENTS = re.compile(r"\((\d+)(?:,(\d+))?\)")


def kind_of(code: int) -> int | None:
    """Return the kind of a type of the log, that of the first one of a code; None: unknown."""
    rows = BY_CODE.get(code)
    return rows[0].kind if rows else None


def names_of(code: int) -> frozenset[str]:
    """Return what a catalog may call a type of the log; nothing for an unknown one."""
    rows = BY_CODE.get(code, ())
    return frozenset(name for row in rows for name in (row.name, *row.synonyms))


def type_in_log(code: int, meta: int, *, binary: bool) -> ColumnType:
    """Return the type that the log alone describes.

    Args:
        code: the log's number, a known one.
        meta: its parameter; of texts and blobs the bytes of a value's length.
        binary: its character set is ``binary``.
    """
    rows = BY_CODE[code]
    kind = k.BINARY if binary else k.TEXT
    longest = (1 << 8 * meta) - 1 if meta <= 4 else None
    fitting = [row for row in rows if row.kind == kind and row.length in (None, longest)]
    return (fitting or rows)[0]


def sized(schema: TableSchema, *, mariadb: bool) -> TableSchema:
    """Return a schema with what its columns' types say, in the way of the server's catalog.

    Lengths and precisions count in a table's fingerprint: the same table is the same version, no
    matter whether the catalog, a statement or the log described it.
    """
    columns = tuple(sized_column(column, mariadb=mariadb) for column in schema.columns)
    return schema if columns == schema.columns else replace(schema, columns=columns)


def sized_column(column: Column, *, mariadb: bool) -> Column:
    """Return a column with the numbers that follow from its type; known ones stay."""
    precision, scale = _precision(column, mariadb=mariadb)
    derived: dict[str, Any] = {
        "char_max_length": _length(column),
        "numeric_precision": precision,
        "numeric_scale": scale,
    }
    missing = {name: value for name, value in derived.items() if getattr(column, name) is None}
    return replace(column, **missing)


def _precision(column: Column, *, mariadb: bool) -> tuple[int | None, int | None]:
    """Return precision and scale of a number."""
    row = BY_NAME.get(column.data_type)
    first, second = _arguments(column)
    if row is None or not (row.digits or row.kind == k.BIT):
        return None, None
    if row.kind == k.INT:
        # An unsigned number has one digit more; MySQL's catalog says so of BIGINT only.
        more = column.unsigned and (LONGLONG in row.codes or (INT24 in row.codes and mariadb))
        return row.digits + more, 0
    return (first or 1, None) if row.kind == k.BIT else (first or row.digits, second)


def _length(column: Column) -> int | None:
    """Return the length of a text or of bytes."""
    row = BY_NAME.get(column.data_type)
    first, _ = _arguments(column)
    if row is None:
        return None
    if row.kind == k.BINARY and first is not None:
        return first * (row.size or 1)
    if row.kind == k.ENUM:
        return max(map(len, column.labels), default=0)
    if row.kind == k.SET:
        return sum(map(len, column.labels)) + max(0, len(column.labels) - 1)
    return row.length


def _arguments(column: Column) -> tuple[int | None, int | None]:
    """Return the numbers in the type's parentheses."""
    found = _ARGUMENTS.search(column.column_type)
    if found is None:
        return None, None
    return int(found[1]), int(found[2]) if found[2] else None
