"""From a segment to a change batch: the kernel's buffers become Arrow columns without a copy."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns.binary_columns import flag_column, number_column
from airflow_provider_deltaforge.columns.value_codes import dictionary_column, shared_column
from airflow_provider_deltaforge.errors import TableError
from airflow_provider_deltaforge.events.change import OUTBOX, TEXT, ChangeBatch
from airflow_provider_deltaforge.events.ids import id_key, stream_ids
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.mysql.binlog import (
    column_kernel,
    framing_kernel,
    image_kernel,
    row_kernel,
)
from airflow_provider_deltaforge.sources.mysql.binlog.decode_plans import (
    DecodePlans,
)
from airflow_provider_deltaforge.sources.mysql.binlog.framing_kernel import (
    DELETE,
    ROW_MAP,
    UPDATE,
    WRITE,
)
from airflow_provider_deltaforge.sources.mysql.binlog.log_segment import BinlogSegment, SchemaChange
from airflow_provider_deltaforge.sources.mysql.binlog.plain_rows import with_plain_rows
from airflow_provider_deltaforge.sources.mysql.binlog.row_kernel import RowColumns
from airflow_provider_deltaforge.sources.mysql.binlog.tx_text_kernel import (
    names_of,
    source_positions,
)
from airflow_provider_deltaforge.sources.mysql.positions import (
    TX_COLUMNS,
    TX_ORIGIN,
    TX_STOP,
    TX_TIME,
    BinlogTxPositions,
    LogPosition,
)
from airflow_provider_deltaforge.sources.shared.change_rows import (
    binary_column,
    change_rows,
    id_column,
    schemas_in_use,
    text_column,
    transaction_ends,
    version_column,
    with_other_events,
)

_OPS = pa.array(["c", "u", "d", "ddl", "t"])
_FULL = "set binlog_row_image=FULL on the server and in every session"
_OP_CODES = {"ddl": 3, "t": 4}
_TABLE_WIDTHS = (TX_COLUMNS, framing_kernel.ROW_COLUMNS, framing_kernel.MAP_COLUMNS)
_KINDS = 5
"""Of rows, and of schema changes, which are never messages."""
_TAGGED = {None: (), "inserts": (WRITE,), "all": (WRITE, UPDATE, DELETE)}


def decode_segment(segment: BinlogSegment, key: Any, *, mariadb: bool) -> ChangeBatch:
    """Decode a segment.

    Args:
        segment: from the reader.
        key: of the source's event ids, from ``events.ids.id_key``.
        mariadb: how GTIDs are written: ``domain-server-number``, else ``uuid:number``.

    Raises:
        TableError: a row does not fit its table's description, or the log lacks a part of it.
    """
    segment = with_plain_rows(segment)
    columns, state = _decode_rows(segment)
    rows, schemas = _record_batch(segment, columns, state, key, "-" if mariadb else ":")
    return ChangeBatch(
        rows=rows,
        positions=segment.positions,
        end=segment.end,
        connector="mysql",
        nbytes=segment.nbytes,
        open_tx=segment.open_tx,
        continues=segment.continues,
        schemas=schemas,
    )


def precompile(server_uuid: str) -> None:
    """Compile the kernels, or load them, so that the first rows need not wait for it."""
    nothing = np.zeros(0, np.uint8)
    state = np.zeros(framing_kernel.STATE_SIZE, np.int64)
    starts = np.zeros(2, np.int64)
    tables = [np.zeros((1, n), np.int64) for n in _TABLE_WIDTHS]
    origins = np.zeros((0, 16), np.uint8)
    framing_kernel.frame(nothing, 0, 0, nothing, 0, starts, 0, 0)
    framing_kernel.scan(nothing, starts, 0, 0, state, origins, *tables)
    # What schema changes, compressed transactions, large packets and a server's refusal need.
    framing_kernel.begin_tx(state, tables[0], 0, 0, 0, 0, 0, 0)
    framing_kernel.end_tx(state, tables[0])
    framing_kernel.packet_size(nothing, 0, 0)
    framing_kernel.little(np.zeros(4, np.uint8), 0, 3)
    maps, none = np.zeros(0, np.int64), np.zeros(0, np.bool_)
    row_kernel.deliverable(nothing, tables[1][:0], maps, DecodePlans().arrays, none)
    row_kernel.count_rows(nothing, tables[1][:0], 0, maps, DecodePlans().arrays, 0)
    rows = np.zeros((0, framing_kernel.ROW_COLUMNS), np.int64)
    transactions = np.zeros((0, TX_COLUMNS), np.int64)
    base = LogPosition("", 4, None, server_uuid)
    segment = BinlogSegment(
        nbytes=0,
        data=nothing,
        rows=rows,
        map_plans=np.zeros(0, np.int64),
        plans=DecodePlans(),
        positions=BinlogTxPositions(base, "", transactions, ()),
    )
    decode_segment(segment, id_key(""), mariadb=False)


def _decode_rows(segment: BinlogSegment) -> tuple[RowColumns, Any]:
    """Run the kernel, with more room as often as it asks."""
    state = np.zeros(row_kernel.STATE_SIZE, np.int64)
    state[row_kernel.TX_ROW] = segment.row_base
    arrays = segment.plans.arrays
    spans = np.zeros(4 * max(segment.plans.width, 1), np.int64)
    # Untouched pages cost nothing, so the first guess is a generous one.
    images = 4 * segment.nbytes + 65536
    columns = _columns(max(64, segment.nbytes // 24 if len(segment.rows) else 0), images)
    while True:
        result = row_kernel.decode_rows(
            segment.data,
            segment.rows,
            segment.map_plans,
            arrays,
            columns,
            state,
            spans,
            segment.skip,
        )
        if result == row_kernel.DONE:
            return columns, state
        if result != row_kernel.NEED_ROOM:
            raise _failure(segment, int(result), state)
        columns = _larger(columns, state, segment)


def _columns(rows: int, size: int) -> RowColumns:
    return RowColumns(
        op=np.empty(rows, np.int32),
        plan=np.empty(rows, np.int32),
        tx=np.empty(rows, np.int32),
        row=np.empty(rows, np.int32),
        event=np.empty(rows, np.int32),
        before=np.empty(size, np.uint8),
        before_offsets=np.zeros(rows + 1, np.int64),
        after=np.empty(size, np.uint8),
        after_offsets=np.zeros(rows + 1, np.int64),
        key=np.empty(size, np.uint8),
        key_offsets=np.zeros(rows + 1, np.int64),
        unchanged=np.empty(size, np.uint8),
        unchanged_offsets=np.zeros(rows + 1, np.int64),
    )


def _larger(columns: RowColumns, state: Any, segment: BinlogSegment) -> RowColumns:
    """Return columns with twice the room, what was written copied over."""
    widest = int(segment.plans.arrays.fixed.max(initial=0))
    size = 2 * len(columns.before) + 6 * segment.nbytes + 2 * widest
    grown = _columns(2 * len(columns.op), size)
    n = int(state[row_kernel.OUT_ROWS])
    used = {
        "before": int(state[row_kernel.BEFORE]),
        "after": int(state[row_kernel.AFTER]),
        "key": int(state[row_kernel.KEY]),
        "unchanged": int(state[row_kernel.UNCHANGED]),
    }
    for name, old in columns._asdict().items():
        count = used.get(name, n + 1 if name.endswith("_offsets") else n)
        getattr(grown, name)[:count] = old[:count]
    return grown


def _failure(segment: BinlogSegment, result: int, state: Any) -> Exception:
    event = segment.rows[int(state[row_kernel.EVENT])]
    plan = segment.plans.plans[int(segment.map_plans[event[ROW_MAP]])]
    table = qualified_name(plan.db, plan.table)
    column = int(state[row_kernel.BAD_COLUMN])
    name = plan.names[column] if column < len(plan.names) else str(column)
    reason = {
        row_kernel.BAD_COLUMNS: "its rows have another number of columns than its description",
        image_kernel.ABSENT_VALUE: f"the log holds a row without its column {name}; {_FULL}",
        image_kernel.ABSENT_KEY: f"the log holds a part of a row without a primary key; {_FULL}",
        column_kernel.BAD_JSON: f"column {name} holds damaged JSON",
        column_kernel.BAD_LABEL: f"column {name} holds an enum index without a label",
    }.get(result, f"a row ends inside column {name}")
    return TableError(f"{table}: {reason}", table)


def _record_batch(
    segment: BinlogSegment, columns: RowColumns, state: Any, key: Any, separator: str
) -> tuple[pa.RecordBatch, tuple[TableSchema, ...]]:
    n = int(state[row_kernel.OUT_ROWS])
    transactions = segment.positions.transactions
    prefixes = tuple(origin + separator for origin in segment.positions.origins)
    anonymous = f"{segment.positions.base.server_uuid}:{segment.positions.file}:"
    names, name_offsets = names_of(transactions, prefixes, anonymous)
    places = source_positions(transactions, names, name_offsets, segment.positions.file)
    op, plan = columns.op[:n], columns.plan[:n]
    dbs, tables, db_of, table_of = segment.plans.names
    parts = {
        "op": op,
        "db": db_of[plan] if n else plan,
        "table": table_of[plan] if n else plan,
        "tx": columns.tx[:n],
        "row": columns.row[:n],
        "plan": plan,
        "before": binary_column(columns.before, columns.before_offsets, n, op != WRITE),
        "after": binary_column(columns.after, columns.after_offsets, n, op != DELETE),
        "key": binary_column(
            columns.key,
            columns.key_offsets,
            n,
            columns.key_offsets[1 : n + 1] != columns.key_offsets[:n],
        ),
        "ddl": pa.nulls(n, pa.binary()),
        "unchanged": _unchanged(columns, state, n),
    }
    if segment.changes:
        dbs, tables = _with_names(segment.changes, dbs, tables)
        parts = _with_changes(segment, parts, columns.event[:n], dbs, tables)
    schemas, versions = versions_of(segment, parts["plan"])
    tx, row = parts["tx"], parts["row"]
    ids = stream_ids(key, names, name_offsets, tx, row)
    done = transactions[:, TX_STOP] >= 0 if len(transactions) else np.zeros(0, np.bool_)
    tx_end = transaction_ends(tx)
    anonymous_rows = transactions[tx, TX_ORIGIN] < 0
    count = len(tx)
    values = {
        "op": shared_column(parts["op"], _OPS),
        "db": shared_column(parts["db"], dbs),
        "schema": schema_column(segment.plans, parts["plan"], parts["op"]),
        "table": shared_column(parts["table"], tables),
        "before": parts["before"],
        "after": parts["after"],
        "key": parts["key"],
        "ts_ms": number_column(transactions[tx, TX_TIME], pa.int64()),
        "tx": number_column(tx, pa.int32()),
        "row": number_column(row, pa.int32()),
        "tx_id": dictionary_column(tx, text_column(names, name_offsets, pa.utf8()), anonymous_rows),
        "tx_end": flag_column(tx_end & done[tx]),
        "event_id": id_column(ids),
        "source_position": dictionary_column(tx, text_column(places[0], places[1], pa.binary())),
        "schema_version": versions,
        "ddl": parts["ddl"],
        "unchanged": parts["unchanged"],
    }
    return change_rows(count, values), schemas


def _with_names(
    changes: Sequence[SchemaChange], dbs: pa.StringArray, tables: pa.StringArray
) -> tuple[pa.StringArray, pa.StringArray]:
    """Return the names of databases and tables with those of schema changes behind them."""
    of_dbs = dict.fromkeys([*dbs.to_pylist(), *(change.db for change in changes)])
    of_tables = dict.fromkeys([*tables.to_pylist(), *(change.table for change in changes)])
    return pa.array(of_dbs, pa.utf8()), pa.array(of_tables, pa.utf8())


def _with_changes(
    segment: BinlogSegment,
    parts: dict[str, Any],
    event: Any,
    dbs: pa.StringArray,
    tables: pa.StringArray,
) -> dict[str, Any]:
    """Put the schema changes among the rows, each in its place."""
    db_of, table_of = dbs.to_pylist(), tables.to_pylist()
    added: dict[str, list[Any]] = {
        "op": [_OP_CODES[change.op] for change in segment.changes],
        "db": [db_of.index(change.db) for change in segment.changes],
        "table": [table_of.index(change.table) for change in segment.changes],
        "tx": [change.tx for change in segment.changes],
        "row": _rows_of_changes(segment.changes),
        "plan": [-1] * len(segment.changes),
    }
    added["ddl"] = [change.text for change in segment.changes]
    return with_other_events(parts, event, added, [change.before for change in segment.changes])


def _unchanged(columns: RowColumns, state: Any, n: int) -> pa.BinaryArray:
    if not state[row_kernel.UNCHANGED]:
        return pa.nulls(n, pa.binary())
    offsets = np.maximum.accumulate(columns.unchanged_offsets[: n + 1])
    return binary_column(columns.unchanged, offsets, n, np.diff(offsets) != 0)


def _rows_of_changes(changes: Sequence[SchemaChange]) -> list[int]:
    """Number each transaction's changes below its rows, so that their event ids are their own.

    Counted per transaction: how the log falls into segments differs on each replay.
    """
    seen: Counter[int] = Counter()
    rows = []
    for change in changes:
        seen[change.tx] += 1
        rows.append(-seen[change.tx])
    return rows


def schema_column(plans: DecodePlans, plan: Any, kind: Any) -> pa.DictionaryArray:
    """Return the column ``schema``, which says here only whether a row is an outbox message.

    Args:
        plans: of the segment's tables.
        plan: int32, for each row its plan's ordinal; -1 for a schema change.
        kind: int32, what each row is.
    """
    if not plans.tagged:
        return pa.nulls(len(plan), TEXT)
    tagged = np.zeros((len(plans.plans) + 1, _KINDS), np.bool_)
    for ordinal, table_plan in enumerate(plans.plans):
        tagged[ordinal, _TAGGED[table_plan.tagged]] = True
    codes = pa.array(np.zeros(len(plan), np.int32), mask=~tagged[plan, kind])
    return pa.DictionaryArray.from_arrays(codes, pa.array([OUTBOX]))


def versions_of(
    segment: BinlogSegment, plan: Any
) -> tuple[tuple[TableSchema, ...], pa.DictionaryArray]:
    """Return the schemas in force, first use first, and which of them each row has.

    Args:
        segment: where the rows are from.
        plan: int32, for each row its plan's ordinal; -1 for a schema change.
    """
    used, places = schemas_in_use(segment.plans.schemas, plan)
    schemas = (*used, *_without_rows(segment, plan))
    return schemas, version_column(schemas, places)


def _without_rows(segment: BinlogSegment, plan: Any) -> list[TableSchema]:
    """Return what tables look like behind their last change, where no row shows it yet."""
    if not any(change.schemas for change in segment.changes):
        return []
    last: dict[tuple[str, str], tuple[int, TableSchema]] = {}
    for change, row in zip(segment.changes, np.flatnonzero(plan < 0).tolist(), strict=True):
        last.update({(schema.db, schema.table): (row, schema) for schema in change.schemas})
    found = []
    for name, (row, schema) in last.items():
        mine = [
            i
            for i, table_plan in enumerate(segment.plans.plans)
            if (table_plan.db, table_plan.table) == name
        ]
        if not np.isin(plan[row:], mine).any():
            found.append(schema)
    return found
