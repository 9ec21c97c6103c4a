"""The shadow tables that the mode ``triggers`` reads: made, checked, read and cleaned up.

Each captured table has a shadow with its images' columns, without any type, so that every value
is kept as it is. Triggers fill it. One counter numbers the changes of all tables, because writers
take turns: its order is the order of commits.
"""

import logging
from collections.abc import Container, Iterable, Iterator, Mapping
from heapq import merge
from itertools import chain, islice
from typing import Any

from airflow_provider_deltaforge.errors import FatalError, PositionLostError, SchemaError
from airflow_provider_deltaforge.sources.turso.database import Database, quoted
from airflow_provider_deltaforge.sources.turso.positions import FilePosition
from airflow_provider_deltaforge.sources.turso.tables import (
    DB,
    CapturedTables,
    TursoTable,
    captured_tables,
    table_of,
)

_log = logging.getLogger(__name__)

SEQUENCE = "_df_sequence"
CLEANED = "_df_cleaned"
MADE = "_df_made"

_SHADOW = "_df_cdc_"
_NOW = "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"
_OLDER = "the database was replaced, or restored from an older copy; take a new snapshot"
_TERMS = 400  # SQLite takes 500 in one statement.
_EVENTS = {"c": "INSERT", "u": "UPDATE", "d": "DELETE"}


class Shadows:
    """The shadow tables of a file.

    Args:
        database: the open file.
        captured: the tables to follow.
        create: make or renew what is missing; else that is an error with the SQL in it.
    """

    def __init__(self, database: Database, captured: CapturedTables, *, create: bool) -> None:
        self._database = database
        self._captured = captured
        self._create = create

    def prepared(self, last: int | None = None) -> dict[str, TursoTable]:
        """Return the captured tables; each has a shadow that fits.

        Args:
            last: the change that was read last; None if the changes are not followed.

        Raises:
            FatalError: a shadow is missing and may not be made; the text holds the SQL.
            SchemaError: a table was altered or is gone, and its shadow still holds changes.
        """
        with self._database.view():
            tables = captured_tables(self._database, self._captured)
            missing = misfits(self._database, tables)
            without = untriggered(self._database, missing) if missing else set()
            left = left_over(self._database, self._captured)
            if last is not None:
                self.refuse_left(last)
        if not missing and not (left and self._create):
            return tables
        if not self._create:
            names = ", ".join(f"{DB}.{name}" for name in missing)
            raise FatalError(
                f"{names}: the triggers are missing or do not fit the table's columns; set "
                "source.auto_create_triggers: true, or run this in the database (it drops "
                f"changes that were not read yet):\n{script(missing, without, left)}"
            )
        with self._database.writing():
            # Looked at again: another process may have made them meanwhile.
            tables = captured_tables(self._database, self._captured)
            missing = misfits(self._database, tables)
            self._refuse_pending(missing)
            # A renamed table keeps its triggers: with new ones, it would be captured twice.
            left = left_over(self._database, self._captured)
            drops, emptied = self._drops(left)
            without = untriggered(self._database, missing)
            makes = (table_sql(t, counted=t.name in without) for t in missing.values())
            self._database.run_all([*common_sql(), *drops, *chain.from_iterable(makes)])
        for name in emptied:
            _log.info("dropped the shadow of %s.%s, which is gone", DB, name)
        for name in missing:
            _log.info("made the capture triggers of %s.%s", DB, name)
        return tables

    def _drops(self, left: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return what drops the triggers of tables that are gone, and those it leaves nothing of.

        A shadow stays while something is in it.
        """
        statements, emptied = [], []
        held = set(self._having(left, "1"))
        for name in left:
            *triggers, shadow = drop_sql(name)
            statements += triggers
            if name not in held:
                statements.append(shadow)
                emptied.append(name)
        return statements, emptied

    def refuse_left(self, last: int) -> None:
        """Check that no table is gone whose changes were not all read.

        Raises:
            SchemaError: one is; its key is not known any more.
        """
        for name in left_over(self._database, self._captured):
            pending = self._database.value(
                f"SELECT min(change_id) FROM {quoted(shadow_name(name))} WHERE change_id > ?",
                (last,),
            )
            if pending is not None:
                raise SchemaError(
                    f"{DB}.{name} was renamed or dropped while its changes from {pending} on, in "
                    f"{shadow_name(name)}, were not read yet; give it its name back until they "
                    "are, or take a new snapshot, and let the pipeline catch up before such a "
                    "change"
                )

    def _refuse_pending(self, names: Iterable[str]) -> None:
        there = self._there()
        for name in self._having([n for n in names if shadow_name(n).lower() in there], "1"):
            raise SchemaError(
                f"{DB}.{name} was altered while its changes were not all read and cleaned up: "
                "those behind the ALTER lack the new columns; take a new snapshot, and make the "
                f"triggers anew:\n{script(self._only(name), ())}"
            )

    def _there(self) -> set[str]:
        found = self._database.rows("SELECT lower(name) FROM sqlite_schema WHERE type = 'table'")
        return {str(name) for (name,) in found}

    def _only(self, name: str) -> dict[str, TursoTable]:
        return {name: captured_tables(self._database, self._captured)[name]}

    def head_id(self) -> int:
        """Return the number of the last change."""
        return int(self._database.value(f"SELECT last FROM {SEQUENCE}") or 0)

    def head(self) -> FilePosition:
        """Return the place behind everything that is committed, inside a view."""
        last = self.head_id()
        time_ms = max(self._database.value(f"SELECT {_NOW}"), self.latest(last, self._names()))
        return self.place(last, time_ms, captured_tables(self._database, self._captured))

    def place(self, last: int, time_ms: int, tables: Mapping[str, TursoTable]) -> FilePosition:
        """Return a place of this mode; no change up to it was made after its time."""
        return FilePosition("triggers", last, time_ms, schemas=self.marks(tables))

    def marks(self, tables: Mapping[str, TursoTable]) -> dict[str, str]:
        """Return what tells each table, inside a view: its columns, and how often it was taken up.

        A table that was dropped and made again has lost its triggers, and what was written since.
        """
        times: dict[str, int] = {}
        if MADE in self._there():
            rows = self._database.rows(f"SELECT table_name, times FROM {MADE}")
            times = {str(name): int(count) for name, count in rows}
        return {
            name: f"{table.mark}#{times[name]}" if name in times else table.mark
            for name, table in tables.items()
        }

    def latest(self, upto: int, names: Iterable[str]) -> int:
        """Return when the last of some tables' changes up to a number was made; 0 without any."""
        sql = "SELECT max(change_time) FROM {} WHERE change_id <= " + str(upto)
        return max((time for (time,) in self._of_each(sql, names) if time is not None), default=0)

    def others(self) -> list[str]:
        """Return the tables that have a shadow for others than us."""
        return [name for name in self._names() if name not in self._captured]

    def _names(self) -> list[str]:
        """Return the tables that have a shadow, captured or not, there or gone."""
        return [name[len(_SHADOW) :] for name in self._there() if name.startswith(_SHADOW)]

    def _of_each(self, select: str, names: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        """Run a SELECT for each shadow, in few statements: each may be a request to a server."""
        parts = [select.format(quoted(shadow_name(name))) for name in names]
        for first in range(0, len(parts), _TERMS):
            yield from self._database.rows(" UNION ALL ".join(parts[first : first + _TERMS]))

    def _having(self, names: Iterable[str], condition: str) -> list[str]:
        """Return the tables whose shadow has a row like that."""
        numbered = dict(enumerate(names))
        found = []
        for first in range(0, len(numbered), _TERMS):
            parts = (
                f"SELECT {at} WHERE EXISTS "
                f"(SELECT 1 FROM {quoted(shadow_name(numbered[at]))} WHERE {condition})"
                for at in range(first, min(first + _TERMS, len(numbered)))
            )
            found += [numbered[at] for (at,) in self._database.rows(" UNION ALL ".join(parts))]
        return found

    def filled(self, names: Iterable[str]) -> list[str]:
        """Return which of some tables hold rows, inside a view."""
        return [
            name for name in names if self._database.rows(f"SELECT 1 FROM {quoted(name)} LIMIT 1")
        ]

    def check_kept(self, place: FilePosition) -> None:
        """Check that everything behind a place is still there.

        Raises:
            PositionLostError: it is not.
        """
        last, head = place.change_id or 0, self.head_id()
        if last > head:
            raise PositionLostError(
                f"the triggers counted {head} changes, but {last} were read: {_OLDER}"
            )
        if place.change_time and self.latest(last, self._names()) > place.change_time:
            raise PositionLostError(
                f"up to change {last}, which was read, there are changes made later: {_OLDER}"
            )
        cleaned = self._database.rows(
            f"SELECT table_name, change_id FROM {CLEANED} WHERE change_id > ?", (last,)
        )
        lost = sorted(str(name) for name, _ in cleaned if name in self._captured)
        if lost:
            raise PositionLostError(
                f"{', '.join(lost)}: changes behind {last} were cleaned up; take a new snapshot. "
                "Only one pipeline can follow a table by triggers"
            )

    def place_before(self, change_id: int | None, at_ms: int | None = None) -> FilePosition:
        """Return the place before a change, inside a view.

        Args:
            change_id: the change; None: the first one that was made later than ``at_ms``.
            at_ms: ms since the epoch.

        Raises:
            PositionLostError: changes behind it were cleaned up.
        """
        tables = captured_tables(self._database, self._captured)
        cleaned = self._database.value(f"SELECT max(change_id) FROM {CLEANED}") or 0
        is_kept = True
        if change_id is None:
            first, is_kept = self._first_after(tables, at_ms or 0)
            change_id = self.head_id() + 1 if first is None else first
            is_kept = is_kept or not cleaned
        if not is_kept or change_id <= cleaned:
            raise PositionLostError(
                "with triggers, a change is deleted once every sink and the archive have it, which "
                f"was done up to change {cleaned}. Choose a later place, or copy the tables "
                "instead: deltaforge snapshot FILE --again"
            )
        return self.place(change_id - 1, self.latest(change_id - 1, self._names()), tables)

    def _first_after(self, tables: Iterable[str], at_ms: int) -> tuple[int | None, bool]:
        """Return the first change that was made later, and whether one before it is kept."""
        names, sql = [*tables], "SELECT min(change_id) FROM {}"
        later = self._of_each(f"{sql} WHERE change_time > {at_ms}", names)
        first = min((int(number) for (number,) in later if number is not None), default=None)
        kept = [int(number) for (number,) in self._of_each(sql, names) if number is not None]
        return first, any(first is None or number < first for number in kept)

    def after(
        self, tables: Mapping[str, TursoTable], last: int, limit: int
    ) -> list[tuple[Any, ...]]:
        """Return changes of all tables behind a number, in order, with the table in front."""
        found = []
        for name in self._having(tables, f"change_id > {last}"):
            rows = self._database.rows(
                f"SELECT * FROM {quoted(shadow_name(name))} WHERE change_id > ? "
                "ORDER BY change_id LIMIT ?",
                (last, limit),
            )
            found.append([(row[0], name, *row[1:]) for row in rows])
        return list(islice(merge(*found), limit))

    def clean(self, tables: Mapping[str, TursoTable], upto: int) -> None:
        """Delete the changes up to a number."""
        with self._database.writing(brief=True):
            there = self._there()
            left = left_over(self._database, self._captured)
            # A table may be gone, and another process have dropped its shadow.
            names = [
                name
                for name in dict.fromkeys([*tables, *left])
                if shadow_name(name).lower() in there
            ]
            statements = []
            for name in self._having(names, f"change_id <= {upto}"):
                shadow = quoted(shadow_name(name))
                statements += [
                    f"DELETE FROM {shadow} WHERE change_id <= {upto}",
                    f"INSERT OR REPLACE INTO {CLEANED} VALUES ({_text(name)}, {upto})",
                ]
            self._database.run_all(statements)


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
    yield (
        f"CREATE TABLE IF NOT EXISTS {MADE} (table_name TEXT PRIMARY KEY, times INTEGER NOT NULL)"
    )


def table_sql(table: TursoTable, *, counted: bool) -> Iterator[str]:
    """Yield what one table needs; an older shadow of it goes first.

    Args:
        table: to be captured.
        counted: it may have rows and changes from a time without triggers.
    """
    shadow = quoted(shadow_name(table.name))
    yield from drop_sql(table.name)
    columns = ", ".join(quoted(name) for name in image_columns(table))
    yield (
        f"CREATE TABLE {shadow} "
        f"(change_id INTEGER PRIMARY KEY, change_time INTEGER, op TEXT, {columns})"
    )
    for op, event in _EVENTS.items():
        before = ", ".join("NULL" if op == "c" else f"OLD.{quoted(n)}" for n in table.columns)
        after = ", ".join("NULL" if op == "d" else f"now.{quoted(n)}" for n in table.columns)
        yield (
            f"CREATE TRIGGER {_trigger(table.name, op)} AFTER {event} ON {quoted(table.name)} "
            f"BEGIN UPDATE {SEQUENCE} SET last = last + 1; "
            f"INSERT INTO {shadow} SELECT {SEQUENCE}.last, {_NOW}, '{op}', {before}, {after} "
            f"FROM {SEQUENCE}{'' if op == 'd' else _row_as_it_is(table)}; END"
        )
    if counted:
        yield (
            f"INSERT INTO {MADE} VALUES ({_text(table.name)}, 1) "
            "ON CONFLICT (table_name) DO UPDATE SET times = times + 1"
        )


def _row_as_it_is(table: TursoTable) -> str:
    """Return what joins the row that a trigger is about.

    The application's own triggers may have changed it already: what they did is numbered before,
    and the later event must not bring back the row of before.
    """
    names = [table.rowid] if table.rowid is not None else table.schema.primary_key
    same = " AND ".join(f"now.{quoted(name)} = NEW.{quoted(name)}" for name in names)
    return f", {quoted(table.name)} AS now WHERE {same}"


def drop_sql(table: str) -> Iterator[str]:
    """Yield what removes a table's triggers and, last, its shadow."""
    yield from (f"DROP TRIGGER IF EXISTS {_trigger(table, op)}" for op in _EVENTS)
    yield f"DROP TABLE IF EXISTS {quoted(shadow_name(table))}"


def script(
    tables: Mapping[str, TursoTable], counted: Container[str], gone: Iterable[str] = ()
) -> str:
    """Return the SQL that a person can run; it also drops what tables that are gone left."""
    lines = [*common_sql()]
    for name in gone:
        lines += drop_sql(name)
    for table in tables.values():
        lines += table_sql(table, counted=table.name in counted)
    return "".join(f"{line};\n" for line in ["BEGIN IMMEDIATE", *lines, "COMMIT"])


def misfits(database: Database, tables: Mapping[str, TursoTable]) -> dict[str, TursoTable]:
    """Return the tables whose shadow or triggers are missing or have other columns."""
    # A trigger may have the name of another table's shadow.
    rows = database.rows("SELECT name, sql FROM sqlite_schema WHERE type = 'table'")
    shadows = {str(name): str(sql) for name, sql in rows}
    if not {SEQUENCE, CLEANED} <= shadows.keys():
        return dict(tables)
    without = untriggered(database, tables)
    found = {}
    for name, table in tables.items():
        shadow = shadow_name(name)
        there = shadow in shadows and name not in without
        if not there or _images(shadow, shadows[shadow]) != image_columns(table):
            found[name] = table
    return found


def untriggered(database: Database, names: Iterable[str]) -> set[str]:
    """Return which tables do not have all our triggers.

    A table that is renamed takes its triggers along: the next with its name has none.
    """
    rows = database.rows("SELECT name, tbl_name FROM sqlite_schema WHERE type = 'trigger'")
    there = {(str(name), str(table)) for name, table in rows}
    return {n for n in names if not {(f"{_SHADOW}{n}_{op}", n) for op in _EVENTS} <= there}


def left_over(database: Database, captured: CapturedTables) -> list[str]:
    """Return captured tables that were renamed or dropped, but whose shadow is still there."""
    rows = database.rows("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
    there = {str(name).lower(): str(name) for (name,) in rows}
    shadowed = (n[len(_SHADOW) :] for small, n in there.items() if small.startswith(_SHADOW))
    return [name for name in shadowed if name.lower() not in there and name in captured]


def _images(shadow: str, sql: str) -> list[str]:
    return list(table_of(shadow, sql).columns[3:])


def _text(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"


def _trigger(table: str, op: str) -> str:
    return quoted(f"_df_cdc_{table}_{op}")
