"""Reads tables in chunks, each from a view whose content is known exactly."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from airflow_provider_deltaforge.errors import FatalError, SpecError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.events.ids import id_key
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.postgres.borrowed_connection import BorrowedConnection
from airflow_provider_deltaforge.sources.postgres.connection import OWN_PATH, translated
from airflow_provider_deltaforge.sources.postgres.positions import WalPosition, compare
from airflow_provider_deltaforge.sources.postgres.published import published_tables
from airflow_provider_deltaforge.sources.postgres.server import PostgresServer, server_info
from airflow_provider_deltaforge.sources.postgres.slots import check_slot, find_slot
from airflow_provider_deltaforge.sources.postgres.snapshot.copy_out import (
    NO_PARTS,
    RowParts,
    copy_out,
)
from airflow_provider_deltaforge.sources.postgres.snapshot.copy_rows import decode_copy
from airflow_provider_deltaforge.sources.postgres.snapshot.snapshot_batch import (
    NO_ROWS,
    snapshot_batch,
)
from airflow_provider_deltaforge.sources.postgres.snapshot.table_chunks import (
    check_bounds,
    plan_table,
    select_rows,
)
from airflow_provider_deltaforge.sources.postgres.snapshot.views import (
    close_view,
    open_empty_view,
    open_view,
    prepare_session,
    settle,
    settle_published,
)
from airflow_provider_deltaforge.sources.postgres.tables import (
    CapturedTable,
    captured_tables,
    table_named,
)
from airflow_provider_deltaforge.sources.postgres.wal.decode_plans import Planner, WalTablePlan
from airflow_provider_deltaforge.sources.shared.table_copy import View, chosen_tables, driver_errors
from airflow_provider_deltaforge.spec.patterns import TableMatcher

_log = logging.getLogger(__name__)


class PostgresSnapshotter:
    """Plans and reads chunks over one connection, opened when first needed.

    Args:
        connect: returns a new autocommitting connection.
        begin: sees that publication and slot exist, and returns where the slot stands.
        matcher: which tables are captured.
        source_id: seeds the event ids.
        publication: whose tables and columns are copied.
        slot: keeps the log for the stream.
        decimal_numbers: ``numeric`` becomes a JSON number, not a string.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        begin: Callable[[], Position],
        matcher: TableMatcher,
        source_id: str,
        publication: str,
        slot: str,
        *,
        decimal_numbers: bool = False,
    ) -> None:
        self.warnings: list[str] = []
        self._connect = connect
        self._begin = begin
        self._matcher = matcher
        self._source_id = source_id
        self._publication = publication
        self._slot = slot
        self._decimal_numbers = decimal_numbers
        self._connection: Any = None
        self._server: PostgresServer | None = None
        self._plans: Planner | None = None
        self._slot_is_new = False

    def begin(self) -> Position:
        """Return the position the stream must start at so that no chunk read later has a gap."""
        with self._doing("beginning the snapshot"):
            connection, _ = self._open()
            known = find_slot(connection, self._slot) is not None
            position = self._begin()
            # Creating a slot waits for everybody who writes, after the tables were published.
            self._slot_is_new = not known
            settle(connection)
            return position

    def plan(
        self, chunk_rows: int, tables: Sequence[str] = (), where: str | None = None
    ) -> Iterator[TableChunk]:
        """Cut the captured tables into chunks, table by table.

        Raises:
            SpecError: a pattern matches no captured table, or the condition is wrong.
        """
        with self._doing("planning the snapshot"):
            connection, server = self._open()
            # A stream that was ahead of this may have delivered what no view would show yet.
            settle(connection)
            captured = {(t.schema, t.table): t for t in self._captured(connection)}
            check = "what it names are tables, not partitions or views"
            chosen = chosen_tables(captured, tables, self._matcher, check)
            if where is not None:
                _check_where(connection, chosen, where)
            if not self._slot_is_new:
                oids = [facts.oid for facts in chosen]
                settle_published(connection, self._publication, oids)
        for facts in chosen:
            with self._doing(f"planning {facts.full_name}"):
                chunks = list(plan_table(connection, server.db, facts, chunk_rows, where))
            yield from chunks

    def read(self, chunk: TableChunk, run: str) -> Iterator[ChangeBatch]:
        """Yield a chunk's rows as op ``r`` events; every batch's ``end`` is the chunk's cut.

        A table that is gone gives one empty batch and a warning. Closing the iterator early
        closes the connection, because rows are still on their way.

        Raises:
            SchemaError: the table's key changed since the chunk was planned.
            RetryableError: the server is away, or somebody alters the table for long; the chunk
                may be read again.
        """
        doing = f"reading {chunk.schema}.{chunk.table}"
        finished = False
        try:
            with self._doing(doing):
                view, plan, parts = self._select(chunk, doing)
            ids = self._ids(chunk, run, view)
            schema: TableSchema | None = plan.schema if plan is not None else None
            first = 0
            begun = False
            while True:
                with self._doing(doing):
                    part = next(parts, None)
                    # One batch at least, so that an empty chunk has its cut, too.
                    if part is None and begun:
                        break
                    rows = decode_copy(part, plan).rows if plan is not None and part else NO_ROWS
                    begun = True
                yield snapshot_batch(rows, chunk, schema, view, ids, first)
                first += rows.num_rows
            with self._doing(doing):
                _check_count(parts, first, doing)
                close_view(self._connection)
            finished = True
        finally:
            if not finished:
                self.close()

    def guard(self, position: Position) -> None:
        """Check that the log from ``position`` on is still there.

        Raises:
            PositionLostError: it is not; the snapshot is worthless and must be cancelled.
        """
        with self._doing("checking the slot"):
            connection, server = self._open()
            # Raises for a position of another cluster, whose slot says nothing about it.
            compare(position, server.at(0).as_json())
            slot = find_slot(connection, self._slot)
            check_slot(slot, self._slot, server, WalPosition.from_json(position))

    def close(self) -> None:
        """Let go of the connection. Safe to call twice."""
        connection, self._connection, self._server = self._connection, None, None
        if connection is not None:
            connection.close()

    def _open(self) -> tuple[Any, PostgresServer]:
        if self._connection is None or self._server is None:
            # Set at once, so that whoever sees an error below can close it.
            self._connection = self._connect()
            prepare_session(self._connection)
            self._server = server_info(self._connection)
        return self._connection, self._server

    def _planner(self, server: PostgresServer) -> Planner:
        """Return the planner, which reads the catalog as the open view shows it."""
        if self._plans is None:
            lent: Callable[[], Any] = lambda: BorrowedConnection(self._connection)  # noqa: E731 - one line says it
            self._plans = Planner(
                server.db,
                self._matcher,
                lent,
                self._publication,
                decimal_numbers=self._decimal_numbers,
            )
        return self._plans

    def _captured(self, connection: Any) -> list[CapturedTable]:
        """Return the tables that the patterns name and the publication publishes."""
        named = captured_tables(connection, self._matcher)
        published = published_tables(connection, self._publication)
        if self._matcher.patterns:
            for facts in named:
                if facts.oid not in published:
                    self._warn(
                        f"{facts.full_name} is not copied: publication {self._publication!r} does "
                        "not publish it; ALTER PUBLICATION … ADD TABLE, then request a snapshot"
                    )
        return [facts for facts in named if facts.oid in published]

    def _select(self, chunk: TableChunk, doing: str) -> tuple[View, WalTablePlan | None, RowParts]:
        """Open a view and start the COPY; without a plan, and nothing to read, if it is gone."""
        import psycopg

        connection, server = self._open()
        table = (str(chunk.schema), chunk.table)
        try:
            view = open_view(connection, server, table)
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            close_view(connection)
            return self._gone(chunk)
        facts = table_named(connection, *table)
        if facts is None:
            close_view(connection)
            return self._gone(chunk)
        check_bounds(facts, chunk)
        plan = self._planner(server).plan_of_table(*table)
        if plan is None:
            close_view(connection)
            return self._gone(chunk)
        if chunk.bounds.get("where"):
            connection.execute(OWN_PATH)
        return view, plan, copy_out(connection, select_rows(facts, chunk, plan.select), doing)

    def _gone(self, chunk: TableChunk) -> tuple[View, None, RowParts]:
        self._warn(f"{chunk.schema}.{chunk.table} is gone; its chunk is empty")
        connection, server = self._open()
        return open_empty_view(connection, server), None, NO_PARTS

    def _ids(self, chunk: TableChunk, run: str, view: View) -> Any:
        cut = json.dumps(view.cut, sort_keys=True)
        # Rows without a key are told apart by their number in this very chunk.
        return id_key(self._source_id, run, cut, f"{chunk.schema}.{chunk.table}", chunk.id)

    def _doing(self, what: str) -> AbstractContextManager[None]:
        """Turn the driver's errors into ours, and drop the connection they came from."""
        import psycopg

        return driver_errors(what, psycopg.Error, translated, self.close)

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        _log.warning(text)


def _check_where(connection: Any, chosen: Sequence[CapturedTable], where: str) -> None:
    import psycopg

    if len(chosen) != 1:
        names = ", ".join(facts.full_name for facts in chosen) or "none"
        raise SpecError(f"where: give exactly one table with a condition, not {names}")
    sql = f"SELECT 1 FROM {chosen[0].from_clause} WHERE (\n{where}\n) LIMIT 0"
    try:
        # Prepared, because the server then takes one statement only.
        with connection.transaction(force_rollback=True):
            connection.execute(OWN_PATH)
            connection.execute(sql, prepare=True)
    except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError) as error:
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            raise
        text = error.diag.message_primary or str(error)
        raise SpecError(f"where: the server refuses the condition: {text}") from None


def _check_count(parts: RowParts, received: int, doing: str) -> None:
    if parts.tag.sent != received:
        raise FatalError(
            f"{doing}: {received} rows arrived, but the server says that it sent {parts.tag.sent}; "
            "connect to the server itself, not through a proxy that changes answers"
        )
