"""Lengths and precisions that the catalog derives from a column's type.

They count in a table's fingerprint, so a schema that was read from a statement or from the log has
them as well: the same table is then the same version, whoever described it.
"""

import re
from dataclasses import replace

from airflow_provider_deltaforge.events.schema import Column, TableSchema

_DIGITS = {"tinyint": 3, "smallint": 5, "mediumint": 7, "int": 10, "bigint": 19}
_REAL_DIGITS = {"float": 12, "double": 22}
TEXT_LENGTHS = {
    "tinytext": 2**8 - 1, "text": 2**16 - 1, "mediumtext": 2**24 - 1, "longtext": 2**32 - 1,
}  # fmt: skip
"""Bytes in the longest value of a text type, the shortest type first."""
_LENGTHS = TEXT_LENGTHS | {
    "tinyblob": 2**8 - 1, "blob": 2**16 - 1, "mediumblob": 2**24 - 1, "longblob": 2**32 - 1,
}  # fmt: skip
BYTES_MAX = {
    "utf8mb4": 4, "utf8mb3": 3, "utf8": 3, "utf16": 4, "utf16le": 4, "utf32": 4, "ucs2": 2,
    "gb18030": 4, "gbk": 2, "gb2312": 2, "big5": 2, "sjis": 2, "cp932": 2, "euckr": 2, "ujis": 3,
    "eucjpms": 3,
}  # fmt: skip
"""Bytes of the longest character; one in all others."""

_ARGUMENTS = re.compile(r"\((\d+)(?:,(\d+))?\)")


def sized(schema: TableSchema, *, mariadb: bool) -> TableSchema:
    """Return a schema with what its columns' types say, in the way of the server's catalog."""
    columns = tuple(sized_column(column, mariadb=mariadb) for column in schema.columns)
    return schema if columns == schema.columns else replace(schema, columns=columns)


def sized_column(column: Column, *, mariadb: bool) -> Column:
    """Return a column with the numbers that follow from its type; known ones stay."""
    precision, scale = _precision(column, mariadb=mariadb)
    length = _length(column)
    return replace(
        column,
        char_max_length=column.char_max_length if column.char_max_length is not None else length,
        numeric_precision=(
            column.numeric_precision if column.numeric_precision is not None else precision
        ),
        numeric_scale=column.numeric_scale if column.numeric_scale is not None else scale,
    )


def _precision(column: Column, *, mariadb: bool) -> tuple[int | None, int | None]:
    """Return precision and scale of a number."""
    kind = column.data_type
    first, second = _arguments(column)
    if kind in _DIGITS:
        # An unsigned number has one digit more; MySQL's catalog says so of BIGINT only.
        more = column.unsigned and (kind == "bigint" or (kind == "mediumint" and mariadb))
        return _DIGITS[kind] + more, 0
    if kind in _REAL_DIGITS:
        return first or _REAL_DIGITS[kind], second
    return (first or 1, None) if kind == "bit" else (None, None)


def _length(column: Column) -> int | None:
    """Return the length of a text or of bytes."""
    kind = column.data_type
    first, _ = _arguments(column)
    if kind in ("binary", "varbinary", "vector") and first is not None:
        return first * (4 if kind == "vector" else 1)
    if kind == "enum":
        return max(map(len, column.labels), default=0)
    if kind == "set":
        return sum(map(len, column.labels)) + max(0, len(column.labels) - 1)
    return _LENGTHS.get(kind)


def _arguments(column: Column) -> tuple[int | None, int | None]:
    """Return the numbers in the type's parentheses."""
    said = _ARGUMENTS.search(column.column_type)
    if said is None:
        return None, None
    return int(said[1]), int(said[2]) if said[2] else None
