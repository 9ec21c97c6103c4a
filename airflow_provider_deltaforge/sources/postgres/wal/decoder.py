"""From a chunk to a change batch: the kernel's buffers become Arrow columns without a copy."""

from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.errors import TableError
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, TEXT, ChangeBatch
from airflow_provider_deltaforge.events.ids import stream_ids
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.postgres.json_columns import binary_column
from airflow_provider_deltaforge.sources.postgres.wal import row_kernel
from airflow_provider_deltaforge.sources.postgres.wal.decode_plans import WalTablePlan
from airflow_provider_deltaforge.sources.postgres.wal.log_segment import (
    DELETE,
    ROW_INDEX,
    ROW_KIND,
    ROW_PLAN,
    ROW_START,
    ROW_STOP,
    ROW_TX,
    Marker,
    WalSegment,
)
from airflow_provider_deltaforge.sources.postgres.wal.row_kernel import WalRowColumns
from airflow_provider_deltaforge.sources.postgres.wal.tx_text_kernel import (
    names_of,
    numbers_of,
    source_positions,
)

_OPS = pa.array(["c", "u", "d", "t", "ddl"])
_OP_CODES = {"c": 0, "u": 1, "d": 2, "t": 3, "ddl": 4}
_IMAGES = ("before", "after", "key", "ddl", "unchanged")
_OF_MARKERS = ("after", "ddl")


def decode_chunk(chunk: WalSegment, key: Any) -> ChangeBatch:
    """Decode a chunk.

    Args:
        chunk: from the reader.
        key: of the source's event ids, from ``events.ids.id_key``.

    Raises:
        TableError: a row does not fit its table's description.
    """
    columns = _decode_rows(chunk)
    parts, names = _parts(chunk, columns), _Names(chunk)
    if chunk.markers:
        parts = _with_markers(parts, chunk.markers, names)
    schemas, versions = names.versions(parts["version"])
    return ChangeBatch(
        rows=_record_batch(chunk, parts, names.columns(parts["name"]), versions, key),
        positions=chunk.positions,
        end=chunk.end,
        connector="postgresql",
        nbytes=chunk.nbytes,
        open_tx=chunk.open_tx,
        continues=chunk.continues,
        schemas=schemas,
    )


def _decode_rows(chunk: WalSegment) -> WalRowColumns:
    """Run the kernel, with more room as often as it asks."""
    # Of one layout always, or the kernel would be compiled for each.
    data, rows = np.ascontiguousarray(chunk.data), np.ascontiguousarray(chunk.rows)
    count = len(rows)
    state = np.zeros(row_kernel.STATE_SIZE, np.int64)
    plans = chunk.plans
    longest = int((rows[:, ROW_STOP] - rows[:, ROW_START]).max(initial=0))
    # Untouched pages cost nothing, so the first guess is a generous one.
    fixed = int(plans.arrays.fixed[rows[:, ROW_PLAN]].sum()) if count else 0
    columns = _columns(count, 2 * len(data) + fixed + 65536)
    while True:
        result = row_kernel.decode_rows(
            data, rows, plans.arrays, columns, state, plans.marks,
            plans.scratch(longest),
        )  # fmt: skip
        if result == row_kernel.DONE:
            return columns
        if result != row_kernel.NEED_ROOM:
            raise _failure(plans.plans[int(rows[int(state[row_kernel.ROW]), ROW_PLAN])], state)
        columns = _larger(columns, state, 6 * longest)


def _failure(plan: WalTablePlan, state: Any) -> TableError:
    table, column = plan.schema.full_name, int(state[row_kernel.BAD_COLUMN])
    reason = f"a row of the log does not have the {len(plan.chains)} columns of its description"
    if column >= 0:
        kind = plan.schema.columns[column].column_type
        reason = f"column {plan.names[column]!r} of a row in the log holds no value of type {kind}"
    return TableError(f"{table}: {reason}", table)


def _columns(rows: int, size: int) -> WalRowColumns:
    before, after, key, names = (np.empty(size, np.uint8) for _ in range(4))
    before_ends, after_ends, key_ends, ends = (np.zeros(rows + 1, np.int64) for _ in range(4))
    return WalRowColumns(before, before_ends, after, after_ends, key, key_ends, names, ends)


def _larger(columns: WalRowColumns, state: Any, extra: int) -> WalRowColumns:
    """Return columns with twice the room, what was written copied over."""
    grown = _columns(0, 2 * len(columns.after) + extra)
    written = {name: getattr(grown, name) for name in ("before", "after", "key", "unchanged")}
    for name, room in written.items():
        used = int(state[getattr(row_kernel, name.upper())])
        room[:used] = getattr(columns, name)[:used]
    return columns._replace(**written)


def _parts(chunk: WalSegment, columns: WalRowColumns) -> dict[str, Any]:
    """Return the columns of the rows alone; names and schemas by their plan's number."""
    rows = chunk.rows
    count = len(rows)
    kinds, plans = rows[:, ROW_KIND], rows[:, ROW_PLAN].astype(np.int32)
    befores = columns.before_offsets[1:] > columns.before_offsets[:-1]
    keys = columns.key_offsets[1:] > columns.key_offsets[:-1]
    return {
        "op": kinds.astype(np.int32),
        "name": plans,
        "version": plans,
        "tx": rows[:, ROW_TX].astype(np.int32),
        "row": rows[:, ROW_INDEX].astype(np.int32),
        "before": binary_column(columns.before, columns.before_offsets, count, befores),
        "after": binary_column(columns.after, columns.after_offsets, count, kinds != DELETE),
        "key": binary_column(columns.key, columns.key_offsets, count, keys),
        "ddl": pa.nulls(count, pa.binary()),
        "unchanged": _unchanged(columns, count),
    }


def _unchanged(columns: WalRowColumns, count: int) -> pa.BinaryArray:
    ends = columns.unchanged_offsets
    if not ends[-1]:
        return pa.nulls(count, pa.binary())
    return binary_column(columns.unchanged, ends, count, ends[1:] > ends[:-1])


class _Names:
    """What tables are called and look like, by number: first the plans, then what markers add."""

    def __init__(self, chunk: WalSegment) -> None:
        self.schemas = [plan.schema for plan in chunk.plans.plans]
        self._pairs = [(schema.schema or "", schema.table) for schema in self.schemas]
        self._numbers = {pair: number for number, pair in enumerate(self._pairs)}

    def number(self, schema: str, table: str) -> int:
        """Return a table's number; the latest, if the chunk has it in several shapes."""
        if (schema, table) not in self._numbers:
            self._numbers[schema, table] = len(self._pairs)
            self._pairs.append((schema, table))
        return self._numbers[schema, table]

    def columns(self, numbers: Any) -> tuple[pa.Array, pa.Array]:
        """Return the columns ``schema`` and ``table``."""
        return _named(numbers, [pair[0] for pair in self._pairs]), _named(
            numbers, [pair[1] for pair in self._pairs]
        )

    def versions(self, numbers: Any) -> tuple[tuple[TableSchema, ...], pa.Array]:
        """Return the schemas of the rows, first use first, and which of them each row has.

        Below zero a row has none. The dictionary holds one fingerprint for each schema, also
        where two tables look the same.
        """
        first = np.full(len(self.schemas) + 1, len(numbers), np.int64)
        first[numbers[::-1]] = np.arange(
            len(numbers) - 1, -1, -1
        )  # Of several, the last one stays.
        places = np.full(len(first), -1, np.int32)
        known: dict[TableSchema, int] = {}
        for number in np.argsort(first[:-1], kind="stable").tolist():
            if first[number] < len(numbers):
                places[number] = known.setdefault(self.schemas[number], len(known))
        prints = pa.array([schema.fingerprint for schema in known], pa.utf8())
        return tuple(known), _dictionary(places[numbers], prints, numbers < 0)


def _with_markers(
    parts: dict[str, Any], markers: tuple[Marker, ...], names: _Names
) -> dict[str, Any]:
    """Put events that are no rows among the rows, each in its place."""
    count = len(parts["op"])
    numbers = [names.number(marker.schema, marker.table) for marker in markers]
    known = len(names.schemas)
    added = {
        "op": [_OP_CODES[marker.op] for marker in markers],
        "name": numbers,
        "version": [number if number < known else -1 for number in numbers],
        "tx": [marker.tx for marker in markers],
        "row": [marker.index for marker in markers],
    }
    places = np.concatenate([np.arange(count) * 2 + 1, [marker.before * 2 for marker in markers]])
    order = np.argsort(places, kind="stable")
    out: dict[str, Any] = {}
    for name, values in parts.items():
        if name in _IMAGES:
            extra = [getattr(marker, name) if name in _OF_MARKERS else None for marker in markers]
            whole = pa.concat_arrays([values, pa.array(extra, pa.binary())])
            out[name] = whole.take(pa.array(order))
        else:
            out[name] = np.concatenate([values, np.array(added[name], np.int32)])[order]
    return out


def _record_batch(
    chunk: WalSegment,
    parts: dict[str, Any],
    tables: tuple[pa.Array, pa.Array],
    versions: pa.Array,
    key: Any,
) -> pa.RecordBatch:
    positions = chunk.positions
    tx, count = parts["tx"], len(parts["tx"])
    commits = np.ascontiguousarray(positions.commits)
    numbers = np.ascontiguousarray(positions.xids)
    texts, ends = names_of(commits)
    ids = stream_ids(key, texts, ends, tx, parts["row"])
    tx_end = np.ones(count, np.bool_)
    tx_end[:-1] = tx[1:] != tx[:-1]
    xids = _texts(*numbers_of(numbers), pa.utf8())
    values = {
        "op": _dictionary(parts["op"], _OPS),
        "db": _dictionary(np.zeros(count, np.int32), pa.array([chunk.db])),
        "schema": tables[0],
        "table": tables[1],
        "before": parts["before"],
        "after": parts["after"],
        "key": parts["key"],
        "ts_ms": pa.array(positions.times_ms[tx], pa.int64()),
        "tx": pa.array(tx, pa.int32()),
        "row": pa.array(parts["row"], pa.int32()),
        "tx_id": _dictionary(tx, xids, numbers[tx] == 0),
        "tx_end": pa.array(tx_end & (positions.ends[tx] > 0), pa.bool_()),
        "event_id": pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(ids)]),
        "source_position": _dictionary(
            tx, _texts(*source_positions(commits, numbers), pa.binary())
        ),
        "schema_version": versions,
        "ddl": parts["ddl"],
        "unchanged": parts["unchanged"],
    }
    arrays = [values.get(field.name, pa.nulls(count, field.type)) for field in CHANGE_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGE_SCHEMA)


def _named(numbers: Any, texts: list[str]) -> pa.Array:
    """Return a column of texts by number, each distinct one once; below zero is null."""
    if not texts:
        return pa.nulls(len(numbers), TEXT)
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    place_of = np.array([places[text] for text in texts], np.int32)
    return _dictionary(place_of[numbers], pa.array(list(places)), numbers < 0)


def _texts(data: Any, offsets: Any, kind: pa.DataType) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def _dictionary(indices: Any, values: pa.Array, missing: Any = None) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32(), mask=missing), values)
