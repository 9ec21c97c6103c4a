"""What the log itself says of a table, as a schema, and whether another source of truth agrees.

The log knows names, types and keys, but neither defaults nor comments. So a table's schema is that
of the catalog or the registry as long as it agrees with the log in everything both know; if it
does not, it describes the table of another time, and the log's own description stands.
"""

from collections.abc import Mapping
from dataclasses import replace

from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.mysql.binlog import table_map as t
from airflow_provider_deltaforge.sources.mysql.binlog.table_map import LogColumn, TableMap
from airflow_provider_deltaforge.sources.mysql.binlog.versioned_tables import as_told
from airflow_provider_deltaforge.sources.mysql.charsets import decode_text
from airflow_provider_deltaforge.sources.mysql.ddl.column_definitions import TEXT_TYPES
from airflow_provider_deltaforge.sources.mysql.ddl.type_sizes import BYTES_MAX, sized_column

CATALOG_TYPES = {
    t.TINY: {"tinyint", "boolean"}, t.SHORT: {"smallint"}, t.INT24: {"mediumint"},
    t.LONG: {"int", "integer"}, t.LONGLONG: {"bigint"}, t.FLOAT: {"float"},
    t.DOUBLE: {"double", "real"}, t.NEWDECIMAL: {"decimal", "numeric"}, t.DATE: {"date"},
    t.TIME2: {"time"}, t.DATETIME2: {"datetime"}, t.TIMESTAMP2: {"timestamp"},
    t.YEAR: {"year"}, t.BIT: {"bit"}, t.ENUM: {"enum"}, t.SET: {"set"},
    t.VARCHAR: {"varchar", "varbinary"}, t.VAR_STRING: {"varchar", "varbinary"},
    t.STRING: {"char", "binary", "uuid", "inet6", "inet4"},
    t.BLOB: {
        "tinytext", "text", "mediumtext", "longtext", "json",
        "tinyblob", "blob", "mediumblob", "longblob",
    },
    t.JSON: {"json"}, t.VECTOR: {"vector"},
    t.OLD_TIMESTAMP: {"timestamp"}, t.OLD_TIME: {"time"}, t.OLD_DATETIME: {"datetime"},
    t.GEOMETRY: {
        "point", "linestring", "polygon", "geometry", "multipoint", "multilinestring",
        "multipolygon", "geometrycollection", "geomcollection",
    },
}  # fmt: skip
"""Names of the catalog for the type codes of the log."""

_PLAIN = {
    t.TINY: "tinyint", t.SHORT: "smallint", t.INT24: "mediumint", t.LONG: "int",
    t.LONGLONG: "bigint", t.FLOAT: "float", t.DOUBLE: "double", t.DATE: "date", t.YEAR: "year",
    t.JSON: "json", t.GEOMETRY: "geometry", t.VECTOR: "vector",
    t.OLD_TIMESTAMP: "timestamp", t.OLD_TIME: "time", t.OLD_DATETIME: "datetime",
}  # fmt: skip
_FRACTIONAL = {t.TIME2: "time", t.DATETIME2: "datetime", t.TIMESTAMP2: "timestamp"}
_NUMERIC = {t.TINY, t.SHORT, t.INT24, t.LONG, t.LONGLONG, t.FLOAT, t.DOUBLE, t.NEWDECIMAL}
_TEXT = {t.VARCHAR, t.VAR_STRING, t.STRING, t.BLOB, t.ENUM, t.SET}
_SIZES = {1: "tiny", 2: "", 3: "medium", 4: "long"}


def schema_of(
    table: TableMap, charsets: Mapping[int, str], told: TableSchema | None
) -> TableSchema | None:
    """Return the schema of a table's rows.

    Args:
        table: what the log says.
        charsets: collation id to character set.
        told: what the registry or the catalog says; None when they say nothing.

    Returns:
        ``told`` if it agrees with the log, else what the log says; None when that has no names.
    """
    if told is not None and agrees(table, charsets, told):
        return told
    if not table.named:
        return None
    columns = tuple(
        _column(column, ordinal, _charset(column, charsets))
        for ordinal, column in enumerate(table.columns, 1)
    )
    names = [column.name for column in columns]
    key = tuple(names[place] for place in table.primary_key or ())
    return TableSchema(table.db, None, table.table, columns, key)


def agrees(table: TableMap, charsets: Mapping[int, str], told: TableSchema) -> bool:
    """Say whether a schema can be that of the table, as far as the log knows it."""
    table = as_told(table, told)
    if len(told.columns) != len(table.columns):
        return False
    names = [known.name for known in told.columns]
    key = table.primary_key
    if key is not None and tuple(names[place] for place in key) != told.primary_key:
        return False
    pairs = zip(table.columns, told.columns, strict=True)
    return all(_same(column, known, _charset(column, charsets)) for column, known in pairs)


def completed(told: TableSchema, table: TableMap, charsets: Mapping[int, str]) -> TableSchema:
    """Return a schema with the character sets that only the log knows.

    A statement leaves them to the table's default, which it need not say.
    """
    table = as_told(table, told)
    if len(told.columns) != len(table.columns):
        return told
    columns = tuple(
        replace(known, charset=_charset(column, charsets))
        if known.charset is None and known.data_type in TEXT_TYPES
        else known
        for column, known in zip(table.columns, told.columns, strict=True)
    )
    return replace(told, columns=columns) if columns != told.columns else told


def _same(column: LogColumn, known: Column, charset: str | None) -> bool:
    if known.data_type not in CATALOG_TYPES.get(column.type, ()):
        return False
    return (
        column.name in (None, known.name)
        and column.nullable == known.nullable
        and (column.type not in _NUMERIC or column.unsigned in (None, known.unsigned))
        and (column.type not in _TEXT or charset in (None, _charset_of(known)))
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
    if code in _FRACTIONAL:
        return known.datetime_precision in (meta, None)
    if code == t.BIT:
        return known.numeric_precision in (meta, None)
    if code == t.BLOB:
        prefix = {"json": "long"}.get(known.data_type, known.data_type)
        return prefix.startswith(_SIZES.get(meta, "")) and (meta != 2 or len(prefix) == 4)
    if code in (t.VARCHAR, t.VAR_STRING, t.STRING) and known.char_max_length is not None:
        return known.char_max_length * BYTES_MAX.get(known.charset or "", 1) == meta
    return True


def _charset(column: LogColumn, charsets: Mapping[int, str]) -> str | None:
    """Return a column's character set, as the log has it; ``binary`` for bytes."""
    if column.collation is None:
        return None
    if column.collation == t.BINARY_COLLATION:
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
    unsigned = bool(column.unsigned) and column.type in _NUMERIC
    decimal = column.type == t.NEWDECIMAL
    bytes_max = BYTES_MAX.get(charset or "", 1)
    sized = column.type in (t.VARCHAR, t.VAR_STRING, t.STRING)
    told = Column(
        name=column.name or "",
        data_type=data_type,
        column_type=shown + " unsigned" * unsigned,
        nullable=column.nullable,
        ordinal_position=ordinal,
        unsigned=unsigned,
        charset=charset if column.type in _TEXT and charset != "binary" else None,
        labels=labels,
        char_max_length=column.meta // bytes_max if sized else None,
        numeric_precision=column.meta >> 8 if decimal else None,
        numeric_scale=column.meta & 0xFF if decimal else None,
        datetime_precision=column.meta if column.type in _FRACTIONAL else None,
    )
    return sized_column(told, mariadb=False)


def _type(column: LogColumn, charset: str | None) -> tuple[str, str]:
    """Return a column's base type and full type, in the words of the catalog."""
    code, meta = column.type, column.meta
    if code in _PLAIN:
        return _PLAIN[code], _PLAIN[code]
    if code in _FRACTIONAL:
        return _FRACTIONAL[code], f"{_FRACTIONAL[code]}({meta})" if meta else _FRACTIONAL[code]
    if code in (t.NEWDECIMAL, t.BIT):
        decimal = code == t.NEWDECIMAL
        return (
            ("decimal", f"decimal({meta >> 8},{meta & 0xFF})")
            if decimal
            else ("bit", f"bit({meta})")
        )
    if code in (t.ENUM, t.SET):
        return ("enum" if code == t.ENUM else "set"), ""
    kind = "binary" if charset == "binary" else "char"
    if code == t.BLOB:
        name = _SIZES.get(meta, "long") + ("blob" if kind == "binary" else "text")
        return name, name
    name = kind if code == t.STRING else f"var{kind}"
    return name, f"{name}({meta // BYTES_MAX.get(charset or '', 1)})"
