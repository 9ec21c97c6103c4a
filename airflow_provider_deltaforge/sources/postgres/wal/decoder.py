"""From a segment to a change batch: the kernel's buffers become Arrow columns without a copy."""

from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns.binary_columns import flag_column, number_column
from airflow_provider_deltaforge.columns.value_codes import (
    all_same,
    dictionary_column,
    repeated,
    shared_column,
)
from airflow_provider_deltaforge.errors import TableError
from airflow_provider_deltaforge.events.change import TEXT, ChangeBatch
from airflow_provider_deltaforge.events.ids import stream_ids
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

_OPS = pa.array(["c", "u", "d", "t", "ddl"])
_OP_CODES = {"c": 0, "u": 1, "d": 2, "t": 3, "ddl": 4}


def decode_segment(segment: WalSegment, key: Any) -> ChangeBatch:
    """Decode a segment.

    Args:
        segment: from the reader.
        key: of the source's event ids, from ``events.ids.id_key``.

    Raises:
        TableError: a row does not fit its table's description.
    """
    columns = _decode_rows(segment)
    parts, names = _parts(segment, columns), _Names(segment)
    if segment.markers:
        parts = _with_markers(parts, segment.markers, names)
    schemas, versions = schemas_in_use(names.schemas, parts["version"])
    return ChangeBatch(
        rows=_record_batch(
            segment, parts, names.columns(parts["name"]), version_column(schemas, versions), key
        ),
        positions=segment.positions,
        end=segment.end,
        connector="postgresql",
        nbytes=segment.nbytes,
        open_tx=segment.open_tx,
        continues=segment.continues,
        schemas=schemas,
    )


def _decode_rows(segment: WalSegment) -> WalRowColumns:
    """Run the kernel, with more room as often as it asks."""
    # Of one layout always, or the kernel would be compiled for each.
    data, rows = np.ascontiguousarray(segment.data), np.ascontiguousarray(segment.rows)
    count = len(rows)
    state = np.zeros(row_kernel.STATE_SIZE, np.int64)
    plans = segment.plans
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


def _parts(segment: WalSegment, columns: WalRowColumns) -> dict[str, Any]:
    """Return the columns of the rows alone; names and schemas by their plan's number."""
    rows = segment.rows
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

    def __init__(self, segment: WalSegment) -> None:
        self.schemas = segment.plans.schemas
        self._added: list[tuple[str, str]] = []

    def number(self, schema: str, table: str) -> int:
        """Return a table's number; the latest, if the segment has it in several shapes."""
        pair = (schema, table)
        for number in reversed(range(len(self.schemas) + len(self._added))):
            if self._pair(number) == pair:
                return number
        self._added.append(pair)
        return len(self.schemas) + len(self._added) - 1

    def columns(self, numbers: Any) -> tuple[pa.Array, pa.Array]:
        """Return the columns ``schema`` and ``table``."""
        if all_same(numbers) and numbers[0] >= 0:  # As in most.
            schema, table = self._pair(int(numbers[0]))
            return repeated(schema, len(numbers)), repeated(table, len(numbers))
        pairs = [self._pair(number) for number in range(len(self.schemas) + len(self._added))]
        return _named(numbers, [pair[0] for pair in pairs]), _named(
            numbers, [pair[1] for pair in pairs]
        )

    def _pair(self, number: int) -> tuple[str, str]:
        known = len(self.schemas)
        if number >= known:
            return self._added[number - known]
        return self.schemas[number].schema or "", self.schemas[number].table


def _with_markers(
    parts: dict[str, Any], markers: tuple[Marker, ...], names: _Names
) -> dict[str, Any]:
    """Put events that are no rows among the rows, each in its place."""
    count = len(parts["op"])
    numbers = [names.number(marker.schema, marker.table) for marker in markers]
    known = len(names.schemas)
    added: dict[str, list[Any]] = {
        "op": [_OP_CODES[marker.op] for marker in markers],
        "name": numbers,
        "version": [number if number < known else -1 for number in numbers],
        "tx": [marker.tx for marker in markers],
        "row": [marker.index for marker in markers],
        "after": [marker.after for marker in markers],
        "ddl": [marker.ddl for marker in markers],
    }
    return with_other_events(parts, np.arange(count), added, [marker.before for marker in markers])


def _record_batch(
    segment: WalSegment,
    parts: dict[str, Any],
    tables: tuple[pa.Array, pa.Array],
    versions: pa.Array,
    key: Any,
) -> pa.RecordBatch:
    positions = segment.positions
    tx, count = parts["tx"], len(parts["tx"])
    commits = np.ascontiguousarray(positions.commits)
    numbers = np.ascontiguousarray(positions.xids)
    texts, ends = names_of(commits)
    ids = stream_ids(key, texts, ends, tx, parts["row"])
    tx_end = transaction_ends(tx)
    xids = text_column(*numbers_of(numbers), pa.utf8())
    values = {
        "op": shared_column(parts["op"], _OPS),
        "db": repeated(segment.db, count),
        "schema": tables[0],
        "table": tables[1],
        "before": parts["before"],
        "after": parts["after"],
        "key": parts["key"],
        "ts_ms": number_column(positions.times_ms[tx], pa.int64()),
        "tx": number_column(tx, pa.int32()),
        "row": number_column(parts["row"], pa.int32()),
        "tx_id": dictionary_column(tx, xids, numbers[tx] == 0),
        "tx_end": flag_column(tx_end & (positions.ends[tx] > 0)),
        "event_id": id_column(ids),
        "source_position": dictionary_column(
            tx, text_column(*source_positions(commits, numbers), pa.binary())
        ),
        "schema_version": versions,
        "ddl": parts["ddl"],
        "unchanged": parts["unchanged"],
    }
    return change_rows(count, values)


def _named(numbers: Any, texts: list[str]) -> pa.Array:
    """Return a column of texts by number, each distinct one once; below zero is null."""
    if not texts:
        return pa.nulls(len(numbers), TEXT)
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    place_of = np.array([places[text] for text in texts], np.int32)
    return dictionary_column(place_of[numbers], pa.array(list(places)), numbers < 0)
