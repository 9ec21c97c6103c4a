"""Table maps: a table's columns as the log describes them, completed from the catalog.

The parts a log always has are column types and their parameters; ``binlog_row_metadata=FULL``
adds names, signedness, character sets, labels and the primary key.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.sources.mysql.column_types import (
    BIT,
    BLOB,
    CHARACTER_CODES,
    ENUM,
    GEOMETRY,
    LONGLONG,
    METADATA_BYTES,
    NEWDECIMAL,
    SET,
    SIGNED_CODES,
    STRING,
    TINY,
    VARCHAR,
    YEAR,
)

_COMPRESSED_BLOB, _COMPRESSED_VARCHAR = 140, 141

BINARY_COLLATION = 63
_SEQUENCE = {
    "next_not_cached_value": LONGLONG, "minimum_value": LONGLONG, "maximum_value": LONGLONG,
    "start_value": LONGLONG, "increment": LONGLONG, "cache_size": LONGLONG, "cycle_option": TINY,
    "cycle_count": LONGLONG,
}  # fmt: skip
"""The columns of the table that a sequence of MariaDB is to the log."""
_METADATA_BYTES = {**METADATA_BYTES, _COMPRESSED_BLOB: 1, _COMPRESSED_VARCHAR: 2}
_NUMERIC_CODES = SIGNED_CODES | {YEAR}
_HASH_NAME = re.compile(r"DB_ROW_HASH_\d+")


@dataclass(frozen=True, slots=True)
class LogColumn:
    """One column as the log describes it; None where the log is silent.

    Attributes:
        type: the server's type code; enum and set are distinguished from strings.
        meta: its parameter: length, precision and scale, fraction digits, prefix bytes.
        collation: collation id of text; 63 is binary.
        labels: of an enum or set, in the bytes of its character set.
        nullable: whether it takes NULL; the log always says.
        compressed: MariaDB compresses its values one by one.
    """

    type: int
    meta: int
    unsigned: bool | None = None
    collation: int | None = None
    name: str | None = None
    labels: tuple[bytes, ...] | None = None
    nullable: bool = True
    compressed: bool = False


@dataclass(frozen=True, slots=True)
class TableMap:
    """One table map event."""

    db: str
    table: str
    columns: tuple[LogColumn, ...]
    primary_key: tuple[int, ...] | None = None
    """Column indexes in key order; None when the log does not say."""

    @property
    def named(self) -> bool:
        """Whether the log carries column names."""
        return all(column.name is not None for column in self.columns)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        part = self.data[self.at : self.at + size]
        if len(part) != size:
            raise SchemaError("a table map of the log is cut short; the log is damaged")
        self.at += size
        return part

    def number(self) -> int:
        """Read a length-encoded integer."""
        first = self.take(1)[0]
        size = {252: 2, 253: 3, 254: 8}.get(first, 0)
        return int.from_bytes(self.take(size), "little") if size else first

    def text(self) -> bytes:
        return self.take(self.number())

    def rest(self) -> bool:
        return self.at < len(self.data)


def table_name(body: bytes) -> tuple[str, str]:
    """Return database and name of a table map event's table, from behind the event's flags."""
    return _names(_Reader(body))


def parse_columns(body: bytes) -> tuple[LogColumn, ...]:
    """Return what every log says of a table map event's columns.

    Raises:
        SchemaError: the event is damaged.
    """
    reader = _Reader(body)
    _names(reader)
    return tuple(_columns(reader))


def _names(reader: _Reader) -> tuple[str, str]:
    db = reader.take(reader.take(1)[0] + 1)[:-1].decode("utf-8", "replace")
    return db, reader.take(reader.take(1)[0] + 1)[:-1].decode("utf-8", "replace")


def _columns(reader: _Reader) -> list[LogColumn]:
    types = reader.take(reader.number())
    parameters = _Reader(reader.text())
    columns = [_column(code, parameters) for code in types]
    nulls = reader.take((len(types) + 7) // 8)
    return [
        replace(column, nullable=bool(nulls[n >> 3] & (1 << (n & 7))))
        for n, column in enumerate(columns)
    ]


def parse_table_map(body: bytes, *, mariadb: bool = False) -> TableMap:
    """Read a table map event from behind its flags.

    Args:
        body: without header, table id, flags and checksum.
        mariadb: counts geometry among the columns that have a character set.

    Raises:
        SchemaError: the event is damaged.
    """
    reader = _Reader(body)
    db, table = _names(reader)
    columns = _columns(reader)
    primary_key: tuple[int, ...] | None = None
    while reader.rest():
        field = reader.take(1)[0]
        value = _Reader(reader.text())
        if field in (8, 9):
            primary_key = _key(value, with_prefix=field == 9)
        else:
            columns = _described(columns, field, value, mariadb=mariadb)
    if primary_key is None and columns and columns[0].name is not None:
        primary_key = ()
    return TableMap(db, table, tuple(columns), primary_key)


def may_be_sequence(table: TableMap) -> bool:
    """Return whether a table has the columns of a sequence, as far as the log tells."""
    if [column.type for column in table.columns] != list(_SEQUENCE.values()):
        return False
    return not any(column.nullable for column in table.columns) and all(
        column.name in (None, name) for column, name in zip(table.columns, _SEQUENCE, strict=True)
    )


def without_hashes(table: TableMap, listed: Collection[str], count: int) -> TableMap:
    """Return a map without MariaDB's own last columns, which hold the hashes of long UNIQUE values.

    Args:
        table: what the log says.
        listed: names of the columns that the catalog lists, if it is known.
        count: how many such columns there are, if the catalog is known; a log with names shows it.
    """
    seen = len(table.columns)
    if table.named:
        while seen > 1 and _is_hash(table.columns[seen - 1], listed):
            seen -= 1
    elif seen >= len(listed) + count:
        last = table.columns[seen - count :] if count else ()
        seen -= count * all(column.type == LONGLONG for column in last)
    return table if seen == len(table.columns) else replace(table, columns=table.columns[:seen])


def _is_hash(column: LogColumn, listed: Collection[str]) -> bool:
    name = column.name or ""
    own = column.type == LONGLONG and _HASH_NAME.fullmatch(name) is not None
    return own and name not in listed


def _column(code: int, parameters: _Reader) -> LogColumn:
    data = parameters.take(_METADATA_BYTES.get(code, 0))
    if code in (STRING, ENUM, SET):
        real, length = data
        if real in (ENUM, SET):
            return LogColumn(real, length)
        # Lengths above 255 hide two bits in the type, inverted.
        return LogColumn(STRING, (((real & 0x30) ^ 0x30) << 4) | length)
    if code == NEWDECIMAL:
        return LogColumn(code, data[0] << 8 | data[1])
    if code == BIT:
        return LogColumn(code, data[1] * 8 + data[0])
    meta = int.from_bytes(data, "little")
    if code in (_COMPRESSED_BLOB, _COMPRESSED_VARCHAR):
        # A VARCHAR is one byte longer than the column, for the head of what is compressed.
        is_blob = code == _COMPRESSED_BLOB
        return LogColumn(BLOB if is_blob else VARCHAR, meta - (not is_blob), compressed=True)
    return LogColumn(code, meta)


def _key(value: _Reader, *, with_prefix: bool) -> tuple[int, ...]:
    numbers = []
    while value.rest():
        numbers.append(value.number())
        if with_prefix:
            value.number()
    return tuple(numbers)


def _described(
    columns: list[LogColumn], field: int, value: _Reader, *, mariadb: bool
) -> list[LogColumn]:
    """Return the columns with one field of the optional metadata applied."""
    character = CHARACTER_CODES | {GEOMETRY} if mariadb else CHARACTER_CODES
    if field == 1:
        bits = value.data
        numeric = [i for i, column in enumerate(columns) if column.type in _NUMERIC_CODES]
        for n, i in enumerate(numeric):
            unsigned = bool(bits[n >> 3] & (0x80 >> (n & 7)))
            columns[i] = replace(columns[i], unsigned=unsigned)
    elif field in (2, 3, 10, 11):
        kinds = character if field in (2, 3) else {ENUM, SET}
        _collate(columns, [i for i, c in enumerate(columns) if c.type in kinds], field, value)
    elif field == 4:
        columns = [replace(column, name=value.text().decode()) for column in columns]
    elif field in (5, 6):
        kind = SET if field == 5 else ENUM
        for i, column in enumerate(columns):
            if column.type == kind:
                labels = tuple(value.text() for _ in range(value.number()))
                columns[i] = replace(column, labels=labels)
    return columns


def _collate(columns: list[LogColumn], places: list[int], field: int, value: _Reader) -> None:
    """Apply a default collation with its exceptions (2, 10) or one collation per column (3, 11)."""
    if field in (3, 11):
        for i in places:
            columns[i] = replace(columns[i], collation=value.number())
        return
    default = value.number()
    for i in places:
        columns[i] = replace(columns[i], collation=default)
    while value.rest():
        i = places[value.number()]
        columns[i] = replace(columns[i], collation=value.number())
