"""Reads tables in chunks, each from a view whose place in the log is known."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain
from typing import Any

from airflow_provider_deltaforge.errors import (
    PositionLostError,
    RetryableError,
    SchemaError,
    SpecError,
)
from airflow_provider_deltaforge.events.change import OUTBOX, ChangeBatch, Position
from airflow_provider_deltaforge.events.ids import id_key
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
from airflow_provider_deltaforge.sources.mysql.outbox_tables import OutboxTagger
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition
from airflow_provider_deltaforge.sources.mysql.session import check_count
from airflow_provider_deltaforge.sources.mysql.snapshot.snapshot_batch import (
    NO_ROWS,
    snapshot_batch,
)
from airflow_provider_deltaforge.sources.mysql.snapshot.table_chunks import plan_table, select_rows
from airflow_provider_deltaforge.sources.mysql.snapshot.text_rows_kernel import shape_of
from airflow_provider_deltaforge.sources.mysql.snapshot.text_stream import (
    TABLE_CHANGED,
    RowPart,
    TextResult,
)
from airflow_provider_deltaforge.sources.mysql.snapshot.views import (
    begin_position,
    close_view,
    open_view,
    prepare_session,
)
from airflow_provider_deltaforge.sources.shared.table_copy import View, chosen_tables, driver_errors
from airflow_provider_deltaforge.spec.patterns import TableMatcher

_log = logging.getLogger(__name__)

VIEW_ATTEMPTS = 5
"""Views tried for one chunk while DDL keeps invalidating them."""

_NO_SUCH_TABLE = {1146, 1049}
_UNKNOWN_COLUMN = 1054


class MySqlSnapshotter:
    """Plans and reads chunks over one connection, opened when first needed.

    Args:
        connect: returns a new pymysql connection.
        matcher: which tables are captured.
        source_id: seeds the event ids.
        tagging: which rows are outbox messages.
        decimal_numbers: DECIMAL becomes a JSON number, not a string.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        matcher: TableMatcher,
        source_id: str,
        tagging: OutboxTagger | None = None,
        *,
        decimal_numbers: bool = False,
    ) -> None:
        self.warnings: list[str] = []
        self._connect = connect
        self._matcher = matcher
        self._source_id = source_id
        self._tagging = tagging
        self._decimal_numbers = decimal_numbers
        self._connection: Any = None
        self._server: MySqlServer | None = None

    def begin(self) -> Position:
        """Return the position the stream must start at so that no chunk read later has a gap."""
        with self._doing("beginning the snapshot"):
            connection, server = self._open()
            tables = [
                (f.schema.db, f.schema.table) for f in captured_facts(connection, self._matcher)
            ]
            return begin_position(connection, server, tables)

    def plan(
        self, chunk_rows: int, tables: Sequence[str] = (), where: str | None = None
    ) -> Iterator[TableChunk]:
        """Cut the captured tables into chunks, table by table.

        Raises:
            SpecError: a pattern matches no captured table, or the condition is wrong.
        """
        with self._doing("planning the snapshot"):
            connection, _ = self._open()
            captured = {
                (facts.schema.db, facts.schema.table): facts
                for facts in captured_facts(connection, self._matcher)
            }
            check = "its user may SELECT from them"
            chosen = chosen_tables(captured, tables, self._matcher, check)
            if where is not None:
                _check_where(connection, chosen, where)
        for facts in chosen:
            chunks = plan_table(connection, facts, chunk_rows, where)
            while True:
                with self._doing(f"planning {facts.schema.full_name}"):
                    chunk = next(chunks, None)
                if chunk is None:
                    break
                yield chunk

    def read(self, chunk: TableChunk, run: str) -> Iterator[ChangeBatch]:
        """Yield a chunk's rows as op ``r`` events; every batch's ``end`` is the chunk's cut.

        A table that is gone gives one empty batch and a warning. Closing the iterator early
        closes the connection, because rows are still on their way.

        Raises:
            SchemaError: the table's key changed since the chunk was planned.
            RetryableError: the server is away, or DDL never ceased; the chunk may be read again.
        """
        finished = False
        try:
            with self._doing(f"reading {chunk.db}.{chunk.table}"):
                view, schema, parts = self._select(chunk)
            if schema is None:
                self._warn(f"{chunk.db}.{chunk.table} is gone; its chunk is empty")
            ids = self._ids(chunk, run, view)
            told = chunk
            if self._tagging is not None and self._tagging.of(chunk.db, chunk.table) == "all":
                told = replace(chunk, schema=OUTBOX)
            first = 0
            while True:
                with self._doing(f"reading {chunk.db}.{chunk.table}"):
                    part = next(parts, None)
                if part is None:
                    break
                yield snapshot_batch(part, told, schema, view, ids, first)
                first += len(part.rows)
            with self._doing(f"reading {chunk.db}.{chunk.table}"):
                if schema is not None:
                    check_count(self._connection, first, schema.full_name)
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
        with self._doing("checking the log"):
            connection, server = self._open()
            _check_kept(connection, server, LogPosition.from_json(position))

    def close(self) -> None:
        """Let go of the connection. Safe to call twice."""
        connection, self._connection, self._server = self._connection, None, None
        if connection is not None:
            # A result that is still on its way must not be drained: only drop the socket.
            connection._force_close()  # noqa: SLF001

    def _open(self) -> tuple[Any, MySqlServer]:
        if self._connection is None or self._server is None:
            # Set at once, so that whoever sees an error below can close it.
            self._connection = self._connect()
            prepare_session(self._connection)
            self._server = server_info(self._connection)
        return self._connection, self._server

    def _select(self, chunk: TableChunk) -> tuple[View, TableSchema | None, Iterator[RowPart]]:
        """Open a view and start the SELECT; a fresh view whenever DDL came in between.

        The schema is None, and the only part empty, when the table is gone.
        """
        import pymysql

        connection, server = self._open()
        for _ in range(VIEW_ATTEMPTS):
            view = open_view(connection, server, (chunk.db, chunk.table))
            try:
                # Touching the table takes its metadata lock, so the schema cannot change until
                # the view closes.
                fetch(connection, f"SELECT 1 FROM {quote(chunk.db, chunk.table)} LIMIT 0")
                schema = load_table(connection, chunk.db, chunk.table)
                if schema is None:
                    return view, None, iter([NO_ROWS])
                _check_bounds(schema, chunk)
                shape = shape_of(schema, decimal_numbers=self._decimal_numbers)
                sql = select_rows(schema, chunk, shape.select)
                parts = TextResult(connection, sql, shape).parts()
                first = next(parts)  # Only the first row tells that the view is too old.
                return view, schema, chain([first], parts)
            except pymysql.err.MySQLError as error:
                if error.args[0] in _NO_SUCH_TABLE:
                    return view, None, iter([NO_ROWS])
                if error.args[0] not in (TABLE_CHANGED, _UNKNOWN_COLUMN):
                    raise
                close_view(connection)
        raise RetryableError(
            f"{chunk.db}.{chunk.table} was altered {VIEW_ATTEMPTS} times while its rows were about "
            "to be read; the chunk can be read again"
        )

    def _ids(self, chunk: TableChunk, run: str, view: View) -> Any:
        cut = json.dumps(view.cut, sort_keys=True)
        return id_key(self._source_id, run, cut, f"{chunk.db}.{chunk.table}")

    def _doing(self, what: str) -> AbstractContextManager[None]:
        """Turn the driver's errors into ours, and drop the connection they came from."""
        import pymysql

        return driver_errors(what, pymysql.err.MySQLError, translated, self.close)

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        _log.warning(text)


def _check_where(connection: Any, chosen: Sequence[TableSize], where: str) -> None:
    import pymysql

    if len(chosen) != 1:
        names = ", ".join(f.schema.full_name for f in chosen) or "none"
        raise SpecError(f"where: give exactly one table with a condition, not {names}")
    schema = chosen[0].schema
    try:
        fetch(connection, f"SELECT 1 FROM {quote(schema.db, schema.table)} WHERE ({where}) LIMIT 0")
    except pymysql.err.ProgrammingError as error:
        raise SpecError(f"where: the server refuses the condition: {error.args[-1]}") from None
    except pymysql.err.OperationalError as error:
        if error.args[0] != 1054:
            raise
        raise SpecError(f"where: {error.args[-1]}") from None


def _check_bounds(schema: TableSchema, chunk: TableChunk) -> None:
    columns = tuple(chunk.bounds.get("columns", ()))
    if columns and (schema.implicit_key or columns != schema.primary_key[: len(columns)]):
        raise SchemaError(
            f"{schema.full_name}: the primary key changed since its chunks were planned; start a "
            "new snapshot run"
        )


def _check_kept(connection: Any, server: MySqlServer, position: LogPosition) -> None:
    """Raise PositionLostError unless the server still has everything after ``position``."""
    check_reach(connection, server, position)
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
