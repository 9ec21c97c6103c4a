"""The tables and triggers of the mode ``triggers``, as SQL.

Each captured table has a shadow with its images' columns, without any type, so that every value
is kept as it is. One counter numbers the changes of all tables, because writers take turns: its
order is the order of commits.
"""

from collections.abc import Iterable, Iterator, Mapping

from airflow_provider_deltaforge.sources.turso.files import Database, quoted
from airflow_provider_deltaforge.sources.turso.tables import CapturedTables, TursoTable

SEQUENCE = "_df_sequence"
CLEANED = "_df_cleaned"

_SHADOW = "_df_cdc_"
_NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
_EVENTS = {"c": "INSERT", "u": "UPDATE", "d": "DELETE"}


def shadow_name(table: str) -> str:
    """Return the name of a table's shadow."""
    return f"{_SHADOW}{table}"


def image_columns(table: TursoTable) -> list[str]:
    """Return the shadow's columns that hold the images: before, then after."""
    return [f"{image}_{name}" for image in "ba" for name in table.columns]


def common_sql() -> Iterator[str]:
    """Yield what all tables share."""
    yield (
        f"CREATE TABLE IF NOT EXISTS {SEQUENCE} "
        "(id INTEGER PRIMARY KEY CHECK (id = 1), last INTEGER NOT NULL)"
    )
    yield f"INSERT OR IGNORE INTO {SEQUENCE} VALUES (1, 0)"
    yield (
        f"CREATE TABLE IF NOT EXISTS {CLEANED} "
        "(table_name TEXT PRIMARY KEY, change_id INTEGER NOT NULL)"
    )


def table_sql(table: TursoTable) -> Iterator[str]:
    """Yield what one table needs; an older shadow of it goes first."""
    shadow = quoted(shadow_name(table.name))
    yield from drop_sql(table.name)
    columns = ", ".join(quoted(name) for name in image_columns(table))
    yield (
        f"CREATE TABLE {shadow} "
        f"(change_id INTEGER PRIMARY KEY, change_time INTEGER, op TEXT, {columns})"
    )
    for op, event in _EVENTS.items():
        before = ", ".join("NULL" if op == "c" else f"OLD.{quoted(n)}" for n in table.columns)
        after = ", ".join("NULL" if op == "d" else f"NEW.{quoted(n)}" for n in table.columns)
        yield (
            f"CREATE TRIGGER {_trigger(table.name, op)} AFTER {event} ON {quoted(table.name)} "
            f"BEGIN UPDATE {SEQUENCE} SET last = last + 1; "
            f"INSERT INTO {shadow} SELECT last, {_NOW}, '{op}', {before}, {after} "
            f"FROM {SEQUENCE}; END"
        )


def drop_sql(table: str) -> Iterator[str]:
    """Yield what removes a table's triggers and, last, its shadow."""
    yield from (f"DROP TRIGGER IF EXISTS {_trigger(table, op)}" for op in _EVENTS)
    yield f"DROP TABLE IF EXISTS {quoted(shadow_name(table))}"


def script(tables: Mapping[str, TursoTable], gone: Iterable[str] = ()) -> str:
    """Return the SQL that a person can run; it also drops what tables that are gone left."""
    lines = [*common_sql()]
    for name in gone:
        lines += drop_sql(name)
    for table in tables.values():
        lines += table_sql(table)
    return "".join(f"{line};\n" for line in ["BEGIN IMMEDIATE", *lines, "COMMIT"])


def misfits(database: Database, tables: Mapping[str, TursoTable]) -> dict[str, TursoTable]:
    """Return the tables whose shadow or triggers are missing or have other columns."""
    names = {
        str(name)
        for (name,) in database.rows(
            "SELECT name FROM sqlite_schema WHERE type IN ('table', 'trigger')"
        )
    }
    if not {SEQUENCE, CLEANED} <= names:
        return dict(tables)
    found = {}
    for name, table in tables.items():
        needed = {shadow_name(name), *(f"_df_cdc_{name}_{op}" for op in _EVENTS)}
        if not needed <= names or _columns(database, name) != image_columns(table):
            found[name] = table
    return found


def left_over(database: Database, captured: CapturedTables) -> list[str]:
    """Return captured tables that were renamed or dropped, but whose shadow is still there."""
    rows = database.rows("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
    there = {str(name).lower(): str(name) for (name,) in rows}
    shadowed = (n[len(_SHADOW) :] for small, n in there.items() if small.startswith(_SHADOW))
    return [name for name in shadowed if name.lower() not in there and name in captured]


def _columns(database: Database, table: str) -> list[str]:
    rows = database.rows(f"PRAGMA table_info({quoted(shadow_name(table))})")
    return [str(row[1]) for row in rows][3:]


def _trigger(table: str, op: str) -> str:
    return quoted(f"_df_cdc_{table}_{op}")
