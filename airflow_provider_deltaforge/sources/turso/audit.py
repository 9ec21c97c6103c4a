"""Looks for writers whose changes are not captured.

Only connections that switch capture on are captured, and triggers fire unless a connection switches
them off. So a table's rows are counted against the captured inserts and deletes. Updates of other
writers leave no trace that could be counted.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_deltaforge.sources.turso.capture import CATALOG, exists
from airflow_provider_deltaforge.sources.turso.database import Database, quoted
from airflow_provider_deltaforge.sources.turso.tables import DB, TursoTable

COUNTED_MAX = 200_000
"""Larger tables are not counted again and again; their highest row number is looked at."""

REMEDY = (
    "a connection writes without PRAGMA unstable_capture_data_changes_conn('full'); switch it on "
    "in every writer, and snapshot the table"
)


@dataclass(frozen=True, slots=True)
class _Size:
    rows: int | None
    last: int | None


class Audit:
    """Compares how tables grew with what was captured, from one check to the next.

    Args:
        database: the open file.
        cdc_table: the capture table.
    """

    def __init__(self, database: Database, cdc_table: str) -> None:
        self._database = database
        self._cdc = quoted(cdc_table)
        self._sizes: dict[str, _Size] = {}
        self._upto = 0

    def check(self, tables: Mapping[str, TursoTable], head_id: int) -> list[str]:
        """Return what grew otherwise than captured since the last check; inside a view."""
        captured = self._captured() if self._sizes else {}  # The first time, nothing is compared.
        found = []
        for name, table in tables.items():
            old = self._sizes.get(name)
            new = self._sizes[name] = _size(self._database, table, old)
            if old is None or CATALOG in captured:
                continue  # A table dropped and made again loses rows that nobody deleted.
            net, last = captured.get(name.lower(), (0, None))
            if old.rows is not None and new.rows is not None:
                strange = new.rows - old.rows - net
                if strange:
                    found.append(f"{DB}.{name}: {strange:+d} rows that were not captured; {REMEDY}")
                    continue
            known = max((n for n in (old.last, last) if n is not None), default=None)
            if new.last is not None and (known is None or new.last > known):
                found.append(f"{DB}.{name}: rows that were not captured; {REMEDY}")
        self._upto = head_id
        return found

    def _captured(self) -> dict[str, tuple[int, int | None]]:
        """Return rows won or lost, and the highest number inserted, by table in lower case."""
        rows = self._database.rows(
            "SELECT lower(table_name), sum(CASE change_type WHEN 0 THEN 0 ELSE change_type END), "
            f"max(CASE change_type WHEN 1 THEN id END) FROM {self._cdc} "
            "WHERE change_id > ? AND change_type <> 2 GROUP BY lower(table_name)",
            (self._upto,),
        )
        return {
            str(name): (int(net), last if isinstance(last, int) else None)
            for name, net, last in rows
        }


class TriggerAudit:
    """Compares how the tables of a file grew with the changes that were read.

    Rows that are missing are no sign: a row that ``INSERT OR REPLACE`` replaces fires no trigger.

    Args:
        database: the open file.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sizes: dict[str, _Size] = {}
        self._net: Counter[str] = Counter()

    def read(self, changes: Iterable[tuple[str, str]]) -> None:
        """Take note of changes, by table and op."""
        for name, op in changes:
            self._net[name] += {"c": 1, "d": -1}.get(op, 0)

    def check(self, tables: Mapping[str, TursoTable]) -> list[str]:
        """Return what grew by more than was read since the last check.

        Inside a view of which every change was read.
        """
        found = []
        for name, table in tables.items():
            old = self._sizes.get(name)
            new = self._sizes[name] = _size(self._database, table, old)
            if old is None or old.rows is None or new.rows is None:
                continue
            strange = new.rows - old.rows - self._net[name]
            if strange > 0:
                found.append(
                    f"{DB}.{name}: {strange:+d} rows that no trigger has seen; a connection writes "
                    "with triggers switched off (SQLITE_DBCONFIG_ENABLE_TRIGGER); leave them on, "
                    "and snapshot the table"
                )
        self._net.clear()
        return found


def _size(database: Database, table: TursoTable, old: _Size | None) -> _Size:
    name = quoted(table.name)
    last = None
    if table.rowid is not None:
        last = database.value(f"SELECT max({quoted(table.rowid)}) FROM {name}")
    if old is not None and old.rows is None:
        return _Size(None, last)
    counted = f"SELECT 1 FROM {name} LIMIT {COUNTED_MAX + 1}"
    rows = int(database.value(f"SELECT count(*) FROM ({counted})"))
    return _Size(rows if rows <= COUNTED_MAX else None, last)


def uncaptured(database: Database, cdc_table: str, born: Mapping[str, int]) -> list[str]:
    """Return tables whose whole history is captured, but that hold other rows than it says.

    Args:
        database: the open file.
        cdc_table: the capture table.
        born: by name of a table, the change that made it.
    """
    if int(database.value(f"SELECT min(change_id) FROM {quoted(cdc_table)}") or 0) != 1:
        return []
    found = []
    for name, made in born.items():
        net, seen, rows = _counted(database, cdc_table, name, made)
        if seen and rows != net:
            found.append(f"{DB}.{name}")
    return found


def holds_others(database: Database, cdc_table: str, name: str, made: int) -> bool:
    """Return whether a table holds other rows than were captured since it was made.

    Called inside a view.
    """
    if not exists(database, name):
        return False
    net, _, rows = _counted(database, cdc_table, name, made)
    return rows != net


def _counted(database: Database, cdc_table: str, name: str, made: int) -> tuple[int, int, int]:
    """Return rows won since a table was made, changes of it, and its rows."""
    net, seen = database.rows(
        "SELECT sum(CASE change_type WHEN 0 THEN 0 ELSE change_type END), count(*) "
        f"FROM {quoted(cdc_table)} WHERE table_name = ? COLLATE NOCASE AND change_id > ?",
        (name, made),
    )[0]
    return int(net or 0), int(seen), int(database.value(f"SELECT count(*) FROM {quoted(name)}"))
