"""The capture table of Turso: what it holds, which part is still there, and the tables' history.

A row is one change, in commit order; a row of type 2 ends a transaction. Changes of the catalog
are among them, with the statement that made the table before and after, so the columns that were
in force for each row are known. A renamed table or column leaves no row: it is found because the
catalog then differs from what the history says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_deltaforge.errors import FatalError, PositionLostError, SchemaError
from airflow_provider_deltaforge.sources.turso.database import Database, quoted
from airflow_provider_deltaforge.sources.turso.positions import FilePosition
from airflow_provider_deltaforge.sources.turso.records import values_of
from airflow_provider_deltaforge.sources.turso.tables import (
    DB,
    CapturedTables,
    TursoTable,
    captured_tables,
    table_of,
)

DELETE, UPDATE, INSERT, COMMIT = -1, 0, 1, 2
CATALOG = "sqlite_schema"
PRAGMA = "PRAGMA unstable_capture_data_changes_conn"

VERSIONS = "turso_cdc_version"
_VERSION = "v2"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the capture table.

    ``table`` is spelled as in the catalog for updates and deletes, but for inserts as in their
    statement, where case does not count.
    """

    change_id: int
    time: int
    tx: int
    kind: int
    table: str | None
    id: Any
    before: bytes | None
    after: bytes | None
    updates: bytes | None


class Capture:
    """Reads the capture table; every method but ``head_id`` belongs inside one view.

    Args:
        database: the open file.
        name: of the capture table.
        captured: the tables to follow.
    """

    def __init__(self, database: Database, name: str, captured: CapturedTables) -> None:
        self._database = database
        self.name = name
        self._from = f"FROM {quoted(name)}"
        self._captured = captured

    def check(self) -> None:
        """Check that capture was ever switched on, in the way that can be read.

        Raises:
            FatalError: it was not.
        """
        if not exists(self._database, self.name):
            raise FatalError(
                f"nothing is captured: there is no table {self.name} (source.cdc_table_name); "
                f"every connection that writes must run {PRAGMA}('full') first"
            )
        version = None
        if exists(self._database, VERSIONS):
            version = self._database.value(
                f"SELECT version FROM {VERSIONS} WHERE table_name = ?", (self.name,)
            )
        if version != _VERSION:
            raise FatalError(
                f"{self.name} has the layout {version or 'v1'}, without ends of transactions; "
                f"write with pyturso 0.8.3 or newer into a new capture table ({_VERSION})"
            )

    def head_id(self) -> int:
        """Return the number of the last change; 0 when nothing was captured yet."""
        return int(self._database.value(f"SELECT max(change_id) {self._from}") or 0)

    def first_id(self) -> int:
        """Return the number of the first change that is still there; 0 without any."""
        return int(self._database.value(f"SELECT min(change_id) {self._from}") or 0)

    def born(self) -> dict[str, int]:
        """Return the captured tables that were made under capture, and by which change."""
        rows = [row for row in self._catalog_rows(0) if row.kind == INSERT]
        made = ((catalog_change(row, self._captured)[1], row.change_id) for row in rows)
        return {table.name: change_id for table, change_id in made if table is not None}

    def head(self) -> FilePosition:
        """Return the place behind everything that is committed."""
        rows = self.after(self.head_id() - 1, 1)
        last, time = (rows[-1].change_id, rows[-1].time) if rows else (0, 0)
        return self.place(last, time, captured_tables(self._database, self._captured))

    def place(self, last: int, time: int, tables: Mapping[str, TursoTable]) -> FilePosition:
        """Return a place of this mode."""
        return FilePosition("native", last, time, schemas={n: t.mark for n, t in tables.items()})

    def place_before(self, change_id: int | None, at_s: int | None = None) -> FilePosition:
        """Return the place behind the last transaction that ends before a change.

        Args:
            change_id: the change; None: the first one that was made in or after ``at_s``.
            at_s: seconds since the epoch.

        Raises:
            PositionLostError: that is not in the table any more.
        """
        if change_id is None:
            sql = f"SELECT min(change_id) {self._from} WHERE change_time >= ?"
            change_id = self._database.value(sql, (at_s,))
        last_id = self.head_id() + 1 if change_id is None else int(change_id)
        rows = self._database.rows(
            f"SELECT change_id, change_time {self._from} WHERE change_id < ? AND change_type = "
            f"{COMMIT} ORDER BY change_id DESC LIMIT 1",
            (last_id,),
        )
        if rows:
            last, time = rows[0]
        elif self.first_id() == 1:
            last, time = 0, 0
        else:
            raise PositionLostError(
                f"{self.name} begins at change {self.first_id()}: what lies before is not in it "
                "any more. Choose a later place, or copy the tables instead: deltaforge snapshot "
                "FILE --again"
            )
        return self.place(int(last), int(time), self.tables_at(FilePosition("native", int(last))))

    def after(self, change_id: int, limit: int) -> list[Row]:
        """Return the changes behind a number, in order."""
        sql = (
            "SELECT change_id, change_time, change_txn_id, change_type, table_name, id, before, "
            f"after, CASE table_name WHEN '{CATALOG}' THEN updates END {self._from} "
            "WHERE change_id > ? ORDER BY change_id LIMIT ?"
        )
        return [Row(*row) for row in self._database.rows(sql, (change_id, limit))]

    def check_kept(self, place: FilePosition) -> None:
        """Check that everything behind a place is still there.

        Raises:
            PositionLostError: it is not.
        """
        last = place.change_id or 0
        remedy = "take a new snapshot, and prune only what every pipeline has acknowledged"
        rows = self._database.rows(
            f"SELECT change_id, change_time {self._from} WHERE change_id >= ? ORDER BY change_id "
            "LIMIT 1",
            (last,),
        )
        if not rows:
            if last:
                raise PositionLostError(
                    f"{self.name} ends before change {last}, which was read: the database "
                    f"was replaced or restored, or the table was emptied and counts from 1 again; "
                    f"{remedy}"
                )
            return
        first, time = rows[0]
        if first > last + 1:
            raise PositionLostError(
                f"{self.name} begins at change {first}, but is needed from {last + 1}; {remedy}"
            )
        if first == last and place.change_time not in (0, time):
            raise PositionLostError(
                f"change {last} of {self.name} is not the one that was read: the database "
                f"was replaced, or restored from an older copy; {remedy}"
            )

    def tables_now(self) -> dict[str, TursoTable]:
        """Return the captured tables that are there now."""
        return captured_tables(self._database, self._captured)

    def tables_at(self, place: FilePosition) -> dict[str, TursoTable]:
        """Return the captured tables as they were at a place.

        Raises:
            SchemaError: that is not known, and rows of such a table are still to be read.
        """
        now = self.tables_now()
        then = dict(now)
        for row in reversed(self._catalog_rows(place.change_id or 0)):
            old, new = catalog_change(row, self._captured)
            if new is not None:
                then.pop(new.name, None)
            if old is not None:
                then[old.name] = old
        for name, mark in place.schemas.items():
            if name not in then or then[name].mark != mark:
                self._refuse_pending(name, place.change_id or 0)
        return then

    def verify(self, tables: Mapping[str, TursoTable], change_id: int) -> dict[str, TursoTable]:
        """Return ``tables``, as they were at a change, with the renames since that affect no row.

        Raises:
            SchemaError: the catalog changed without a row saying so, and some rows that are still
                to be read may have been written before it.
        """
        state = dict(tables)
        doubted: set[str] = set()
        logged: set[str] = set()
        for row in self._catalog_rows(change_id):
            old, new = catalog_change(row, self._captured)
            logged |= {table.name for table in (old, new) if table is not None}
            if old is not None:
                known = state.pop(old.name, None)
                if known is None or known.mark != old.mark:
                    doubted.add(old.name)
            if new is not None:
                state[new.name] = new
        now = self.tables_now()
        doubted |= {name for name, table in now.items() if _mark(state, name) != table.mark}
        doubted |= state.keys() - now.keys()
        agreed = dict(tables)
        for name in sorted(doubted):
            if name in tables or name in logged:  # All rows of a table new to us came after it.
                self._refuse_pending(name, change_id)
            agreed.pop(name, None)
            if name in now:
                agreed[name] = now[name]
        return agreed

    def _refuse_pending(self, name: str, change_id: int) -> None:
        pending = self._database.value(
            f"SELECT min(change_id) {self._from} WHERE change_id > ? "
            "AND table_name = ? COLLATE NOCASE",
            (change_id, name),
        )
        if pending is not None:
            raise SchemaError(
                f"{DB}.{name} was renamed, or altered by a connection that does not capture, while "
                f"its changes from {pending} on were not read yet: nobody knows which columns they "
                "have; take a new snapshot, and let the pipeline catch up before such a change"
            )

    def _catalog_rows(self, change_id: int) -> list[Row]:
        sql = (
            "SELECT change_id, change_time, change_txn_id, change_type, table_name, id, before, "
            f"after, updates {self._from} WHERE change_id > ? AND table_name = '{CATALOG}' "
            "ORDER BY change_id"
        )
        return [Row(*row) for row in self._database.rows(sql, (change_id,))]


def exists(database: Database, table: str) -> bool:
    """Return whether there is a table of that name."""
    sql = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?"
    return bool(database.rows(sql, (table,)))


def catalog_change(
    row: Row, captured: CapturedTables
) -> tuple[TursoTable | None, TursoTable | None]:
    """Return the captured table that a row of the catalog describes, before and after."""
    return _described(row.before, captured), _described(row.after, captured)


def statement_of(row: Row) -> str:
    """Return the statement of a catalog change, as far as it was kept."""
    if row.updates is not None:
        values: Sequence[Any] = values_of(row.updates)
        if isinstance(values[-1], str):
            return values[-1]
    kind, name, _, _, sql = values_of(row.after or row.before or b"")[:5]
    return str(sql) if row.kind == INSERT else f"DROP {str(kind).upper()} {quoted(str(name))}"


def _described(record: bytes | None, captured: CapturedTables) -> TursoTable | None:
    if record is None:
        return None
    kind, name, _, _, sql = values_of(record)[:5]
    if kind != "table" or sql is None or name not in captured:
        return None
    return table_of(str(name), str(sql))


def _mark(tables: Mapping[str, TursoTable], name: str) -> str | None:
    return tables[name].mark if name in tables else None
