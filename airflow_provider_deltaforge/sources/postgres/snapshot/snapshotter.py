"""Reads tables in chunks, each from a view whose content is known exactly."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_deltaforge.errors import FatalError, SpecError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.postgres.borrowed_connection import BorrowedConnection
from airflow_provider_deltaforge.sources.postgres.connection import OWN_PATH, translated
from airflow_provider_deltaforge.sources.postgres.positions import WalPosition, compare
from airflow_provider_deltaforge.sources.postgres.publication import published_tables
from airflow_provider_deltaforge.sources.postgres.server import PostgresServer, server_info
from airflow_provider_deltaforge.sources.postgres.slots import check_slot, find_slot
from airflow_provider_deltaforge.sources.postgres.snapshot import key_order
from airflow_provider_deltaforge.sources.postgres.snapshot.copy_out import (
    RowParts,
    copy_out,
)
from airflow_provider_deltaforge.sources.postgres.snapshot.copy_rows import decode_copy
from airflow_provider_deltaforge.sources.postgres.snapshot.table_chunks import (
    borders_within,
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
    KnownTables,
    captured_tables,
)
from airflow_provider_deltaforge.sources.postgres.tuning import POSTGRES_TUNING, PostgresTuning
from airflow_provider_deltaforge.sources.postgres.wal.decode_plans import Planner, WalTablePlan
from airflow_provider_deltaforge.sources.shared.table_chunks import Border, checks_of
from airflow_provider_deltaforge.sources.shared.table_snapshotter import (
    SelectedRows,
    ServerSnapshotter,
    TableName,
    TableRows,
)
from airflow_provider_deltaforge.spec.patterns import TableMatcher


class PostgresSnapshotter(ServerSnapshotter[PostgresServer, CapturedTable]):
    """Reads tables with ``COPY``, each chunk from a view whose content is known exactly.

    Args:
        connect: returns a new autocommitting connection.
        begin: sees that publication and slot exist, and returns where the slot stands.
        matcher: which tables are captured.
        source_id: seeds the event ids.
        publication: whose tables and columns are copied.
        slot: keeps the log for the stream.
        decimal_numbers: ``numeric`` becomes a JSON number, not a string.
        tuning: how long it waits for others.
    """

    connector = "postgresql"
    pattern_hint = ", and that what it names are tables, not partitions or views"

    def __init__(  # noqa: PLR0913 - a source's settings
        self,
        connect: Callable[[], Any],
        begin: Callable[[], Position],
        matcher: TableMatcher,
        source_id: str,
        publication: str,
        slot: str,
        *,
        decimal_numbers: bool = False,
        tuning: PostgresTuning = POSTGRES_TUNING,
    ) -> None:
        super().__init__(connect, matcher, source_id)
        self._begin = begin
        self._publication = publication
        self._slot = slot
        self._decimal_numbers = decimal_numbers
        self._tuning = tuning
        self._plans: Planner | None = None
        self._slot_is_new = False
        self._known = KnownTables(publication)
        self._made: dict[tuple[str, str], tuple[CapturedTable, WalTablePlan]] = {}

    def close(self) -> None:
        """Close the connection. Safe to call twice."""
        super().close()
        self._known = KnownTables(self._publication)  # Another server may answer next.

    def begin(self) -> Position:
        """Return the position where the stream must start so that no change behind it is missed."""
        with self._doing("beginning the snapshot"):
            connection, _ = self._open()
            known = find_slot(connection, self._slot) is not None
            position = self._begin()
            # Creating a slot waits for everybody who writes, after the tables were published.
            self._slot_is_new = not known
            settle(connection, self._tuning.settle_s)
            return position

    def settle(self) -> None:
        """Return when views that open from now on contain all that the log holds by now."""
        with self._doing("looking who is committing"):
            connection, _ = self._open()
            self._settle(connection)

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

    def chunks_of(
        self, chunks: Sequence[TableChunk], keys: Sequence[Mapping[str, Any]]
    ) -> Sequence[int]:
        """Return which of a table's chunks each key is in; see ``OrdersKeys``."""
        with self._doing("asking which chunks rows are in"):
            return key_order.chunks_of(self._open()[0], chunks, keys)

    def _choose(
        self, patterns: Sequence[str], where: str | None
    ) -> Mapping[TableName, CapturedTable]:
        connection, _ = self._open()
        # A stream that was ahead of this may have delivered what no view would show yet.
        self._settle(connection)
        captured = {(t.schema, t.table): t for t in self._captured(connection)}
        chosen = self._chosen(captured, patterns)
        if where is not None:
            _check_where(connection, self._only(chosen), where)
        if not self._slot_is_new:
            self._settle(connection, [facts.oid for facts in chosen.values()])
        return chosen

    def _settle(self, connection: Any, published: Sequence[int] | None = None) -> None:
        """Wait until views contain what the log holds, or what some tables held unpublished."""
        if published is None:
            settle(connection, self._tuning.settle_s)
        else:
            settle_published(connection, self._publication, published, self._tuning.settle_s)

    def _chunks(
        self, table: CapturedTable, chunk_rows: int, where: str | None
    ) -> Iterator[TableChunk]:
        connection, server = self._open()
        least = self._tuning.sampled_blocks
        yield from plan_table(connection, server.db, table, chunk_rows, where, sampled_blocks=least)

    def _borders(self, chunk: TableChunk, rows: int) -> Sequence[Border]:
        connection, _ = self._open()
        for facts in self._captured(connection):
            if (facts.schema, facts.table) == (chunk.schema, chunk.table):
                check_bounds(facts, chunk)
                return borders_within(connection, facts, chunk.bounds, rows)
        return ()

    def _prepare(self, connection: Any) -> PostgresServer:
        prepare_session(connection, self._tuning.lock_wait_s)
        return server_info(connection)

    def _driver_errors(self) -> tuple[type[Exception], Callable[[BaseException, str], Exception]]:
        import psycopg

        return psycopg.Error, translated

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

    def _select(self, chunk: TableChunk, doing: str) -> SelectedRows:
        """Open a view and start the COPY."""
        import psycopg

        connection, server = self._open()
        table = (str(chunk.schema), chunk.table)
        try:
            view = open_view(connection, server, table)
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return self._nothing()
        facts = self._known.get(connection, *table)
        if facts is None:
            return self._nothing()
        check_bounds(facts, chunk)
        plan = self._plan_of(server, facts)
        if plan is None:
            return self._nothing()
        if chunk.bounds.get("where"):
            connection.execute(OWN_PATH)
        parts = copy_out(connection, select_rows(facts, chunk, plan.select), doing)

        def check(received: int) -> None:
            _check_count(parts, received, doing)
            close_view(connection)

        return SelectedRows(view, plan.schema, _rows(parts, plan), check)

    def _plan_of(self, server: PostgresServer, facts: CapturedTable) -> WalTablePlan | None:
        """Return how to decode a table's rows, which is looked up only when it was altered."""
        name = (facts.schema, facts.table)
        made = self._made.get(name)
        if made is not None and made[0] is facts:
            return made[1]
        plan = self._planner(server).plan_of_table(*name)
        if plan is not None:
            self._made[name] = facts, plan
        return plan

    def _nothing(self) -> SelectedRows:
        """Return no rows: the table is gone."""
        connection, server = self._open()
        close_view(connection)
        view = open_empty_view(connection, server)
        return SelectedRows(view, None, iter(()), lambda _: close_view(connection))


def _rows(parts: RowParts, plan: WalTablePlan) -> Iterator[TableRows]:
    for part in parts:
        rows = decode_copy(part, plan).rows
        yield TableRows(rows.column("after"), rows.column("key"))


def _check_where(connection: Any, facts: CapturedTable, where: str) -> None:
    import psycopg

    try:
        # Prepared, because the server then takes one statement only.
        with connection.transaction(force_rollback=True):
            connection.execute(OWN_PATH)
            for sql in checks_of(where, facts.from_clause):
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
