"""A table's schema as the log describes it, and whether another description agrees with it.

The log knows names, types and keys, but neither defaults nor comments. So a table's schema is that
of the catalog or the registry as long as it agrees with the log in everything both know; if it
does not, it describes the table of another time, and the log's own description counts.
"""

from collections.abc import Mapping
from dataclasses import replace

from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.mysql import column_types as t
from airflow_provider_deltaforge.sources.mysql.binlog import column_kinds as k
from airflow_provider_deltaforge.sources.mysql.binlog.table_map import (
    BINARY_COLLATION,
    LogColumn,
    TableMap,
)
from airflow_provider_deltaforge.sources.mysql.binlog.versioned_tables import as_listed
from airflow_provider_deltaforge.sources.mysql.charsets import BYTES_MAX, decode_text

_FRACTIONAL = (k.TIME, k.DATETIME, k.TIMESTAMP)
_SIZED_TEXT = (t.VARCHAR, t.VAR_STRING, t.STRING)
_WITH_CHARSET = t.CHARACTER_CODES | {t.ENUM, t.SET}


def schema_of(
    table: TableMap, charsets: Mapping[int, str], schema: TableSchema | None
) -> TableSchema | None:
    """Return the schema of a table's rows.

    Args:
        table: what the log says.
        charsets: collation id to character set.
        schema: from the registry or the catalog; None when they have none.

    Returns:
        ``schema`` if it agrees with the log, else what the log describes; None without names in it.
    """
    if schema is not None and agrees(table, charsets, schema):
        return schema
    if not table.named:
        return None
    columns = tuple(
        _column(column, ordinal, _charset(column, charsets))
        for ordinal, column in enumerate(table.columns, 1)
    )
    names = [column.name for column in columns]
    key = tuple(names[place] for place in table.primary_key or ())
    return TableSchema(table.db, None, table.table, columns, key)


def agrees(table: TableMap, charsets: Mapping[int, str], schema: TableSchema) -> bool:
    """Return whether a schema can be that of the table, as far as the log knows it."""
    table = as_listed(table, schema)
    if len(schema.columns) != len(table.columns):
        return False
    names = [known.name for known in schema.columns]
    key = table.primary_key
    if key is not None and tuple(names[place] for place in key) != schema.primary_key:
        return False
    pairs = zip(table.columns, schema.columns, strict=True)
    return all(_same(column, known, _charset(column, charsets)) for column, known in pairs)


def completed(schema: TableSchema, table: TableMap, charsets: Mapping[int, str]) -> TableSchema:
    """Return a schema with the character sets that only the log knows.

    A statement leaves them to the table's default, which it need not say.
    """
    table = as_listed(table, schema)
    if len(schema.columns) != len(table.columns):
        return schema
    columns = tuple(
        replace(known, charset=_charset(column, charsets))
        if known.charset is None and known.data_type in t.TEXT_TYPES
        else known
        for column, known in zip(table.columns, schema.columns, strict=True)
    )
    return replace(schema, columns=columns) if columns != schema.columns else schema


def _same(column: LogColumn, known: Column, charset: str | None) -> bool:
    if known.data_type not in t.names_of(column.type):
        return False
    return (
        column.name in (None, known.name)
        and column.nullable == known.nullable
        and (column.type not in t.SIGNED_CODES or column.unsigned in (None, known.unsigned))
        and (column.type not in _WITH_CHARSET or charset in (None, _charset_of(known)))
        and _same_labels(column, known, charset)
        and _same_size(column, known)
    )


def _same_labels(column: LogColumn, known: Column, charset: str | None) -> bool:
    if column.labels is None:
        return True
    labels = [decode_text(label, charset or "utf8mb4") for label in column.labels]
    # The catalog prints a question mark for what three bytes of UTF-8 cannot say.
    return len(labels) == len(known.labels) and all(
        mine == other or "?" in other for mine, other in zip(labels, known.labels, strict=True)
    )


def _same_size(column: LogColumn, known: Column) -> bool:
    """Compare lengths and precisions; what the catalog does not say counts as the same."""
    code, meta = column.type, column.meta
    if code == t.NEWDECIMAL:
        sizes = (meta >> 8, meta & 0xFF)
        return (known.numeric_precision, known.numeric_scale) in (sizes, (None, None))
    if t.kind_of(code) in _FRACTIONAL:
        return known.datetime_precision in (meta, None)
    if code == t.BIT:
        return known.numeric_precision in (meta, None)
    if code == t.BLOB:
        longest = t.BY_NAME[known.data_type].length or 2**32 - 1
        return longest == (1 << 8 * meta) - 1
    if code in _SIZED_TEXT and known.char_max_length is not None:
        return known.char_max_length * BYTES_MAX.get(known.charset or "", 1) == meta
    return True


def _charset(column: LogColumn, charsets: Mapping[int, str]) -> str | None:
    """Return a column's character set, as the log has it; ``binary`` for bytes."""
    if column.collation is None:
        return None
    if column.collation == BINARY_COLLATION:
        return "binary"
    return _plain(charsets.get(column.collation, ""))


def _charset_of(known: Column) -> str:
    return _plain(known.charset or "binary")


def _plain(charset: str) -> str:
    return "utf8mb3" if charset == "utf8" else charset


def _column(column: LogColumn, ordinal: int, charset: str | None) -> Column:
    data_type, shown = _type(column, charset)
    labels: tuple[str, ...] = ()
    if column.labels is not None:
        labels = tuple(decode_text(label, charset or "utf8mb4") for label in column.labels)
        listed = ",".join("'" + label.replace("'", "''") + "'" for label in labels)
        shown = f"{data_type}({listed})"
    unsigned = bool(column.unsigned) and column.type in t.SIGNED_CODES
    decimal = column.type == t.NEWDECIMAL
    fractional = t.kind_of(column.type) in _FRACTIONAL
    bytes_max = BYTES_MAX.get(charset or "", 1)
    sized = column.type in _SIZED_TEXT
    described = Column(
        name=column.name or "",
        data_type=data_type,
        column_type=shown + " unsigned" * unsigned,
        nullable=column.nullable,
        ordinal_position=ordinal,
        unsigned=unsigned,
        charset=charset if column.type in _WITH_CHARSET and charset != "binary" else None,
        labels=labels,
        char_max_length=column.meta // bytes_max if sized else None,
        numeric_precision=column.meta >> 8 if decimal else None,
        numeric_scale=column.meta & 0xFF if decimal else None,
        datetime_precision=column.meta if fractional else None,
    )
    return t.sized_column(described, mariadb=False)


def _type(column: LogColumn, charset: str | None) -> tuple[str, str]:
    """Return a column's base type and full type, in the words of the catalog."""
    code, meta = column.type, column.meta
    row = t.type_in_log(code, meta, binary=charset == "binary")
    shown = row.name
    if row.kind == k.DECIMAL:
        shown += f"({meta >> 8},{meta & 0xFF})"
    elif row.kind == k.BIT or (row.kind in _FRACTIONAL and meta):
        shown += f"({meta})"
    elif code in _SIZED_TEXT:
        shown += f"({meta // BYTES_MAX.get(charset or '', 1)})"
    return row.name, shown
