"""Reads tables in chunks, each from a view whose place in the log is known."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from airflow_provider_deltaforge.errors import (
    PositionLostError,
    RetryableError,
    SpecError,
)
from airflow_provider_deltaforge.events.change import OUTBOX, Position
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.mysql.catalog import (
    TableSize,
    captured_facts,
    fetch,
    load_table,
    quote,
)
from airflow_provider_deltaforge.sources.mysql.connection import (
    MySqlServer,
    server_info,
    translated,
)
from airflow_provider_deltaforge.sources.mysql.failover import check_reach
from airflow_provider_deltaforge.sources.mysql.name_case import check_case
from airflow_provider_deltaforge.sources.mysql.outbox_tables import OutboxTagger
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition
from airflow_provider_deltaforge.sources.mysql.session import check_count
from airflow_provider_deltaforge.sources.mysql.snapshot import key_order
from airflow_provider_deltaforge.sources.mysql.snapshot.exact_cuts import ExactCutFinder
from airflow_provider_deltaforge.sources.mysql.snapshot.key_ranges import (
    chunk_columns,
    cut_by,
    select_rows,
)
from airflow_provider_deltaforge.sources.mysql.snapshot.table_chunks import (
    borders_within,
    plan_table,
)
from airflow_provider_deltaforge.sources.mysql.snapshot.text_rows_kernel import shape_of
from airflow_provider_deltaforge.sources.mysql.snapshot.text_stream import (
    TABLE_CHANGED,
    TextResult,
)
from airflow_provider_deltaforge.sources.mysql.snapshot.views import (
    ViewOpener,
    begin_position,
    close_view,
    prepare_session,
)
from airflow_provider_deltaforge.sources.mysql.tuning import MYSQL_TUNING, MySqlTuning
from airflow_provider_deltaforge.sources.shared.table_chunks import Border, check_key, checks_of
from airflow_provider_deltaforge.sources.shared.table_snapshotter import (
    SelectedRows,
    ServerSnapshotter,
    TableName,
    TableRows,
    View,
)
from airflow_provider_deltaforge.spec.patterns import TableMatcher

VIEW_ATTEMPTS = 5
"""Views tried for one chunk while DDL keeps invalidating them."""

_NO_SUCH_TABLE = {1146, 1049}
_UNKNOWN_COLUMN = 1054


class MySqlSnapshotter(ServerSnapshotter[MySqlServer, TableSize]):
    """Reads tables with SELECT, past the driver's row conversion.

    Args:
        connect: returns a new pymysql connection.
        matcher: which tables are captured.
        source_id: seeds the event ids.
        tagging: which rows are outbox messages.
        decimal_numbers: DECIMAL becomes a JSON number, not a string.
        tuning: how long it waits for others.
    """

    connector = "mysql"
    pattern_hint = ", and that its user may SELECT from them"

    def __init__(
        self,
        connect: Callable[[], Any],
        matcher: TableMatcher,
        source_id: str,
        tagging: OutboxTagger | None = None,
        *,
        decimal_numbers: bool = False,
        tuning: MySqlTuning = MYSQL_TUNING,
    ) -> None:
        super().__init__(connect, matcher, source_id)
        self._tagging = tagging
        self._decimal_numbers = decimal_numbers
        self._tuning = tuning
        self._exact_cuts = ExactCutFinder(connect, decimal_numbers=decimal_numbers)
        self._views = ViewOpener(tuning, self._other_session)
        self._locking: Any = None

    def begin(self) -> Position:
        """Return the position the stream must start at so that no chunk read later has a gap."""
        with self._doing("beginning the snapshot"):
            connection, server = self._open()
            check_case(server, self._matcher, self._tagging)
            tables = [
                (f.schema.db, f.schema.table) for f in captured_facts(connection, self._matcher)
            ]
            return begin_position(connection, server, tables, self._tuning)

    def guard(self, position: Position) -> None:
        """Check that the log from ``position`` on is still there.

        Raises:
            PositionLostError: it is not; the snapshot is worthless and must be cancelled.
        """
        with self._doing("checking the log"):
            connection, server = self._open()
            _check_kept(connection, server, LogPosition.from_json(position), self._tuning)

    def chunks_of(
        self, chunks: Sequence[TableChunk], keys: Sequence[Mapping[str, Any]]
    ) -> Sequence[int]:
        """Return which of a table's chunks each key is in; see ``OrdersKeys``."""
        with self._doing("asking which chunks rows are in"):
            return key_order.chunks_of(self._open()[0], chunks, keys)

    def _choose(self, patterns: Sequence[str], where: str | None) -> Mapping[TableName, TableSize]:
        connection, _ = self._open()
        chosen = self._chosen(self._captured(connection), patterns)
        if where is not None:
            _check_where(connection, self._only(chosen).schema, where)
        return chosen

    def _captured(self, connection: Any) -> Mapping[TableName, TableSize]:
        sizes = captured_facts(connection, self._matcher)
        return {(size.schema.db, size.schema.table): size for size in sizes}

    def _chunks(self, table: TableSize, chunk_rows: int, where: str | None) -> Iterator[TableChunk]:
        yield from plan_table(self._open()[0], table, chunk_rows, where, self._tuning)

    def _borders(self, chunk: TableChunk, rows: int) -> Iterator[Border]:
        connection, _ = self._open()
        schema = load_table(connection, chunk.db, chunk.table)
        if schema is not None:
            _check_bounds(schema, chunk)
            yield from borders_within(connection, schema, chunk.bounds, rows)

    def _select(self, chunk: TableChunk, doing: str) -> SelectedRows:
        view, schema, parts = self._parts(chunk)

        def check(received: int) -> None:
            if schema is not None:
                check_count(self._connection, received, schema.full_name)
            close_view(self._connection)

        tagged = self._tagging is not None and self._tagging.of(chunk.db, chunk.table) == "all"
        return SelectedRows(view, schema, parts, check, OUTBOX if tagged else None)

    def _prepare(self, connection: Any) -> MySqlServer:
        prepare_session(connection)
        return server_info(connection)

    def _other_session(self) -> Any:
        """Return a connection beside the one that reads: a view would let go of its own lock."""
        if self._locking is None:
            self._locking = self._connect()
        return self._locking

    def _drop(self, connection: Any) -> None:
        # A result that is still on its way must not be drained: only drop the socket.
        connection._force_close()  # noqa: SLF001
        locking, self._locking = self._locking, None
        if locking is not None:
            locking._force_close()  # noqa: SLF001 - with it, its lock

    def _driver_errors(self) -> tuple[type[Exception], Callable[[BaseException, str], Exception]]:
        import pymysql

        return pymysql.err.MySQLError, translated

    def _parts(self, chunk: TableChunk) -> tuple[View, TableSchema | None, Iterator[TableRows]]:
        """Open a view and start the SELECT; a fresh view whenever DDL came in between.

        The schema is None, and there is no part, when the table is gone.
        """
        import pymysql

        connection, server = self._open()
        for _ in range(VIEW_ATTEMPTS):
            made_at = self._made_at(chunk)
            view = self._views.open(connection, server, (chunk.db, chunk.table))
            try:
                # Touching the table takes its metadata lock, so the schema cannot change until
                # the view closes.
                fetch(connection, f"SELECT 1 FROM {quote(chunk.db, chunk.table)} LIMIT 0")
                schema = load_table(connection, chunk.db, chunk.table)
                if schema is None:
                    return view, None, iter(())
                if self._made_at(chunk) != made_at:
                    # Another table has taken its name: what a tool has copied into that is younger
                    # than the view, which shows it as it was.
                    close_view(connection)
                    continue
                _check_bounds(schema, chunk)
                shape = shape_of(schema, decimal_numbers=self._decimal_numbers)
                if view.cut.get("inexact"):
                    view = self._exact_cuts.find(connection, server, view, schema, shape)
                sql = select_rows(schema, chunk, shape.select)
                parts = TextResult(connection, sql, shape).parts()
                first = next(parts)  # Only the first row tells that the view is too old.
                return view, schema, chain([first], parts)
            except pymysql.err.MySQLError as error:
                if error.args[0] in _NO_SUCH_TABLE:
                    return view, None, iter(())
                if error.args[0] not in (TABLE_CHANGED, _UNKNOWN_COLUMN):
                    raise
                close_view(connection)
        raise RetryableError(
            f"{chunk.db}.{chunk.table} was altered {VIEW_ATTEMPTS} times while its rows were about "
            "to be read; the chunk can be read again"
        )

    def _made_at(self, chunk: TableChunk) -> Any:
        """Return when the table was made; None if there is none."""
        sql = (
            "SELECT CREATE_TIME FROM information_schema.TABLES "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
        )
        found = fetch(self._other_session(), sql, (chunk.db, chunk.table))
        return found[0][0] if found else None


def _check_where(connection: Any, schema: TableSchema, where: str) -> None:
    import pymysql

    try:
        for sql in checks_of(where, quote(schema.db, schema.table)):
            fetch(connection, sql)
    except pymysql.err.ProgrammingError as error:
        raise SpecError(f"where: the server refuses the condition: {error.args[-1]}") from None
    except pymysql.err.OperationalError as error:
        if error.args[0] != 1054:
            raise
        raise SpecError(f"where: {error.args[-1]}") from None


def _check_bounds(schema: TableSchema, chunk: TableChunk) -> None:
    columns = len(chunk.bounds.get("columns", ()))
    if columns:
        check_key(schema.full_name, chunk.bounds, cut_by(chunk_columns(schema)[:columns]))


def _check_kept(
    connection: Any, server: MySqlServer, position: LogPosition, tuning: MySqlTuning
) -> None:
    """Raise PositionLostError unless the server still has everything after ``position``."""
    check_reach(connection, server, position, settling_s=tuning.settling_s)
    if position.gtids is not None:
        return
    kept = [str(row[0]) for row in fetch(connection, "SHOW BINARY LOGS")]
    if not kept:  # A server that is just rotating; the next check tells.
        return
    if position.file not in kept:
        raise PositionLostError(
            f"the server's log begins at {kept[0]}, but it is needed from {position.file}; start "
            "the snapshot again, and keep the log longer (binlog_expire_logs_seconds)"
        )
