"""Table schemas and facts from ``information_schema``, for MySQL and MariaDB.

The servers keep enum and set labels in three-byte UTF-8, so a label with an emoji reads ``?`` in
the catalog; such labels are asked for as values of the column.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.mysql.binlog.versioned_tables import (
    ROW_END,
    ROW_START,
    explicit_period,
    without_key_part,
)
from airflow_provider_deltaforge.sources.mysql.connection import read_head
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition
from airflow_provider_deltaforge.spec.patterns import TableMatcher

SYSTEM_SCHEMAS = frozenset({"mysql", "sys", "information_schema", "performance_schema"})
"""Never captured, whatever the patterns say."""

NO_SUCH_TABLE = frozenset({1146, 1049})
"""Errors of a server that has no such table or database."""

_LOCK_WAIT_S = 10

TRANSACTIONAL_ENGINES = frozenset({"innodb", "rocksdb", "tokudb", "xtradb"})
"""Engines whose rows a consistent view holds still."""

_COLUMNS = """
SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, ORDINAL_POSITION,
       CHARACTER_SET_NAME, COLLATION_NAME, COLUMN_DEFAULT, EXTRA, COLUMN_COMMENT,
       CHARACTER_MAXIMUM_LENGTH, NUMERIC_PRECISION, NUMERIC_SCALE, DATETIME_PRECISION,
       GENERATION_EXPRESSION
  FROM information_schema.COLUMNS
 WHERE TABLE_SCHEMA = %s{by_name}
 ORDER BY TABLE_NAME, ORDINAL_POSITION"""

_UNIQUE_INDEXES = """
SELECT TABLE_NAME, INDEX_NAME, COLUMN_NAME, SUB_PART, NULLABLE, INDEX_TYPE
  FROM information_schema.STATISTICS
 WHERE TABLE_SCHEMA = %s AND NON_UNIQUE = 0{by_name}
 ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX"""

_TABLES = """
SELECT TABLE_NAME, ENGINE, COALESCE(TABLE_ROWS, 0),
       COALESCE(DATA_LENGTH, 0) + COALESCE(INDEX_LENGTH, 0), TABLE_TYPE
  FROM information_schema.TABLES
 WHERE TABLE_SCHEMA = %s AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED'){by_name}
 ORDER BY TABLE_NAME"""

_PRIMARY = "PRIMARY"
_HASHING_ENGINES = {"MEMORY", "HEAP"}
"""Engines whose indexes of hashes need no column of their own."""

_LABEL_ESCAPES = {"0": "\0", "n": "\n", "r": "\r", "Z": "\x1a", "t": "\t", "b": "\b"}


@dataclass(frozen=True, slots=True)
class TableSize:
    """What the catalog knows about one captured table.

    Attributes:
        schema: columns and primary key.
        engine: as the server names it, for example ``InnoDB``.
        rows_estimate: rows, a guess of the server's statistics.
        data_bytes: data and indexes.
    """

    schema: TableSchema
    engine: str
    rows_estimate: int
    data_bytes: int

    @property
    def transactional(self) -> bool:
        """Return whether a consistent view holds this table's rows still."""
        return self.engine.lower() in TRANSACTIONAL_ENGINES


class _IndexPart(NamedTuple):
    """One part of an index, as the catalog describes it; an expression has no column."""

    column: str | None
    prefix: int | None
    nullable: str
    kind: str

    @property
    def whole(self) -> bool:
        """Whether it is a whole column that takes no NULL."""
        return self.column is not None and self.prefix is None and self.nullable != "YES"


def fetch(connection: Any, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run one statement and return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values or None)
        return list(cursor.fetchall())


def load_table(connection: Any, db: str, table: str) -> TableSchema | None:
    """Return a table's schema as it is now; None when there is no such table, or it is a view."""
    facts = _facts(connection, db, table)
    return facts[0].schema if facts else None


def kind_of(connection: Any, db: str, table: str) -> str | None:
    """Return what a name stands for: ``BASE TABLE``, ``SEQUENCE`` …; None for nothing."""
    kinds = fetch(
        connection,
        "SELECT TABLE_TYPE FROM information_schema.TABLES "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        (db, table),
    )
    return str(kinds[0][0]) if kinds else None


def is_transactional(connection: Any, db: str, table: str) -> bool:
    """Return whether a table's engine undoes what is rolled back; False for no table."""
    found = fetch(
        connection,
        "SELECT TRANSACTIONS, SAVEPOINTS FROM information_schema.TABLES "
        "JOIN information_schema.ENGINES USING (ENGINE) "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        (db, table),
    )
    return [tuple(row) for row in found] == [("YES", "YES")]


def load_locked(connection: Any, db: str, table: str) -> tuple[TableSchema | None, LogPosition]:
    """Return a table's schema together with a place in the log at which it looks like that.

    A reader of the table holds off every statement that changes it, so the log's end that is read
    meanwhile lies behind the last one of them and before the next.
    """
    import pymysql

    fetch(connection, f"SET SESSION lock_wait_timeout = {_LOCK_WAIT_S}")
    fetch(connection, "START TRANSACTION READ ONLY")
    try:
        fetch(connection, f"SELECT 1 FROM {quote(db, table)} LIMIT 0")
    except pymysql.err.MySQLError as error:
        if error.args[0] not in NO_SUCH_TABLE:
            raise
    schema = load_table(connection, db, table)
    end = read_head(connection)
    fetch(connection, "ROLLBACK")
    return schema, end


def captured_tables(connection: Any, matcher: TableMatcher) -> list[TableSchema]:
    """Return the schemas of every captured table, by database and name."""
    return [facts.schema for facts in captured_facts(connection, matcher)]


def captured_facts(connection: Any, matcher: TableMatcher) -> list[TableSize]:
    """Return schema, engine and size of every captured table, by database and name."""
    names = fetch(connection, "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA ORDER BY 1")
    found: list[TableSize] = []
    for (db,) in names:
        if db.lower() in SYSTEM_SCHEMAS or not matcher.touches(db):
            continue
        found += [f for f in _facts(connection, db) if matcher.matches(db, f.schema.table)]
    return found


def _facts(connection: Any, db: str, table: str | None = None) -> list[TableSize]:
    """Return the facts of one table, or of all tables of a database."""
    by_name = "" if table is None else " AND TABLE_NAME = %s"
    values = (db,) if table is None else (db, table)
    columns: dict[str, list[Column]] = {}
    for name, *column in fetch(connection, _COLUMNS.format(by_name=by_name), values):
        columns.setdefault(name, []).append(_column(column))
    for name, listed in columns.items():
        columns[name] = [_with_labels(connection, db, name, column) for column in listed]
    unique: dict[str, dict[str, list[_IndexPart]]] = {}
    for name, index, *part in fetch(connection, _UNIQUE_INDEXES.format(by_name=by_name), values):
        unique.setdefault(name, {}).setdefault(index, []).append(_IndexPart(*part))
    found = []
    for name, engine, rows, size, kind in fetch(
        connection, _TABLES.format(by_name=by_name), values
    ):
        if name not in columns:
            continue
        schema = TableSchema(db, None, name, tuple(columns[name]))
        schema = _with_key(connection, schema, engine or "", unique.get(name, {}))
        if kind == "SYSTEM VERSIONED" and explicit_period(schema) is None:
            schema = replace(schema, system_versioned=True)
        schema = without_key_part(schema)
        found.append(TableSize(schema, engine or "", int(rows), int(size)))
    return found


def _column(row: Sequence[Any]) -> Column:
    """Build a column from a row of ``_COLUMNS``, without its table."""
    name, data_type, column_type, nullable, ordinal, charset, collation, default = row[:8]
    extra, comment, length, precision, scale, fraction, expression = row[8:]
    data_type = data_type.lower()
    if expression in (ROW_START, ROW_END):
        extra = f"{extra}, {expression}"
    return Column(
        name=name,
        data_type=data_type,
        column_type=column_type,
        nullable=nullable == "YES",
        ordinal_position=int(ordinal),
        unsigned="unsigned" in column_type.partition(")")[2] or column_type.endswith(" unsigned"),
        charset=charset,
        collation=collation,
        labels=parse_labels(column_type) if data_type in ("enum", "set") else (),
        # MariaDB prints the default NULL as a word, MySQL as a null.
        default_value=None if default == "NULL" else default,
        extra=extra or None,
        comment=comment or None,
        char_max_length=_number(length),
        numeric_precision=_number(precision),
        numeric_scale=_number(scale),
        datetime_precision=_number(fraction),
    )


def _with_key(
    connection: Any, schema: TableSchema, engine: str, unique: Mapping[str, list[_IndexPart]]
) -> TableSchema:
    """Return a schema with its key and what else its UNIQUE indexes, by name, tell."""
    in_memory = engine.upper() in _HASHING_ENGINES
    hashed = {n for n, parts in unique.items() if parts[0].kind == "HASH" and not in_memory}
    schema = replace(
        schema, unique_indexes=bool(unique.keys() - {_PRIMARY}), hash_columns=len(hashed)
    )
    if _PRIMARY in unique:
        return replace(schema, primary_key=tuple(str(part.column) for part in unique[_PRIMARY]))
    virtual = {c.name for c in schema.columns if "VIRTUAL GENERATED" in (c.extra or "").upper()}
    usable = [
        name
        for name, parts in unique.items()
        if name not in hashed and all(part.whole and part.column not in virtual for part in parts)
    ]
    if len(usable) > 1:
        # The catalog does not tell their order, by which the server chooses.
        usable = [n for n in _index_names(connection, schema) if n in usable] or usable
    if not usable:
        return schema
    key = tuple(str(part.column) for part in unique[usable[0]])
    return replace(schema, primary_key=key, implicit_key=True)


def _index_names(connection: Any, schema: TableSchema) -> list[str]:
    """Return the names of a table's indexes in the server's order; none when it is gone."""
    import pymysql

    try:
        listed = fetch(connection, f"SHOW INDEX FROM {quote(schema.db, schema.table)}")
    except pymysql.err.MySQLError as error:
        if error.args[0] not in NO_SUCH_TABLE:
            raise
        return []
    return [str(row[2]) for row in listed]


def _with_labels(connection: Any, db: str, table: str, column: Column) -> Column:
    """Return a column with those labels that the catalog garbles.

    A row of NULLs gives a recursive query the column's type; numbers added to it become labels.
    """
    import pymysql

    garbled = [place for place, label in enumerate(column.labels) if "?" in label]
    if not garbled:
        return column
    numbers = [1 << place if column.data_type == "set" else place + 1 for place in garbled]
    listed = " UNION ALL SELECT ".join(f"{number} AS n" for number in numbers)
    sql = (
        f"WITH RECURSIVE l (label, number) AS (SELECT t.{quote(column.name)}, "
        f"CAST(0 AS UNSIGNED) FROM (SELECT 1) one LEFT JOIN {quote(db, table)} t ON FALSE "
        f"UNION ALL SELECT v.n, v.n FROM l JOIN (SELECT {listed}) v WHERE l.number = 0) "
        "SELECT number, label FROM l WHERE number <> 0"
    )
    try:
        found = {int(number): label for number, label in fetch(connection, sql)}
    except pymysql.err.MySQLError:  # Gone meanwhile, or not ours to read.
        return column
    labels = list(column.labels)
    for place, number in zip(garbled, numbers, strict=True):
        labels[place] = found.get(number) or labels[place]
    return replace(column, labels=tuple(labels))


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def parse_labels(column_type: str) -> tuple[str, ...]:
    """Return the labels of ``enum('a','b')`` or ``set(…)``, in order, quotes and escapes undone."""
    labels: list[str] = []
    text = column_type[column_type.index("(") + 1 :]
    at = 0
    while at < len(text) and text[at] != ")":
        if text[at] != "'":
            at += 1
            continue
        label, at = _parse_label(text, at + 1)
        labels.append(label)
    return tuple(labels)


def _parse_label(text: str, at: int) -> tuple[str, int]:
    """Return the label that begins at ``at``, and the offset behind its closing quote."""
    letters: list[str] = []
    while True:
        letter = text[at]
        if letter == "'":
            if text[at + 1 : at + 2] != "'":
                return "".join(letters), at + 1
            at += 1
        elif letter == "\\":
            at += 1
            letter = _LABEL_ESCAPES.get(text[at], text[at])
        letters.append(letter)
        at += 1


def variables(connection: Any, *names: str) -> Mapping[str, str]:
    """Return global server variables by lower-case name; unknown ones are absent."""
    marks = ", ".join(["%s"] * len(names))
    rows = fetch(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", names)
    return {str(name).lower(): str(value) for name, value in rows}


def log_says_all(connection: Any) -> bool:
    """Return whether the server writes full row metadata, so that the log describes its rows."""
    found = variables(connection, "binlog_row_metadata")
    return found.get("binlog_row_metadata", "").upper() == "FULL"


def quote(*names: str) -> str:
    """Return names as one SQL identifier: ``a``.``b``."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)
