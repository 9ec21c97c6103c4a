"""The kernel from row events to JSON columns."""

from typing import Any, NamedTuple

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import pointer
from airflow_provider_deltaforge.columns.json_text_kernel import kernel
from airflow_provider_deltaforge.sources.mysql.binlog.column_kernel import OVERRUN
from airflow_provider_deltaforge.sources.mysql.binlog.framing_kernel import (
    DELETE,
    PARTIAL,
    ROW_KIND,
    ROW_MAP,
    ROW_START,
    ROW_STOP,
    ROW_TX,
    UPDATE,
    WRITE,
    little,
)
from airflow_provider_deltaforge.sources.mysql.binlog.image_kernel import (
    ABSENT_KEY,
    ABSENT_VALUE,
    FILLED,
    LEFT_OUT,
    REFUSED,
    is_current,
    is_whole,
    is_whole_but_hidden,
    lacks_key,
    put_absent_names,
    put_image,
    put_key,
    put_partial_image,
    skip_row,
)

# Results of ``decode_rows``; those of an image (``column_kernel``, ``image_kernel``) follow.
DONE, NEED_ROOM, BAD_COLUMNS = range(3)
# The state of ``decode_rows``, so that it can go on after it was given more room.
EVENT, OFFSET, OUT_ROWS, BEFORE, AFTER, KEY, TX, TX_ROW, BAD_COLUMN, UNCHANGED = range(10)
STATE_SIZE = 10
# Bytes at the end of the image buffers that only the spill of a word may touch.
MARGIN = 64


class RowColumns(NamedTuple):
    """Where the kernel writes: one entry per captured row, and JSON bytes with offsets.

    ``unchanged`` names the columns that a row lacks; its offsets are 0 where a row lacks none.
    """

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
    unchanged: Any
    unchanged_offsets: Any


@kernel
def _open_event(src, pos, stop, columns, kind):
    """Check a row event's head; return (offset of its bitmaps, its first row's offset, result)."""
    size = 1
    count = np.int64(src[pos])
    if count == 252:
        count, size = little(src, pos + 1, 2), 3
    elif count > 252:
        return pos, pos, BAD_COLUMNS
    if count != columns:
        return pos, pos, BAD_COLUMNS
    present = pos + size
    bitmaps = 2 if kind in (UPDATE, PARTIAL) else 1
    first_row = present + bitmaps * ((columns + 7) >> 3)
    return present, first_row, DONE if first_row <= stop else BAD_COLUMNS


@kernel
def _lacks_columns(src, present, count, kind):
    """Return whether the images of an event lack columns of the table."""
    after = present + ((count + 7) >> 3)
    return not is_whole(src, present, count) or (kind == UPDATE and not is_whole(src, after, count))


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
    images = (
        pointer(columns.before), pointer(columns.after), pointer(columns.key),
        pointer(columns.unchanged),
    )  # fmt: skip
    ends = (
        pointer(columns.before_offsets), pointer(columns.after_offsets),
        pointer(columns.key_offsets), pointer(columns.unchanged_offsets),
    )  # fmt: skip
    return tables, numbers, images, ends


@kernel
def _skip_rows(src, pos, stop, columns, first, count, kind, present, rows_max):
    """Step over up to ``rows_max`` rows; return (offset behind them, how many)."""
    rows = np.int64(0)
    while pos < stop and rows < rows_max:
        behind = skip_row(src, pos, stop, columns, first, count, kind, present)
        rows += 1
        if behind == pos:
            return stop, rows
        pos = behind
    return pos, rows


@kernel
def _rows_of(src, start, stop, columns, first, count, kind):
    """Return how many rows an event holds; one that cannot be read counts as one row."""
    present, pos, result = _open_event(src, start, stop, count, kind)
    if result == BAD_COLUMNS:
        return np.int64(1)
    _, rows = _skip_rows(src, pos, stop, columns, first, count, kind, present, stop)
    # MySQL logs a row without any column as nothing.
    return max(rows, np.int64(1))


@kernel
def _decode_event(
    src, pos, stop, kind, plan, key, fixed, first, count, present, tables, numbers, images, ends,
    room, rows_room, spans, state,
):  # fmt: skip
    """Decode the rows of one event from ``pos`` on; return (offset behind the last, result)."""
    befores, afters, keys, _ = images
    before_ends, after_ends, key_ends, _ = ends
    ops, plans, txs, rows, events = numbers
    before, after, key_at = state[BEFORE], state[AFTER], state[KEY]
    n, tx, tx_row, event = state[OUT_ROWS], state[TX], state[TX_ROW], state[EVENT]
    result = np.int64(DONE)
    while pos < stop:
        length = stop - pos
        if length > 65536:
            length = skip_row(src, pos, stop, tables[0], first, count, kind, present) - pos
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
def _decode_partial_event(
    src, pos, stop, kind, plan, end, key, fixed, first, count, present, tables, numbers, images,
    ends, room, rows_room, spans, base_spans, state,
):  # fmt: skip
    """Decode the rows of an event whose images lack columns, or whose table hides some or rows.

    ``end`` is the table's column ROW END, -1 for none. Of a system-versioned table an update that
    ends a row is its deletion, and rows of the past are not delivered. The rest is as of
    ``_decode_event``.
    """
    befores, afters, keys, unchanged = images
    before_ends, after_ends, key_ends, unchanged_ends = ends
    named = state[UNCHANGED]
    ops, plans, txs, rows, events = numbers
    before, after, key_at = state[BEFORE], state[AFTER], state[KEY]
    n, tx, tx_row, event = state[OUT_ROWS], state[TX], state[TX_ROW], state[EVENT]
    bitmap = (count + 7) >> 3
    result = np.int64(DONE)
    if pos >= stop:
        return pos, np.int64(ABSENT_VALUE)
    is_whole_row = is_whole(src, present, count)
    if not is_whole_row and end < 0:
        # MariaDB 11 leaves the hash of a long UNIQUE value out of an image that is whole otherwise.
        is_whole_row = is_whole_but_hidden(src, present, tables[0], first, count)
    if key[0] == key[1] and kind != WRITE and not is_whole_row:
        return pos, np.int64(ABSENT_KEY)
    while pos < stop:
        length = skip_row(src, pos, stop, tables[0], first, count, kind, present) - pos
        if n >= rows_room or max(before, after, key_at) + length * 6 + fixed > room:
            result = np.int64(NEED_ROOM)
            break
        new_before, new_after, behind = before, after, pos
        was_current, stays = kind != WRITE, kind != DELETE
        if kind != WRITE:
            if end >= 0:
                was_current = is_current(
                    src, behind, stop, tables[0], first, count, present, end, was_current
                )
            new_before, behind = put_partial_image(
                befores, before, src, behind, stop, tables, first, count, present, LEFT_OUT,
                base_spans, befores, base_spans,
            )  # fmt: skip
        if kind != DELETE and new_before >= 0:
            bits = present if kind == WRITE else present + bitmap
            if end >= 0:
                stays = is_current(
                    src, behind, stop, tables[0], first, count, bits, end, was_current
                )
            absent = REFUSED if kind == WRITE else FILLED
            new_after, behind = put_partial_image(
                afters, after, src, behind, stop, tables, first, count, bits, absent, spans,
                befores, base_spans,
            )  # fmt: skip
        if new_before < 0 or new_after < 0:
            state[BAD_COLUMN] = behind
            result = -min(new_before, new_after)
            break
        pos = behind
        tx_row += 1
        if not was_current and not stays:
            continue
        op = WRITE if not was_current else (UPDATE if stays else DELETE)
        if op != WRITE and lacks_key(base_spans, tables, key[0], key[1]):
            result = np.int64(ABSENT_KEY)
            break
        if key[1] > key[0]:
            if op == DELETE:
                key_at = put_key(keys, key_at, befores, base_spans, tables, first, key[0], key[1])
            else:
                key_at = put_key(keys, key_at, afters, spans, tables, first, key[0], key[1])
        if kind == UPDATE and op != DELETE:
            named = put_absent_names(
                unchanged, named, src, present + bitmap, tables, first, count, base_spans
            )
        before = new_before if op != WRITE else before
        after = new_after if op != DELETE else after
        ops[n] = op
        plans[n] = plan
        txs[n] = tx
        rows[n] = tx_row - 1
        events[n] = event
        n += 1
        before_ends[n] = before
        after_ends[n] = after
        key_ends[n] = key_at
        unchanged_ends[n] = named
    state[BEFORE], state[AFTER], state[KEY] = before, after, key_at
    state[UNCHANGED] = named
    state[OUT_ROWS], state[TX_ROW] = n, tx_row
    return pos, result


@kernel
def decode_rows(src, rows, maps, plans, columns, state, spans, skip):
    """Decode the row events of a segment.

    Args:
        src: uint8, the segment's events.
        rows: int64 (events, ROW_COLUMNS), see ``framing``; none of a captured table is PARTIAL.
        maps: int64, the table (its ordinal in ``plans``) of each table map of the segment.
        plans: a PlanArrays.
        columns: a RowColumns to write to.
        state: int64, zeros at first but for ``TX_ROW``, the first transaction's rows before.
        spans: int64 (4 for each column of the widest table), scratch.
        skip: rows of the first transaction that were handed out before.

    Returns:
        The result; after ``NEED_ROOM`` call again with larger columns and the same state.
    """
    # Taken out once: every look into the tuples costs two atomic counts.
    firsts, captured, fixed, key_first = plans.first, plans.captured, plans.fixed, plans.key_first
    period_end, hides = plans.period_end, plans.hides
    room = min(len(columns.before), len(columns.after), len(columns.key)) - MARGIN
    rows_room = len(columns.op)
    tables, numbers, images, ends = _pointers(plans, columns)
    data, marks, base = pointer(src), pointer(spans), pointer(spans[len(spans) // 2 :])
    for index in range(state[EVENT], len(rows)):
        state[EVENT] = index
        plan = maps[rows[index, ROW_MAP]]
        kind, start, stop = rows[index, ROW_KIND], rows[index, ROW_START], rows[index, ROW_STOP]
        first = firsts[plan]
        count = firsts[plan + 1] - first
        if not state[OFFSET] and rows[index, ROW_TX] != state[TX]:
            state[TX] = rows[index, ROW_TX]
            state[TX_ROW] = 0
        if not captured[plan]:
            state[TX_ROW] += _rows_of(data, start, stop, tables[0], first, count, kind)
            continue
        present, pos, result = _open_event(data, start, stop, count, kind)
        if result:
            return result
        if state[OFFSET]:
            pos = state[OFFSET]
        key = (key_first[plan], key_first[plan + 1])
        unwanted = skip - state[TX_ROW] if state[TX] == 0 else np.int64(0)
        is_partial = hides[plan] or _lacks_columns(data, present, count, kind)
        if unwanted > 0:
            pos, skipped = _skip_rows(
                data, pos, stop, tables[0], first, count, kind, present, unwanted
            )
            state[TX_ROW] += skipped
            if pos == stop:
                continue
        if is_partial:
            pos, result = _decode_partial_event(
                data, pos, stop, kind, plan, period_end[plan], key, fixed[plan], first, count,
                present, tables, numbers, images, ends, room, rows_room, marks, base, state,
            )  # fmt: skip
        else:
            pos, result = _decode_event(
                data, pos, stop, kind, plan, key, fixed[plan], first, count, present, tables,
                numbers, images, ends, room, rows_room, marks, state,
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
    """Return how many rows the row events before ``upto`` hold for transaction ``tx``."""
    total = np.int64(0)
    data, columns = pointer(src), pointer(plans.columns)
    for i in range(upto):
        if rows[i, ROW_TX] != tx:
            continue
        plan = maps[rows[i, ROW_MAP]]
        first = plans.first[plan]
        count = plans.first[plan + 1] - first
        start, stop = rows[i, ROW_START], rows[i, ROW_STOP]
        total += _rows_of(data, start, stop, columns, first, count, rows[i, ROW_KIND])
    return total


@kernel
def deliverable(src, rows, maps, plans, out):
    """Write for each row event whether its table is captured and its first row is delivered.

    An insert into a system-versioned table may be of a row of the past, which is not.
    """
    data, columns = pointer(src), pointer(plans.columns)
    for i in range(len(rows)):
        plan = maps[rows[i, ROW_MAP]]
        out[i] = plans.captured[plan]
        end = plans.period_end[plan]
        if end < 0 or rows[i, ROW_KIND] != WRITE or not plans.captured[plan]:
            continue
        first = plans.first[plan]
        count = plans.first[plan + 1] - first
        stop = rows[i, ROW_STOP]
        present, pos, result = _open_event(data, rows[i, ROW_START], stop, count, WRITE)
        if result == DONE:
            found = plans.captured[plan]
            out[i] = is_current(data, pos, stop, columns, first, count, present, end, found)
