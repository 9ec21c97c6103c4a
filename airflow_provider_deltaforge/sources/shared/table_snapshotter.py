"""The frame of every source's snapshot: choose tables, cut them, read chunk by chunk as events."""

import contextlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns.value_codes import repeated
from airflow_provider_deltaforge.errors import DeltaForgeError, SpecError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.events.ids import id_key, row_ids
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.shared.change_rows import (
    change_rows,
    id_column,
    version_column,
)
from airflow_provider_deltaforge.sources.shared.table_chunks import Border, split_at
from airflow_provider_deltaforge.spec.patterns import TableMatcher

_log = logging.getLogger(__name__)

Server = TypeVar("Server")
Table = TypeVar("Table")
TableName = tuple[str, str]
"""Database or schema, and name."""


@dataclass(frozen=True, slots=True)
class View:
    """A consistent view of a table.

    Attributes:
        cut: a position; the view contains every change up to it.
        ts_ms: the server's clock when the view opened, ms since epoch.
    """

    cut: Position
    ts_ms: int

    def after(self, tx: int) -> Position:
        """Return the cut: the rows of a view are one transaction."""
        return self.cut


class TableRows(NamedTuple):
    """Rows of a table as JSON.

    Attributes:
        after: binary.
        key: binary; None, or all null, for a table without a key.
    """

    after: pa.Array
    key: pa.Array | None


NO_ROWS = TableRows(pa.array([], pa.binary()), None)


class SelectedRows(NamedTuple):
    """The rows of a chunk, which are still on their way.

    Attributes:
        view: what they are read from.
        schema: of the table; None for one that is gone.
        parts: the rows in order.
        check: called with the number of rows that came, behind the last part.
        mark: stands in the events' ``schema`` instead of the chunk's; None: the chunk's.
    """

    view: View
    schema: TableSchema | None
    parts: Iterator[TableRows]
    check: Callable[[int], None]
    mark: str | None = None


class TableSnapshotter(ABC, Generic[Table]):
    """Implements ``sources.contract.Snapshotter``; a subclass knows one database's tables.

    Args:
        source_id: seeds the event ids.
    """

    connector: ClassVar[str]
    """The source's name in events."""
    pattern_hint: ClassVar[str]
    """What a person should check when a pattern names no captured table."""

    def __init__(self, source_id: str) -> None:
        self.warnings: list[str] = []
        self._source_id = source_id

    @abstractmethod
    def begin(self) -> Position:
        """Return the position where the stream must start so that no change behind it is missed."""

    @abstractmethod
    def guard(self, position: Position) -> None:
        """Check that the log from ``position`` on is still there.

        Raises:
            PositionLostError: it is not, so the snapshot is worthless and must be cancelled.
        """

    def settle(self) -> None:
        """Do nothing: a view's cut says what it contains."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Safe to call twice."""

    @abstractmethod
    def _choose(self, patterns: Sequence[str], where: str | None) -> Mapping[TableName, Table]:
        """Return the captured tables that the patterns name, ready to be cut.

        ``_chosen`` picks them, ``_only`` the one table that a condition ``where`` is for.
        """

    @abstractmethod
    def _chunks(self, table: Table, chunk_rows: int, where: str | None) -> Iterator[TableChunk]:
        """Yield a table's chunks in key order, at least one."""

    @abstractmethod
    def _borders(self, chunk: TableChunk, rows: int) -> Iterable[Border]:
        """Return every ``rows``-th key of a chunk, in key order; none of one without a key.

        The last one may be the end of the chunk.
        """

    @abstractmethod
    def _select(self, chunk: TableChunk, doing: str) -> SelectedRows:
        """Open a view and begin to read a chunk's rows; ``doing`` is what errors say."""

    @abstractmethod
    def _named_by(self, pattern: str) -> Callable[[str, str], bool]:
        """Return what decides whether a pattern names a table, by qualifier and name."""

    def plan(
        self, chunk_rows: int, tables: Sequence[str] = (), where: str | None = None
    ) -> Iterator[TableChunk]:
        """Cut the captured tables into chunks, table by table.

        Raises:
            SpecError: a pattern matches no captured table, or the condition is wrong.
        """
        with self._doing("planning the snapshot"):
            chosen = self._choose(tables, where)
        for name, table in chosen.items():
            chunks = self._chunks(table, chunk_rows, where)
            while True:
                with self._doing(f"planning {qualified_name(*name)}"):
                    chunk = next(chunks, None)
                if chunk is None:
                    break
                yield chunk

    def is_splittable(self, chunk: TableChunk) -> bool:
        """Return whether a chunk is a range of keys."""
        return bool(chunk.bounds.get("columns"))

    def split(self, chunk: TableChunk, rows: int) -> Sequence[TableChunk]:
        """Return the parts of a chunk; see ``SplitsChunks``."""
        with self._doing(f"splitting a chunk of {chunk.full_name}"):
            borders = self._borders(chunk, rows) if self.is_splittable(chunk) else ()
            return split_at(chunk, borders, rows)

    def read(self, chunk: TableChunk, run: str) -> Iterator[ChangeBatch]:
        """Yield a chunk's rows as op ``r`` events; every batch's ``end`` is the chunk's cut.

        A table that is gone gives one empty batch and a warning. Closing the iterator early
        closes the connection, because rows are still on their way.

        Raises:
            SchemaError: the table's key changed since the chunk was planned.
            RetryableError: the server is away, or the table is altered all the time; the chunk
                may be read again.
        """
        name = chunk.full_name
        doing = f"reading {name}"
        finished = False
        try:
            with self._doing(doing):
                selected = self._select(chunk, doing)
            if selected.schema is None:
                self._warn(f"{name} is gone; its chunk is empty")
            if selected.mark is not None:
                chunk = replace(chunk, schema=selected.mark)
            cut = json.dumps(selected.view.cut, sort_keys=True)
            # Rows without a key are told apart by their number in this very chunk.
            ids = id_key(self._source_id, run, cut, name, chunk.id)
            first, count = 0, 0
            while True:
                with self._doing(doing):
                    rows = next(selected.parts, None)
                if rows is None and count:
                    break
                # One batch at least, so that an empty chunk has its cut, too.
                rows = rows or NO_ROWS
                yield self._events(rows, chunk, selected, ids, first)
                first, count = first + len(rows.after), count + 1
            with self._doing(doing):
                selected.check(first)
            finished = True
        finally:
            if not finished:
                self.close()

    def _chosen(
        self, captured: Mapping[TableName, Table], patterns: Sequence[str]
    ) -> Mapping[TableName, Table]:
        """Return the captured tables that the patterns name; all of them without patterns.

        Raises:
            SpecError: a pattern names none of them.
        """
        if not patterns:
            return captured
        chosen: set[TableName] = set()
        for pattern in patterns:
            is_named = self._named_by(pattern)
            found = [name for name in captured if is_named(*name)]
            if not found:
                raise SpecError(
                    f"tables: {pattern!r} matches none of the captured tables; check the "
                    f"source's 'tables'{self.pattern_hint}"
                )
            chosen.update(found)
        return {name: captured[name] for name in sorted(chosen, key=".".join)}

    @staticmethod
    def _only(chosen: Mapping[TableName, Table]) -> Table:
        """Return the table that a condition is for.

        Raises:
            SpecError: there are none or several.
        """
        if len(chosen) != 1:
            names = ", ".join(qualified_name(*name) for name in chosen) or "none"
            raise SpecError(f"where: give exactly one table with a condition, not {names}")
        return next(iter(chosen.values()))

    def _events(
        self, rows: TableRows, chunk: TableChunk, selected: SelectedRows, ids: Any, first: int
    ) -> ChangeBatch:
        """Return rows of a chunk as op ``r`` events.

        Args:
            rows: what was read.
            chunk: what they belong to.
            selected: what they were read from.
            ids: the key of their event ids.
            first: number of the chunk's rows before them.
        """
        count, view, schema = len(rows.after), selected.view, selected.schema
        last = np.zeros(count, np.bool_)
        last[-1:] = True
        schemas = () if schema is None else (schema,)
        batch = change_rows(
            count,
            {
                "op": repeated("r", count),
                "db": repeated(chunk.db, count),
                "schema": None if chunk.schema is None else repeated(chunk.schema, count),
                "table": repeated(chunk.table, count),
                "after": rows.after,
                "key": rows.key,
                "ts_ms": pa.array(np.full(count, view.ts_ms, np.int64)),
                "tx": pa.array(np.zeros(count, np.int32)),
                "row": pa.array(np.arange(first, first + count, dtype=np.int32)),
                "tx_end": pa.array(last),
                "event_id": id_column(row_ids(ids, *_row_names(rows.key, first, count))),
                "schema_version": version_column(schemas, np.zeros(count, np.int32)),
            },
        )
        return ChangeBatch(batch, view, view.cut, self.connector, batch.nbytes, schemas=schemas)

    def _doing(self, what: str) -> AbstractContextManager[None]:
        """Turn the driver's errors inside into ours; ``what`` is tried."""
        return contextlib.nullcontext()

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        _log.warning(text)


class ServerSnapshotter(TableSnapshotter[Table], Generic[Server, Table]):
    """Reads over one connection to a server, opened when first needed.

    Args:
        connect: returns a new connection.
        matcher: which tables are captured.
        source_id: seeds the event ids.
    """

    def __init__(self, connect: Callable[[], Any], matcher: TableMatcher, source_id: str) -> None:
        super().__init__(source_id)
        self._connect = connect
        self._matcher = matcher
        self._connection: Any = None
        self._server: Server | None = None

    @abstractmethod
    def _prepare(self, connection: Any) -> Server:
        """Set up a session for reading tables, and return what it talks to."""

    @abstractmethod
    def _driver_errors(self) -> tuple[type[Exception], Callable[[BaseException, str], Exception]]:
        """Return the base of the driver's errors, and what turns them into ours."""

    def close(self) -> None:
        """Close the connection. Safe to call twice."""
        connection, self._connection, self._server = self._connection, None, None
        if connection is not None:
            self._drop(connection)

    def _open(self) -> tuple[Any, Server]:
        if self._connection is None or self._server is None:
            # Set at once, so that an error below can close it.
            self._connection = self._connect()
            self._server = self._prepare(self._connection)
        return self._connection, self._server

    def _drop(self, connection: Any) -> None:
        connection.close()

    def _named_by(self, pattern: str) -> Callable[[str, str], bool]:
        return TableMatcher((pattern,), self._matcher.default, self._matcher.system).matches

    @contextlib.contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        """Turn the driver's errors inside into ours, and drop the connection they came from."""
        drivers, translated = self._driver_errors()
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as error:
            self.close()
            if isinstance(error, (drivers, OSError)) and not isinstance(error, DeltaForgeError):
                raise translated(error, what) from error
            raise


def _row_names(keys: pa.Array | None, first: int, count: int) -> tuple[Any, Any]:
    """Return what names each row in its chunk, uint8 and int64 offsets: its key, or its number."""
    if keys is None or count == 0 or keys.null_count:
        numbers = np.arange(first, first + count, dtype="<i8")
        return numbers.view(np.uint8), np.arange(0, 8 * count + 1, 8, dtype=np.int64)
    _, ends, data = keys.buffers()
    places = np.frombuffer(ends, np.int32)[keys.offset : keys.offset + count + 1]
    return np.frombuffer(data, np.uint8), places.astype(np.int64)
