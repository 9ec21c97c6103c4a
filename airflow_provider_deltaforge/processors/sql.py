"""A select over change events, by DuckDB: shut off from everything but the batch."""

import re
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, PositiveInt

from airflow_provider_deltaforge.errors import EventError, FatalError, RetryableError, SpecError
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.processors.bad_rows import RowsError, apart
from airflow_provider_deltaforge.processors.changed_events import (
    OPS,
    ROUTED,
    outcome,
    repeated,
    replaced,
    taken,
)
from airflow_provider_deltaforge.processors.contract import Processed, Processor, Worker
from airflow_provider_deltaforge.processors.json_objects import are_json
from airflow_provider_deltaforge.spec.settings import Settings
from airflow_provider_deltaforge.telemetry.redaction import redacted

_NEVER_NULL = ("op", "db", "table", "ts_ms")

ROW = "_row"
_JSON = ("before", "after", "key")
_SETTABLE = {
    **dict.fromkeys(("op", "db", "schema", "table"), "VARCHAR"),
    **dict.fromkeys(_JSON, "JSON"),
    "ts_ms": "BIGINT",
    "tags": "VARCHAR[]",
    "topic": "VARCHAR",
    "routing_key": "VARCHAR",
    "headers": "MAP(VARCHAR, VARCHAR)",
    "raw_payload": "BOOLEAN",
}
_READ_ONLY = ("tx_id", "event_id", "schema_version", "schema_sequence", "ddl", "synthetic")
_LITERAL = re.compile(r"'(?:''|[^'])*'")
_STOPPED = "the query was stopped: the stream ends"
_DAY_MS = 86_400_000
_TIB_MB = 2**20
_POLL_S = 0.05
_CLOSE_TRIES = 100
_ROW_KINDS = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT"})
_EXTENSIONS = {**dict.fromkeys((*_JSON, "ddl"), b"arrow.json"), "event_id": b"arrow.uuid"}

_CLOSED = {
    "threads": "1",
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "lock_configuration": "true",
}


class QueryLimits(Settings):
    """What the query may use."""

    mem_mb: PositiveInt = Field(default=256, ge=16, le=_TIB_MB)
    """Memory of the engine, in MiB."""
    timeout_ms: PositiveInt = Field(default=10_000, le=_DAY_MS)
    """Wall-clock time for one batch, in milliseconds, the search for bad rows included."""


class Sql(Processor):
    """Run a select over each batch: what it returns is what goes on."""

    template_fields: ClassVar[frozenset[str]] = frozenset({"query"})

    id: str = "sql"
    query: str = Field(min_length=1)
    """One ``select`` from the table ``events``, in DuckDB's SQL; it must return ``_row``."""
    limits: QueryLimits = QueryLimits()
    """What the query may use."""

    def check(self) -> None:
        """Prepare the query once, where DuckDB is installed."""
        if find_spec("duckdb") is not None:
            self.open().close()

    def open(self) -> Worker:
        """Start the engine and prepare the query.

        Raises:
            SpecError: the engine is not installed, or the query cannot work.
        """
        return SqlWorker(self.query, self.limits.mem_mb, self.limits.timeout_ms / 1000)


class SqlWorker:
    """Runs the query over each batch, in the order of the batch."""

    def __init__(self, query: str, mem_mb: int, timeout_s: float) -> None:
        self._engine = Engine(query, mem_mb, timeout_s)
        self._timeout_s = timeout_s

    def process(self, rows: pa.RecordBatch) -> Processed:
        """Return what the query makes of the batch; rows that it fails for are rejected.

        Raises:
            EventError: the query takes too long or too much memory, or fails for most rows.
        """
        deadline = time.monotonic() + self._timeout_s
        parts, rejections = apart(rows, lambda part: self._select(part, deadline))
        origins, columns = _joined(parts, self._engine.columns)
        order = np.argsort(origins, kind="stable")
        if not np.array_equal(order, np.arange(len(order))):
            origins = origins[order]
            columns = [column.take(pa.array(order)) for column in columns]
        made_rows = taken(rows, origins)
        made_rows = replaced(made_rows, dict(zip(self._engine.columns, columns, strict=True)))
        return outcome(rows, made_rows, origins, repeated(origins), rejections)

    def close(self) -> None:
        """Close the engine. Safe to call twice."""
        self._engine.close()

    def _select(self, part: pa.RecordBatch, deadline: float) -> pa.Table:
        result = self._engine.run(part, max(0.0, deadline - time.monotonic()))
        _check_rows(result, part.num_rows)
        return result


def _check_rows(result: pa.Table, count: int) -> None:
    """Refuse what is no change event.

    Raises:
        RowsError: some row is none.
    """
    if not result.num_rows:
        return
    row = result.column(ROW)
    low, high = pc.min_max(row).as_py().values()
    if row.null_count or low < 0 or high >= count:
        raise RowsError(f"the query returned a {ROW} that is none of the batch's")
    for name in _NEVER_NULL:
        if name in result.column_names and result.column(name).null_count:
            raise RowsError(f"the query returned null for {name}, which an event always has")
    if "op" in result.column_names and not OPS.issuperset(pc.unique(result["op"]).to_pylist()):
        raise RowsError("the query returned an op that is none of c, u, d, r, t and ddl")
    for name in _JSON:
        if name in result.column_names and not are_json(result.column(name)):
            raise RowsError(
                f"the query returned a value in {name} that JSON cannot hold, such as NaN or "
                "Infinity: cast it to varchar, or leave it out"
            )


def _joined(
    parts: Sequence[tuple[int, pa.Table]], names: Sequence[str]
) -> tuple[Any, list[pa.Array]]:
    """Return the rows of all parts: which input row each stands for, and its columns."""
    if not parts:
        return np.zeros(0, np.int32), [pa.nulls(0) for _ in names]
    origins = [
        table.column(ROW).combine_chunks().cast(pa.int32()).to_numpy() + start
        for start, table in parts
    ]
    whole = pa.concat_tables([table for _, table in parts])
    return np.concatenate(origins), [_joined_column(whole.column(name)) for name in names]


def _joined_column(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole


def _event_fields() -> Sequence[pa.Field]:
    fields = []
    for name in (*_SETTABLE, *_READ_ONLY):
        if name in ROUTED:
            kind = CHANGE_SCHEMA.field("routing").type.field(ROUTED[name]).type
        else:
            kind = CHANGE_SCHEMA.field(name).type
        if name in (*_JSON, "ddl"):
            kind = pa.utf8()
        extension = _EXTENSIONS.get(name)
        metadata = {b"ARROW:extension:name": extension, b"ARROW:extension:metadata": b""}
        fields.append(pa.field(name, kind, metadata=metadata if extension else None))
    return [*fields, pa.field(ROW, pa.int32())]


_EVENTS = pa.schema(_event_fields())


class Engine:
    """One prepared query over a table ``events`` that is exchanged between its runs.

    Raises:
        SpecError: DuckDB is not installed, or the query cannot work; with DuckDB's own reason.
    """

    def __init__(self, query: str, mem_mb: int, timeout_s: float) -> None:
        try:
            import duckdb
        except ImportError as error:
            raise SpecError(
                "the processor 'sql' needs DuckDB: pip install 'airflow-provider-deltaforge[sql]'"
            ) from error
        self._duckdb = duckdb
        self._query = query
        self._mem_mb = mem_mb
        self._table = _Exchangeable()
        self._closed = False
        self._busy = threading.RLock()
        self._connection: Any = None
        self._selected: Any = None
        try:
            self._open()
            self._run(_NOTHING, timeout_s)
        except (duckdb.Error, EventError, RowsError) as error:
            self.close()
            raise SpecError(f"query: {_reason(error)}") from None
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        config = {**_CLOSED, "memory_limit": f"{self._mem_mb}MiB"}
        self._connection = self._duckdb.connect(":memory:", config=config)
        self._connection.register("events", self._table)
        self.columns, self._selected = self._prepare(self._query)

    def run(self, rows: pa.RecordBatch, timeout_s: float) -> pa.Table:
        """Run the query over some events.

        Raises:
            RowsError: it fails for some of them.
            EventError: it takes too long, or too much memory.
            FatalError: the engine is broken.
            RetryableError: it was closed meanwhile.
        """
        return self._run(_as_events(rows), timeout_s)

    def _run(self, events: pa.Table, timeout_s: float) -> pa.Table:
        with self._busy:
            if self._closed:
                raise RetryableError(_STOPPED)
            return self._bounded(events, timeout_s)

    def _bounded(self, events: pa.Table, timeout_s: float) -> pa.Table:
        duckdb, count = self._duckdb, events.num_rows
        self._table.content = events
        watch = threading.Timer(timeout_s, self._connection.interrupt)
        watch.daemon = True
        watch.start()
        try:
            return self._selected.to_arrow_table()
        except (duckdb.DataError, duckdb.InvalidInputException) as error:
            # What follows quotes the query, and shows where in it.
            raise RowsError(str(error).partition("\n")[0]) from None
        except duckdb.InternalException as error:
            # So it calls what some functions do with broken JSON; and then does nothing any more.
            self._shut()
            self._open()
            raise RowsError(str(error).partition("\n")[0]) from None
        except duckdb.InterruptException:
            if self._closed:
                raise RetryableError(_STOPPED) from None
            raise EventError(
                f"the query did not end within limits.timeout_ms for {count} events; raise "
                "it, lower batch.max_events, or change the query"
            ) from None
        except duckdb.OutOfMemoryException:
            raise EventError(
                f"the query needs more than limits.mem_mb ({self._mem_mb}) for {count} "
                "events; raise it, lower batch.max_events, or change the query"
            ) from None
        except duckdb.Error as error:
            raise FatalError(f"DuckDB failed with {type(error).__name__}; start again") from None
        finally:
            watch.cancel()
            self._table.content = _NOTHING

    def close(self) -> None:
        """Close the database, also while a query runs in another thread. Safe to call twice."""
        self._closed = True
        for _ in range(_CLOSE_TRIES):
            if self._busy.acquire(timeout=_POLL_S):
                self._shut()
                self._busy.release()
                return
            self._connection.interrupt()

    def _shut(self) -> None:
        self._selected = None
        if self._connection is not None:
            self._connection.close()

    def _prepare(self, query: str) -> tuple[Sequence[str], Any]:
        """Check a query; return the columns that it sets, and what runs it each time anew."""
        statements = self._duckdb.extract_statements(query)
        kinds = [statement.type for statement in statements]
        if kinds != [self._duckdb.StatementType.SELECT]:
            raise SpecError("query: must be one select, and nothing else")
        text = statements[0].query.strip().rstrip(";")
        described = self._connection.sql(text)
        names = list(described.columns)
        kinds_of = dict(zip(names, map(str, described.types), strict=False))
        del described
        _check(names, kinds_of)
        columns = [name for name in names if name in _SETTABLE]
        shown = [
            _quoted(ROW),
            *(f"{_expression(name, kinds_of[name])} as {_quoted(name)}" for name in columns),
        ]
        # A line of its own: the query may end in a comment.
        selected = f"select {', '.join(shown)} from (\n{text}\n) as _selected"
        return columns, self._connection.sql(selected)


def _reason(error: Exception) -> str:
    """Return what DuckDB says, and none of the query: a variable may have put a secret there."""
    text, _, shown = str(error).partition("\nLINE ")
    line = shown.partition(":")[0]
    text = _LITERAL.sub("'***'", redacted(text.strip()))
    return f"{text} (line {line} of the query)" if line.isdigit() else text


class _Exchangeable:
    """A table for DuckDB whose content is asked for anew in every run of a prepared query."""

    def __init__(self) -> None:
        self.content = _NOTHING

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.content.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return _EVENTS.__arrow_c_schema__()


_NOTHING = _EVENTS.empty_table()


def _as_events(rows: pa.RecordBatch) -> pa.Table:
    columns = []
    routing = rows.column("routing")
    for field in _EVENTS:
        if field.name == ROW:
            columns.append(pa.array(np.arange(rows.num_rows, dtype=np.int32)))
        elif field.name in ROUTED:
            columns.append(pc.struct_field(routing, ROUTED[field.name]))
        elif field.type == pa.utf8() and field.name in _EXTENSIONS:
            columns.append(_as_text(rows, field.name))
        else:
            columns.append(rows.column(field.name))
    return pa.Table.from_arrays(columns, schema=_EVENTS)


def _as_text(rows: pa.RecordBatch, name: str) -> pa.StringArray:
    try:
        return rows.column(name).cast(pa.utf8())
    except pa.ArrowInvalid:
        raise RowsError(f"{name} is not in UTF, as JSON must be") from None


def _check(names: Sequence[str], kinds: dict[str, str]) -> None:
    known = {*_SETTABLE, *_READ_ONLY, ROW}
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SpecError(
            f"query: returns {twice[0]!r} twice; to change a column write "
            f"'select * replace (… as {twice[0]})', or name the columns one by one"
        )
    if ROW not in names:
        raise SpecError(
            f"query: must return {ROW!r}, the event that each row of the result stands for or was "
            "made from; aggregates over the whole batch belong to none"
        )
    if kinds[ROW] not in _ROW_KINDS:
        raise SpecError(f"query: {ROW!r} must stay the integer that it is in 'events'")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SpecError(
            f"query: returns {unknown[0]!r}, which is no column of 'events'; to add it to the row "
            "put it into 'after', for example with json_merge_patch(after, json_object(…))"
        )


def _expression(name: str, kind: str) -> str:
    column, target = _quoted(name), _SETTABLE[name]
    if target != "JSON":
        return column if kind == target else f"cast({column} as {target})"
    if kind == "JSON":
        text = f"cast({column} as VARCHAR)"
    elif kind == "VARCHAR":
        text = f"cast(cast({column} as JSON) as VARCHAR)"
    else:
        text = f"cast(to_json({column}) as VARCHAR)"
    return f"nullif({text}, 'null')"


def _quoted(name: str) -> str:
    return f'"{name}"'
