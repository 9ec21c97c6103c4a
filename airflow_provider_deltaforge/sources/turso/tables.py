"""Tables: their columns and keys, from the catalog or from the statement that made them."""

import re
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.turso.column_types import BY_NAME, affinity
from airflow_provider_deltaforge.sources.turso.database import Database, quoted
from airflow_provider_deltaforge.spec.patterns import TableMatcher

DB = "main"

_SYSTEM = ("sqlite_", "libsql_", "_df_", "_litestream", "_turso", "__turso")
ROWID_NAMES = ("rowid", "_rowid_", "oid")
_NO_WORDS = re.compile(
    r"""--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]""", re.DOTALL
)
"""Comments, texts and quoted names of SQL."""


@dataclass(frozen=True)
class TursoTable:
    """One table, as its CREATE TABLE says.

    Attributes:
        schema: columns in order, and the primary key.
        rowid: the name under which SQL knows the row's number, that of a column if it is one;
            None WITHOUT ROWID.
        generated: columns that are computed.
    """

    schema: TableSchema
    rowid: str | None
    generated: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The table's name."""
        return self.schema.table

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.schema.columns)

    @cached_property
    def key_at(self) -> tuple[int, ...]:
        """Where the primary key's columns are."""
        return tuple(self.columns.index(name) for name in self.schema.primary_key)

    @property
    def autoincrement(self) -> bool:
        """Whether the number of a deleted row is never given again."""
        return any(column.extra == "autoincrement" for column in self.schema.columns)

    @cached_property
    def real_at(self) -> tuple[int, ...]:
        """Where whole numbers are stored as such but mean REAL."""
        types = (column.data_type for column in self.schema.columns)
        return tuple(at for at, kind in enumerate(types) if BY_NAME[kind].whole_as_integers)

    @cached_property
    def mark(self) -> str:
        """A short fingerprint, for positions."""
        return self.schema.fingerprint.removeprefix("sha256:")[:12]


class CapturedTables:
    """Decides which tables are captured: the document's patterns, never the system's tables."""

    def __init__(self, patterns: tuple[str, ...], cdc_table: str) -> None:
        self._named = named_by(patterns)
        self._cdc = {cdc_table.lower(), "turso_cdc", "turso_cdc_version"}
        self._known: dict[object, bool] = {}

    def __contains__(self, name: object) -> bool:
        """Return whether a table is captured."""
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._captures(name)
        return known

    def _captures(self, name: object) -> bool:
        small = str(name).lower()
        system = small.startswith(_SYSTEM) or small in self._cdc
        return not system and self._named(str(name))


def named_by(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return what decides whether patterns name a table; case does not count, as in SQL."""
    matcher = TableMatcher(tuple(pattern.lower() for pattern in patterns), DB)
    return lambda name: matcher.matches(DB, name.lower())


def captured_tables(database: Database, captured: CapturedTables) -> dict[str, TursoTable]:
    """Return the captured tables that are there now, by name."""
    found = database.rows(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND sql IS NOT NULL ORDER BY name"
    )
    return {str(n): table_of(str(n), str(sql)) for n, sql in found if n in captured and _plain(sql)}


def _plain(sql: str) -> bool:
    return not sql.lstrip().upper().startswith("CREATE VIRTUAL")


@lru_cache(maxsize=4096)
def table_of(name: str, sql: str) -> TursoTable:
    """Return the table that a CREATE TABLE statement makes.

    Raises:
        SchemaError: the statement is not understood.
    """
    memory = sqlite3.connect(":memory:")
    try:
        # A rename leaves the old name in statements of some versions: the catalog's name counts.
        memory.execute(sql)
        made = memory.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchone()[0]
        rows = memory.execute(f"PRAGMA table_xinfo({quoted(made)})").fetchall()
        plain = memory.execute(
            "SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?", (made,)
        ).fetchone()[0]
        indexes = memory.execute(f"PRAGMA index_list({quoted(made)})").fetchall()
    except sqlite3.Error as error:
        raise SchemaError(
            f"{DB}.{name}: its definition is not understood ({error}); leave it out of 'tables'"
        ) from error
    finally:
        memory.close()
    columns = tuple(
        Column(
            name=str(row[1]),
            data_type=affinity(str(row[2])),
            column_type=str(row[2]),
            nullable=not row[3],
            ordinal_position=index + 1,
            default_value=None if row[4] is None else str(row[4]),
            extra=_extra(row, sql),
        )
        for index, row in enumerate(rows)
    )
    key = [str(row[1]) for row in sorted(rows, key=lambda row: int(row[5])) if row[5]]
    used = {column.name.lower() for column in columns}
    rowid = next((word for word in ROWID_NAMES if word not in used), None)
    if len(key) == 1 and not any(index[3] == "pk" for index in indexes):
        rowid = key[0]  # INTEGER PRIMARY KEY: the row's number itself.
    return TursoTable(
        schema=TableSchema(DB, None, name, columns, tuple(key)),
        rowid=None if plain else rowid,
        generated=tuple(str(row[1]) for row in rows if row[6] in (2, 3)),
    )


def _extra(row: tuple[object, ...], sql: str) -> str | None:
    if row[6] in (2, 3):
        return "generated"
    words = _NO_WORDS.sub(" ", sql).upper()
    return "autoincrement" if row[5] and "AUTOINCREMENT" in words else None
