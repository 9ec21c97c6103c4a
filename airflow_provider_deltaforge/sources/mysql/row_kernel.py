"""The kernel from row events to JSON columns."""

from typing import Any, NamedTuple

import numpy as np

from airflow_provider_deltaforge.events.raw_bytes import pointer
from airflow_provider_deltaforge.sources.json_text import kernel
from airflow_provider_deltaforge.sources.mysql.column_kernel import OVERRUN
from airflow_provider_deltaforge.sources.mysql.framing import (
    DELETE,
    ROW_KIND,
    ROW_MAP,
    ROW_START,
    ROW_STOP,
    ROW_TX,
    UPDATE,
    WRITE,
    little,
)
from airflow_provider_deltaforge.sources.mysql.image_kernel import (
    put_image,
    put_key,
    skip_row,
)

# Results of ``decode_rows``; those of an image (BAD_JSON, BAD_LABEL, OVERRUN) follow.
DONE, NEED_ROOM, BAD_COLUMNS, PARTIAL_IMAGE = range(4)
# The state of ``decode_rows``, so that it can go on after it was given more room.
EVENT, OFFSET, OUT_ROWS, BEFORE, AFTER, KEY, TX, TX_ROW, BAD_COLUMN = range(9)
STATE_SIZE = 9
# Bytes at the end of the image buffers that only the spill of a word may touch.
MARGIN = 64


class RowColumns(NamedTuple):
    """Where the kernel writes: one entry per captured row, and JSON bytes with offsets."""

    op: Any
    plan: Any
    tx: Any
    row: Any
    event: Any
    before: Any
    before_offsets: Any
    after: Any
    after_offsets: Any
    key: Any
    key_offsets: Any


@kernel
def _open_event(src, pos, stop, columns, is_update):
    """Check a row event's head; return (offset of its bitmaps, its first row's offset, result)."""
    size = 1
    count = np.int64(src[pos])
    if count == 252:
        count, size = little(src, pos + 1, 2), 3
    elif count > 252:
        return pos, pos, BAD_COLUMNS
    if count != columns:
        return pos, pos, BAD_COLUMNS
    pos += size
    present = pos
    result = DONE
    for _ in range(2 if is_update else 1):
        for i in range(columns):
            if (src[pos + (i >> 3)] >> (i & 7)) & 1 == 0:
                result = PARTIAL_IMAGE
        pos += (columns + 7) >> 3
    return present, pos, result


@kernel
def _pointers(plans, columns):
    """Return pointers to the arrays of the plans and to those that are written."""
    tables = (
        pointer(plans.columns), pointer(plans.names), pointer(plans.labels),
        pointer(plans.label_offsets), pointer(plans.charsets), pointer(plans.key_columns),
    )  # fmt: skip
    numbers = (
        pointer(columns.op), pointer(columns.plan), pointer(columns.tx), pointer(columns.row),
        pointer(columns.event),
    )  # fmt: skip
    images = (pointer(columns.before), pointer(columns.after), pointer(columns.key))
    ends = (
        pointer(columns.before_offsets), pointer(columns.after_offsets),
        pointer(columns.key_offsets),
    )  # fmt: skip
    return tables, numbers, images, ends


@kernel
def _skip_rows(src, pos, stop, columns, first, count, is_update, present, rows_max):
    """Step over up to ``rows_max`` rows; return (offset behind them, how many)."""
    rows = np.int64(0)
    while pos < stop and rows < rows_max:
        pos = skip_row(src, pos, stop, columns, first, count, is_update, present)
        rows += 1
    return pos, rows


@kernel
def _decode_event(
    src, pos, stop, kind, plan, key, fixed, first, count, present, tables, numbers, images, ends,
    room, rows_room, spans, state,
):  # fmt: skip
    """Decode the rows of one event from ``pos`` on; return (offset behind the last, result)."""
    befores, afters, keys = images
    before_ends, after_ends, key_ends = ends
    ops, plans, txs, rows, events = numbers
    before, after, key_at = state[BEFORE], state[AFTER], state[KEY]
    n, tx, tx_row, event = state[OUT_ROWS], state[TX], state[TX_ROW], state[EVENT]
    result = np.int64(DONE)
    while pos < stop:
        length = stop - pos
        if length > 65536:
            is_update = kind == UPDATE
            length = skip_row(src, pos, stop, tables[0], first, count, is_update, present) - pos
        if n >= rows_room or max(before, after, key_at) + length * 6 + fixed > room:
            result = np.int64(NEED_ROOM)
            break
        new_before, new_after, behind = before, after, pos
        if kind != WRITE:
            new_before, behind = put_image(
                befores, before, src, behind, stop, tables, first, count, spans
            )
        if kind != DELETE and new_before >= 0:
            new_after, behind = put_image(
                afters, after, src, behind, stop, tables, first, count, spans
            )
        if new_before < 0 or new_after < 0:
            state[BAD_COLUMN] = behind
            result = -min(new_before, new_after)
            break
        if key[1] > key[0]:
            image = befores if kind == DELETE else afters
            key_at = put_key(keys, key_at, image, spans, tables, first, key[0], key[1])
        before, after, pos = new_before, new_after, behind
        ops[n] = kind
        plans[n] = plan
        txs[n] = tx
        rows[n] = tx_row
        events[n] = event
        n += 1
        before_ends[n] = before
        after_ends[n] = after
        key_ends[n] = key_at
        tx_row += 1
    state[BEFORE], state[AFTER], state[KEY] = before, after, key_at
    state[OUT_ROWS], state[TX_ROW] = n, tx_row
    return pos, result


@kernel
def decode_rows(src, rows, maps, plans, columns, state, spans, skip):
    """Decode the row events of a chunk.

    Args:
        src: uint8, the chunk's events.
        rows: int64 (events, ROW_COLUMNS), see ``framing``.
        maps: int64, the table (its ordinal in ``plans``) of each table map of the chunk.
        plans: a PlanArrays.
        columns: a RowColumns to write to.
        state: int64, zeros at first but for ``TX_ROW``, the first transaction's rows before.
        spans: int64 (2 for each column of the widest table), scratch.
        skip: rows of the first transaction that were handed out before.

    Returns:
        The result; after ``NEED_ROOM`` call again with larger columns and the same state.
    """
    # Taken out once: every look into the tuples costs two atomic counts.
    firsts, captured, fixed, key_first = plans.first, plans.captured, plans.fixed, plans.key_first
    room = min(len(columns.before), len(columns.after), len(columns.key)) - MARGIN
    rows_room = len(columns.op)
    tables, numbers, images, ends = _pointers(plans, columns)
    data, marks = pointer(src), pointer(spans)
    for index in range(state[EVENT], len(rows)):
        state[EVENT] = index
        plan = maps[rows[index, ROW_MAP]]
        kind, stop = rows[index, ROW_KIND], rows[index, ROW_STOP]
        first = firsts[plan]
        count = firsts[plan + 1] - first
        is_update = kind == UPDATE
        start = rows[index, ROW_START]
        present, pos, result = _open_event(data, start, stop, count, is_update)
        if result == BAD_COLUMNS or (result and captured[plan]):
            return result
        if state[OFFSET]:
            pos = state[OFFSET]
        elif rows[index, ROW_TX] != state[TX]:
            state[TX] = rows[index, ROW_TX]
            state[TX_ROW] = 0
        unwanted = skip - state[TX_ROW] if state[TX] == 0 else np.int64(0)
        if not captured[plan]:
            unwanted = stop
        pos, skipped = _skip_rows(
            data, pos, stop, tables[0], first, count, is_update, present, unwanted
        )
        state[TX_ROW] += skipped
        key = (key_first[plan], key_first[plan + 1])
        pos, result = _decode_event(
            data, pos, stop, kind, plan, key, fixed[plan], first, count, present, tables, numbers,
            images, ends, room, rows_room, marks, state,
        )  # fmt: skip
        if result:
            state[OFFSET] = pos
            return result
        if pos > stop:
            return OVERRUN
        state[OFFSET] = 0
    state[EVENT] = len(rows)
    return DONE


@kernel
def count_rows(src, rows, upto, maps, plans, tx):
    """Return how many rows the row events before ``upto`` hold for transaction ``tx``.

    A damaged event counts as one row; ``decode_rows`` reports it.
    """
    total = np.int64(0)
    data, columns = pointer(src), pointer(plans.columns)
    for i in range(upto):
        if rows[i, ROW_TX] != tx:
            continue
        plan = maps[rows[i, ROW_MAP]]
        first = plans.first[plan]
        count = plans.first[plan + 1] - first
        is_update = rows[i, ROW_KIND] == UPDATE
        start, stop = rows[i, ROW_START], rows[i, ROW_STOP]
        present, pos, result = _open_event(data, start, stop, count, is_update)
        if result == BAD_COLUMNS:
            total += 1
            continue
        pos, skipped = _skip_rows(data, pos, stop, columns, first, count, is_update, present, stop)
        total += skipped
    return total
