"""Tables that stop alone, and tables that appear with rows the log never carried.

A table that cannot be decoded ends the reading, once; its record is stored, and reading begins
again at the checkpoint without it. So the record is durable before any of its rows is passed over.

A table that appears is noted in the transaction of the checkpoint that passes its statement, and
becomes a snapshot request only then: what was there under its name before is delivered first.
"""

import json
import logging
import shlex
import time
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.errors import TableError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.events.table_names import qualified_name, unquoted
from airflow_provider_deltaforge.schemas.registry import RegisteredHistory, Registry
from airflow_provider_deltaforge.sources.contract import Source
from airflow_provider_deltaforge.sources.reader_contract import (
    LogReader,
    NamedTables,
    ReportsAppearedTables,
    ReportsTableNames,
    SkipsTables,
)
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.control import ControlRecord
from airflow_provider_deltaforge.storage.records.requests import SnapshotRequest, SnapshotResults
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from airflow_provider_deltaforge.storage.records.tables import Arrival, TableRecords
from airflow_provider_deltaforge.telemetry.redaction import redacted

ASKER = "deltaforge"
"""Who asks for the copies of tables that appear."""

_log = logging.getLogger(__name__)


def learn(
    context: TaskContext,
    registry: Registry,
    position: Position,
    *,
    anew: bool,
    is_of_copy: bool = False,
) -> None:
    """Register how tables look where reading begins.

    Where the log does not describe its rows, this is what later statements are applied to.

    Args:
        context: the opened job; its fence guards the write.
        registry: of the source.
        position: where the log is read from.
        anew: the log before it was not read; what was registered earlier may not hold here.
            Otherwise nothing is asked once something is registered.
        is_of_copy: the pipeline's own copy begins here.
    """
    registry.refresh()
    _doubt_left_out(context, registry)
    _name(context, anew=anew, is_of_copy=is_of_copy)
    if registry.all() and not anew:
        return
    source = context.pipeline.spec.source
    found = [(schema, position) for schema in source.schemas_at(position)]
    if found:
        registry.register_all(found, compare=source.compare, fence=context.fence)


def _name(context: TaskContext, *, anew: bool, is_of_copy: bool) -> None:
    """Remember which table has which name where reading begins."""
    records = TableRecords(context.store, context.pipeline.name)
    if anew or records.named() is None:
        named = context.pipeline.spec.source.named_tables()
        if named is not None:
            write = records.name(named.server, named.tables, is_of_copy=is_of_copy)
            context.store.transact([write], context.fence)


def names_kept(context: TaskContext) -> list[Write]:
    """Return what to store when a copy is over in which no table was renamed."""
    records = TableRecords(context.store, context.pipeline.name)
    begun = records.named()
    if begun is None or not begun.is_of_copy:
        return []
    now = context.pipeline.spec.source.named_tables()
    if now is None or now.server != begun.server:
        return []
    former = {number: name for name, number in begun.tables.items()}
    if any(former.get(number, name) != name for name, number in now.tables.items()):
        return []
    return [records.name(begun.server, begun.tables)]


def _doubt_left_out(context: TaskContext, registry: Registry) -> None:
    """Trust no registered schema of a table that the document does not name any more.

    Nobody reads of its changes from here on; captured again, it is asked for anew.
    """
    source = context.pipeline.spec.source
    patterns = [str(pattern) for pattern in getattr(source, "tables", ())]
    records = TableRecords(context.store, context.pipeline.name)
    former = records.captured()
    if former == patterns:
        return
    left: list[str] = []
    # Where the log does not tell schema changes, it describes its rows.
    stored = registry.all() if former is not None and source.logs_schema_changes else []
    if stored:
        live = source.catalog([version.schema for version in stored])
        left = [v.schema.full_name for v in stored if v.schema.full_name not in live]
    latest = max((version.sequence for version in stored), default=0)
    context.store.transact(records.capture(patterns, left, latest), context.fence)


class TableWatch:
    """Keeps account of a lane's tables. Used by its delivery thread.

    Args:
        context: the opened job; its fence guards every write.
        registry: of the source.
    """

    def __init__(self, context: TaskContext, registry: Registry) -> None:
        self._context = context
        self._registry = registry
        self._records = TableRecords(context.store, context.pipeline.name)
        self._arrivals: list[Arrival] = []
        self._reported: set[str] = set()
        self._left_out: frozenset[str] = frozenset()
        self._named: NamedTables | None = None
        self._copied: frozenset[str] = frozenset()

    def open(self, source: Source, start: Position, over: Callable[[], bool]) -> LogReader:
        """Open the log without the tables that are left out.

        Args:
            source: the pipeline's.
            start: where to begin.
            over: asked while waiting, whether to give up.
        """
        reader = source.open(start, over, self.history())
        try:
            self.begin(reader)
        except BaseException:
            reader.close()  # Left open, it may keep the log from who tries again.
            raise
        return reader

    def history(self) -> "TrustedHistory":
        """Return what was registered, without what a stop has made worthless."""
        doubted = {name: record.sequence for name, record in self._records.marked().items()}
        return TrustedHistory(self._registry, self._context.pipeline.spec.source.compare, doubted)

    def begin(self, reader: LogReader) -> None:
        """Set the tables that a reader leaves out."""
        self._arrivals, self._reported = [], set()
        self._left_out = frozenset(self._records.stopped())
        named = self._records.named()
        self._named = None if named is None else NamedTables(named.server, named.tables)
        self._copied = frozenset(named.tables if named is not None and named.is_of_copy else ())
        if self._named is not None and isinstance(reader, ReportsTableNames):
            reader.note_table_names(self._named)
        if self._left_out and isinstance(reader, SkipsTables):
            reader.skip_tables(self._left_out)

    def stop(self, error: TableError, reader: LogReader | None) -> None:
        """Stop a table alone.

        Raises:
            TableError: the document says that the pipeline stops, or the source cannot leave a
                table out, or has not: the log would be opened again and again.
        """
        policy = getattr(self._context.pipeline.spec.source, "on_undecodable", "halt")
        repair = f"deltaforge snapshot FILE --tables {shlex.quote(error.table)}"
        may_stop = isinstance(reader, SkipsTables) and error.table not in self._left_out
        if policy == "halt" or not may_stop:
            raise TableError(f"{error}. To repair it, copy the table: {repair}", error.table)
        latest = max((v.sequence for v in self._registry.all()), default=0)
        # It quotes the statement, and that of a remote table holds its password.
        reason = redacted(f"{error}. Its rows are passed over; copy it with: {repair}")
        _log.error("table %s stops alone: %s", error.table, reason)
        writes: list[Write] = [self._records.stop(error.table, reason, latest)]
        copies = Snapshots(self._context.store, self._context.pipeline.name)
        run = copies.requested()
        if run is not None and run.is_open and error.table in run.tables:
            # Its first chunks joined a log from which the table is missing from here on.
            writes.append(copies.cancel(run, f"{error.table} stopped while it was copied"))
        self._context.store.transact(writes, self._context.fence)

    def watch(self, rows: pa.RecordBatch) -> None:
        """Take note of what delivered statements say of rows without events.

        Raises:
            RetryableError: the store is away; to be called again.
        """
        ddl = rows.column("ddl")
        if ddl.null_count == len(ddl):
            return
        for row in rows.filter(pc.is_valid(ddl)).to_pylist():
            change, event_id = json.loads(row["ddl"]), row["event_id"].hex()
            for name in change.get("lost", ()):
                sql = redacted(change["sql"])
                _log.warning("rows of %s went away without events: %s", name, sql)
            copies = [*change.get("copies", ())]
            copies += [
                name
                for former, name in change.get("renamed", {}).items()
                if name not in copies and self._lacks_rows(former, f"{former}:{event_id}")
            ]
            for name in copies:
                self._note(name, f"{name}:{event_id}")

    def passed(self, position: Position, reader: LogReader) -> list[Write]:
        """Return what is to be stored together with the checkpoint at ``position``.

        A reader is ahead: what it has found behind the checkpoint, the next one finds again.

        Raises:
            RetryableError: the store is away; to be called again.
        """
        covers, passed_all = self._context.pipeline.spec.source.covers, True
        named = reader.named_tables() if isinstance(reader, ReportsTableNames) else None
        for found in reader.appeared_tables() if isinstance(reader, ReportsAppearedTables) else ():
            name = _name_of(found.table, found.position)
            passed = found.position is None or covers(position, found.position)
            passed_all = passed_all and passed
            if passed and name not in self._reported:
                former = found.former
                if former is None or self._lacks_rows(former, _name_of(former, found.position)):
                    self._note(found.table, name)
                self._reported.add(name)
        writes: list[Write] = [self._records.arrive(arrival) for arrival in self._arrivals]
        # A reader that has looked has another object, also where nothing was renamed.
        is_news = named != self._named or (self._copied and named is not self._named)
        if named is not None and passed_all and is_news:
            # Stored again with the next checkpoint if this one is not.
            self._named, self._copied = named, frozenset()
            writes.append(self._records.name(named.server, named.tables))
        return writes

    def stored(self) -> None:
        """Ask for the copies of tables whose arrival is durable now."""
        if self._arrivals:
            self._arrivals = []
            ask_for_arrivals(self._context)

    def _lacks_rows(self, table: str, successor: str) -> bool:
        """Return whether a table may have been renamed before all of its rows were copied.

        It appeared and is still to be copied, or is just being copied; or a table was renamed
        while the pipeline's own copy was taken.

        Args:
            table: its former name.
            successor: identifies the arrival of what took that name in the same moment.
        """
        if table in self._copied:
            return True
        record = self._context.control.read()
        asked = () if record is None else record.requests
        coming = [(a.id, a.table) for a in (*self._arrivals, *self._records.arrivals())]
        coming += [(r.id, r.tables[0]) for r in asked if r.by == ASKER]
        return any(name == table and mark != f"appeared:{successor}" for mark, name in coming)

    def _note(self, table: str, name: str) -> None:
        arrival = Arrival(id=f"appeared:{name}", table=table)
        if arrival not in self._arrivals:
            self._arrivals.append(arrival)


def _name_of(table: str, position: Position | None) -> str:
    """Return what identifies an arrival among those of the same table."""
    return table if position is None else f"{table}:{json.dumps(position, sort_keys=True)}"


def ask_for_arrivals(context: TaskContext) -> None:
    """Turn every arrival into a snapshot request, once.

    Killed between asking and forgetting, the next call finds the request, or its result, under
    the same id.
    """
    records = TableRecords(context.store, context.pipeline.name)
    results = SnapshotResults(context.store, context.pipeline.name)
    for arrival in records.arrivals():
        # A name that a source reports without a place may arrive again.
        placed = arrival.id != f"appeared:{arrival.table}"
        if not (placed and results.latest(arrival.id)):
            _log.info("table %s appeared with rows of its own; it is copied", arrival.table)
            context.control.update(partial(_asked, arrival=arrival))
        context.store.transact([records.taken(arrival)], context.fence)


def _asked(record: ControlRecord, arrival: Arrival) -> ControlRecord:
    if any(known.id == arrival.id and known.cancelled is None for known in record.requests):
        return record
    request = SnapshotRequest(
        id=arrival.id,
        tables=[arrival.table],
        requested_at_ms=int(time.time() * 1000),
        by=ASKER,
    )
    return record.model_copy(update={"requests": [*record.requests, request]})


class TrustedHistory(RegisteredHistory):
    """The registered schemas, but for those of before a table stopped."""

    def __init__(
        self,
        registry: Registry,
        compare: Callable[[Position, Position], int],
        doubted: dict[str, int],
    ) -> None:
        super().__init__(registry, compare)
        self._doubted = doubted

    def schema_at(
        self, db: str, schema: str | None, table: str, position: Position
    ) -> TableSchema | None:
        """Return the schema that was in force at a position; None when none is to be trusted."""
        found = self._registry.at_position(db, schema, table, position, self._compare)
        if found is None:
            return None
        name = qualified_name(schema or db, table)
        doubted = self._doubted.get(name, self._doubted.get(unquoted(name), 0))
        return found.schema if found.sequence > doubted else None
