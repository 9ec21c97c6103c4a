"""The schema registry: every schema a source's tables have had, kept in the state store's log.

One log per source, one entry whenever a table's schema became another one. Versions and sequences
are counted from the log, so every reader knows the same numbers, also after a race.
"""

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.position import Position
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.schemas.versions import (
    Compare,
    TableName,
    Version,
    compared,
    in_force,
    name_of,
)
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Append, Fence, Store, StoredEntry
from airflow_provider_deltaforge.storage.records.record import Record

Found = tuple[TableSchema, Position | None]
"""A schema, and the position from which on it is in force; None when nobody knows."""

_PAGE = 500


class SchemaEntry(Record):
    """One entry of the log: from ``position`` on, a table looked like this."""

    v: Literal[1] = 1
    hash: str
    """The fingerprint when it was registered."""
    table: TableSchema
    position: dict[str, Any] | None = None


@dataclass(slots=True)
class _TableLog:
    """What the log holds of one table."""

    entries: list[Version] = field(default_factory=list)
    """In the order of the log."""
    first: dict[str, Version] = field(default_factory=dict)
    """By fingerprint."""


class Registry:
    """The schemas of one source. Safe to use from several threads.

    Args:
        store: the state store.
        source_id: whose tables.
        tenant: whose data.
        page_entries: how many entries are read at once.
    """

    def __init__(
        self, store: Store, source_id: str, tenant: str, page_entries: int = _PAGE
    ) -> None:
        self._store = store
        self._page_entries = page_entries
        self.key = f"{tenant}/{source_id}"
        self._tables: dict[TableName, _TableLog] = {}
        self._read_upto = 0
        self._begun = False
        self._lock = threading.RLock()

    def register_all(
        self,
        found: Sequence[Found],
        *,
        compare: Compare | None = None,
        fence: Fence | None = None,
    ) -> list[Version]:
        """Make schemas known in one transaction, and return their versions.

        Args:
            found: schemas, each with the position from which on it is in force.
            compare: orders the source's positions; without it, the last entry counts as in force.
            fence: what the writer must still hold.

        Raises:
            FencedError: the fence no longer holds; nothing was written.
        """
        with self._lock:
            self._begin()
            if self._news(found, compare):
                self.refresh()  # Another worker of the same driver may have been first.
            writes = [
                Append(names.SCHEMAS, self.key, _entry_text(schema, position))
                for schema, position in self._news(found, compare)
            ]
            if writes:
                self._store.transact(writes, fence)
                self.refresh()
            return [self._tables[name_of(s)].first[s.fingerprint] for s, _ in found]

    def latest(self, db: str, schema: str | None, table: str) -> Version | None:
        """Return what was registered last."""
        entries = self.entries(db, schema, table)
        return entries[-1] if entries else None

    def version(self, db: str, schema: str | None, table: str, number: int) -> Version | None:
        """Return a version by its number."""
        found = (v for v in self.versions(db, schema, table) if v.number == number)
        return next(found, None)

    def versions(self, db: str, schema: str | None, table: str) -> list[Version]:
        """Return every version, in order."""
        with self._lock:
            return list(self._table((db, schema, table)).first.values())

    def entries(self, db: str, schema: str | None, table: str) -> list[Version]:
        """Return a table's history: a version appears whenever it came into force."""
        with self._lock:
            return list(self._table((db, schema, table)).entries)

    def at_time(self, db: str, schema: str | None, table: str, at_ms: int) -> Version | None:
        """Return what was registered last at or before a time, in ms since the epoch."""
        return _last(v for v in self.entries(db, schema, table) if v.registered_at_ms <= at_ms)

    def at_sequence(self, db: str, schema: str | None, table: str, sequence: int) -> Version | None:
        """Return what was registered last at or before a sequence: an event's own schema."""
        return _last(v for v in self.entries(db, schema, table) if v.entry <= sequence)

    def at_position(
        self, db: str, schema: str | None, table: str, position: Position, compare: Compare
    ) -> Version | None:
        """Return what was in force at a position: the last entry at or before it."""
        entries = self.entries(db, schema, table)
        found = in_force([entry.position for entry in entries], position, compare)
        return None if found is None else entries[found]

    def all(self) -> list[Version]:
        """Return what was registered last of every table, by name."""
        with self._lock:
            self._begin()
            tables = sorted(self._tables.items(), key=lambda item: tuple(map(str, item[0])))
            return [table.entries[-1] for _, table in tables]

    def refresh(self) -> None:
        """Read what was appended to the log since it was read last."""
        with self._lock:
            self._begun = True
            while True:
                page = self._store.read(
                    names.SCHEMAS, self.key, self._read_upto, self._page_entries
                )
                for entry in page:
                    self._take(entry)
                    self._read_upto = entry.seq
                if len(page) < self._page_entries:
                    return

    def _begin(self) -> None:
        if not self._begun:
            self.refresh()

    def _table(self, name: TableName) -> _TableLog:
        self._begin()
        return self._tables.get(name) or _TableLog()

    def _news(self, found: Sequence[Found], compare: Compare | None) -> list[Found]:
        """Return those without which the log would be poorer."""
        news: list[Found] = []
        entries: dict[TableName, list[Found]] = {}
        for schema, position in found:
            name = name_of(schema)
            if name not in entries:
                entries[name] = [(v.schema, v.position) for v in self._table(name).entries]
            if _is_news(entries[name], schema, position, compare):
                entries[name].append((schema, position))
                news.append((schema, position))
        return news

    def _take(self, entry: StoredEntry) -> None:
        stored = SchemaEntry.from_stored(entry.value, f"entry {entry.seq} of schemas {self.key}")
        table = self._tables.setdefault(name_of(stored.table), _TableLog())
        first = table.first.get(stored.hash)
        version = Version(
            number=len(table.first) + 1 if first is None else first.number,
            sequence=entry.seq if first is None else first.sequence,
            fingerprint=stored.hash,
            schema=stored.table,
            registered_at_ms=entry.ts_ms,
            position=stored.position,
            entry=entry.seq,
        )
        table.entries.append(version)
        table.first.setdefault(stored.hash, version)


class RegisteredHistory:
    """Implements ``schemas.history.SchemaHistory`` over a registry.

    Args:
        registry: of the source.
        compare: orders its positions.
    """

    def __init__(self, registry: Registry, compare: Compare) -> None:
        self._registry = registry
        self._compare = compare

    def schema_at(
        self, db: str, schema: str | None, table: str, position: Position
    ) -> TableSchema | None:
        """Return the schema that was in force at a position; None when none is known."""
        found = self._registry.at_position(db, schema, table, position, self._compare)
        return found.schema if found is not None else None

    def goes_on(self, db: str, schema: str | None, table: str, position: Position) -> bool:
        """Return whether a schema was registered behind a position: its rows were read before."""
        places = [entry.position for entry in self._registry.entries(db, schema, table)]
        return any(p is not None and compared(self._compare, p, position) == 1 for p in places)


def named(registry: Registry, name: str) -> TableName:
    """Return the one registered table that a person calls ``table`` or ``db.table``.

    Raises:
        SpecError: there is none, or there are several.
    """
    found = [
        name_of(entry.schema)
        for entry in registry.all()
        if name in (entry.schema.table, entry.schema.full_name, *_full_forms(entry.schema))
    ]
    if len(found) == 1:
        return found[0]
    known = [_full_forms(version.schema)[0] for version in registry.all()]
    if found:
        raise SpecError(f"{name!r} names several tables; write one of {', '.join(known)}")
    raise SpecError(f"no schema of a table {name!r} (known: {', '.join(known) or 'none yet'})")


def _full_forms(schema: TableSchema) -> tuple[str, str, str]:
    """Return a table's name with its database, and both names as people may write them."""
    parts = [part for part in name_of(schema) if part is not None]
    return qualified_name(*parts), ".".join(parts), ".".join(parts[-2:])


def _is_news(
    entries: Sequence[Found],
    schema: TableSchema,
    position: Position | None,
    compare: Compare | None,
) -> bool:
    if all(known.fingerprint != schema.fingerprint for known, _ in entries):
        return True
    if position is None:
        return False
    if compare is None:
        return entries[-1][0] != schema
    there = in_force([place for _, place in entries], position, compare)
    if there is not None and entries[there][0] == schema:
        return False
    # Within one transaction a table can change to and fro: then one place has several entries.
    # Places are compared first: wide tables cost more, and many versions of one have all of them.
    return not any(
        place is not None and compared(compare, place, position) == 0 and known == schema
        for known, place in entries
    )


def _entry_text(schema: TableSchema, position: Position | None) -> bytes:
    entry = SchemaEntry(
        hash=schema.fingerprint,
        table=schema,
        position=None if position is None else dict(position),
    )
    # What has its default stays out: a wide table's entry is a quarter as long.
    text = {"v": entry.v, **entry.model_dump(mode="json", exclude_defaults=True)}
    return json.dumps(text, separators=(",", ":"), ensure_ascii=False).encode()


def _last(versions: Iterator[Version]) -> Version | None:
    found = None
    for version in versions:
        found = version
    return found
