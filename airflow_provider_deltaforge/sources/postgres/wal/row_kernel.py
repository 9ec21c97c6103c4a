"""The kernel from row messages of ``pgoutput`` to JSON columns."""

from typing import Any, NamedTuple

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import load_word, pointer, swapped
from airflow_provider_deltaforge.columns.json_text_kernel import kernel, put_null, put_words
from airflow_provider_deltaforge.sources.postgres.array_kernel import put_value
from airflow_provider_deltaforge.sources.postgres.value_kernel import fits, put_unchanged

# Results of ``decode_rows``.
DONE, NEED_ROOM, BAD_COLUMNS = range(3)
# The state of ``decode_rows``, so that it can go on after it was given more room.
# ``BAD_COLUMN`` says whose value stopped it; below zero it is the row as a whole.
ROW, BEFORE, AFTER, KEY, BAD_COLUMN, UNCHANGED = range(6)
STATE_SIZE = 6
MARGIN = 64
"""Bytes at the end of the image buffers that only the spill of a word may touch."""

# Columns of the table of rows, see ``log_segment``.
_START, _STOP, _KIND, _PLAN = 0, 1, 2, 4
_DELETE = 2
# The letters of pgoutput: old rows, and values that are null, unchanged or text.
_OLD_KEY, _OLD_ROW, _NEW_ROW = 75, 79, 78
_NULL, _UNCHANGED, _TEXT = 110, 117, 116
# What of an old row is written: all of it, the replica identity's columns, those that are not null.
_ALL, _IDENTITY, _NOT_NULL = 0, 1, 2
CARRIED, DOUBTFUL = 1, 2
"""Bits of a column's identity: old rows carry it; some partition's old rows may not."""


class WalPlanArrays(NamedTuple):
    """Plans as the kernels read them.

    Attributes:
        first: int64, where each plan's columns begin.
        chains: int64, the kinds, see ``column_kinds``.
        chain_at: int64, where each column's kinds begin.
        names: uint8, ``,"name":`` of each column.
        name_ends: int64.
        identity: uint8, of each column ``CARRIED`` and ``DOUBTFUL``.
        key_first: int64, where each plan's key begins in ``key_columns``.
        key_columns: int64.
        fixed: int64, bytes of each plan's JSON that do not depend on the row's length.
    """

    first: Any
    chains: Any
    chain_at: Any
    names: Any
    name_ends: Any
    identity: Any
    key_first: Any
    key_columns: Any
    fixed: Any


class WalRowColumns(NamedTuple):
    """Where the kernel writes: JSON bytes, and offsets per row."""

    before: Any
    before_offsets: Any
    after: Any
    after_offsets: Any
    key: Any
    key_offsets: Any
    unchanged: Any
    unchanged_offsets: Any


@kernel
def _count_at(src, at):
    return np.int64(src[at]) << 8 | np.int64(src[at + 1])


@kernel
def _length_at(src, at):
    return np.int64(swapped(load_word(src, at - 4)) & np.uint64(0xFFFFFFFF))


@kernel
def find_values(src, at, stop, count, values):
    """Note where the values of a tuple begin and end; return the offset behind it, or -1.

    ``values`` (int64 pointer) receives two numbers a column; instead of the first -1 for null, -2
        an unchanged one. Behind the columns it receives how many are unchanged.
    """
    unchanged = 0
    if _count_at(src, at) != count:
        return np.int64(-1)
    at += 2
    for column in range(count):
        if at >= stop:
            return np.int64(-1)
        letter = src[at]
        at += 1
        if letter == _TEXT:
            length = _length_at(src, at)
            at += 4
            values[2 * column] = at
            values[2 * column + 1] = at + length
            at += length
        elif letter == _NULL:
            values[2 * column] = -1
        elif letter == _UNCHANGED:
            values[2 * column] = -2
            unchanged += 1
        else:
            return np.int64(-1)
        if at > stop:
            return np.int64(-1)
    values[2 * count] = unchanged
    return at


@kernel
def put_unchanged_names(out, at, count, values, older, names, name_ends, first):
    """Write the names of the columns that a row lacks, as a JSON list; nothing if it lacks none.

    It takes less room than the row's own image, which has the names and the marks.
    """
    begin = at
    for i in range(count):
        if values[2 * i] == -2 and older[2 * i] < 0:
            # Without the colon behind the name.
            at = put_words(out, at, names, name_ends[first + i], name_ends[first + i + 1]) - 1
    if at == begin:
        return at
    # The first name's comma.
    out[begin] = 91
    out[at] = 93
    return at + 1


@kernel
def put_row(out, at, src, count, values, older, only, tables, first, scratch, spans):
    """Write a row image.

    Args:
        out: where to.
        at: offset to write at.
        src: holds the values.
        count: columns.
        values: from ``find_values``.
        older: the same of the row before, for values that are unchanged; as ``values`` without.
        only: which columns, see ``_known_of``.
        tables: pointers to the plans' chains, chain_at, names, name_ends and identity.
        first: of the plan's columns.
        scratch: see ``value_kernel``.
        spans: int64 pointer, receives where each value's JSON begins and ends; -1 for one that is
            left out.

    Returns:
        The offset behind it, or -1 - the number of the column whose value does not fit its kind.
    """
    chains, chain_at, names, name_ends, identity = tables
    begin = at
    for i in range(count):
        column = first + i
        if (only == _IDENTITY and not identity[column]) or (
            only == _NOT_NULL and values[2 * i] == -1
        ):
            spans[2 * i] = -1
            continue
        at = put_words(out, at, names, name_ends[column], name_ends[column + 1])
        spans[2 * i] = at
        start, stop = values[2 * i], values[2 * i + 1]
        if start == -2 and older[2 * i] >= 0:
            start, stop = older[2 * i], older[2 * i + 1]
        if start >= 0:
            if not fits(chains[chain_at[column]], src, start, stop):
                return np.int64(-1) - i
            at = put_value(out, at, chains, chain_at[column], src, start, stop, scratch, 0)
        elif start == -1:
            at = put_null(out, at)
        else:
            at = put_unchanged(out, at)
        spans[2 * i + 1] = at
    # The first name's comma.
    out[begin] = 123
    at = max(at, begin + 1)
    out[at] = 125
    return at + 1


@kernel
def put_key(out, at, image, spans, tables, first, key_columns, begin, end):
    """Write the key from a row image that was just written; nothing if the image lacks a part."""
    names, name_ends = tables[2], tables[3]
    opened = at
    for place in range(begin, end):
        i = key_columns[place]
        if spans[2 * i] < 0:
            return opened
        at = put_words(out, at, names, name_ends[first + i], name_ends[first + i + 1])
        at = put_words(out, at, image, spans[2 * i], spans[2 * i + 1])
    out[opened] = 123
    out[at] = 125
    return at + 1


@kernel
def _known_of(letter, count, older, identity, first):
    """Return which columns of an old row are known.

    The letter is that of the table's replica identity, a partition's own decides what is logged.
    So a whole row may be a key, whose other columns are null, and a key may be another one. No
    column of a key is ever null itself.
    """
    carried = doubtful = 0
    for i in range(count):
        flags, is_null = identity[first + i], older[2 * i] == -1
        carried |= flags & CARRIED
        doubtful |= flags & DOUBTFUL
        if letter == _OLD_KEY and flags and is_null:
            return _NOT_NULL
        if letter != _OLD_KEY and flags & DOUBTFUL and not is_null:
            return _ALL
    if letter == _OLD_KEY:
        return _IDENTITY if carried else _NOT_NULL
    return _NOT_NULL if doubtful else _ALL


@kernel
def _same_key(src, count, values, older, identity, first):
    """Return whether two tuples have the same replica identity.

    A key that is stored out of line comes with each update, changed or not.
    """
    for i in range(count):
        start, old = values[2 * i], older[2 * i]
        if not identity[first + i] or start == -2:
            continue
        length = older[2 * i + 1] - old
        if start < 0 or values[2 * i + 1] - start != length:
            return False
        for j in range(length):
            if src[start + j] != src[old + j]:
                return False
    return True


@kernel
def table_pointers(plans):
    """Return what ``put_row`` needs of the plans."""
    return (
        pointer(plans.chains), pointer(plans.chain_at), pointer(plans.names),
        pointer(plans.name_ends), pointer(plans.identity),
    )  # fmt: skip


@kernel
def decode_rows(src, rows, plans, columns, state, marks, scratch):
    """Decode the row messages of a segment.

    Args:
        src: uint8, the segment's messages.
        rows: int64, see ``log_segment``.
        plans: a PlanArrays.
        columns: a RowColumns to write to.
        state: int64, zeros at first.
        marks: int64 (6 for each column of the widest table), scratch.
        scratch: uint8, see ``value_kernel``.

    Returns:
        The result; after ``NEED_ROOM`` call again with larger columns and the same state.
    """
    # Taken out once: every look into the tuples costs two atomic counts.
    firsts, fixed, key_first, key_columns = (
        plans.first, plans.fixed, plans.key_first, plans.key_columns,
    )  # fmt: skip
    room = min(len(columns.before), len(columns.after), len(columns.key)) - MARGIN
    names_out, names_ends = pointer(columns.unchanged), columns.unchanged_offsets
    names_at = state[UNCHANGED]
    tables = table_pointers(plans)
    befores, afters, keys = pointer(columns.before), pointer(columns.after), pointer(columns.key)
    before_ends, after_ends = columns.before_offsets, columns.after_offsets
    key_ends = columns.key_offsets
    data, free, values = pointer(src), pointer(scratch), pointer(marks)
    width = len(marks) // 6
    older, spans = pointer(marks[2 * width :]), pointer(marks[4 * width :])
    before, after, key_at = state[BEFORE], state[AFTER], state[KEY]
    result = np.int64(DONE)
    row = state[ROW]
    while row < len(rows):
        plan, kind = rows[row, _PLAN], rows[row, _KIND]
        pos, stop = rows[row, _START], rows[row, _STOP]
        if max(before, after, key_at) + (stop - pos) * 6 + fixed[plan] > room:
            result = np.int64(NEED_ROOM)
            break
        first = firsts[plan]
        count = firsts[plan + 1] - first
        letter = data[pos]
        has_old = letter == _OLD_KEY or letter == _OLD_ROW
        if has_old:
            pos = find_values(data, pos + 1, stop, count, older)
        image = befores
        if kind != _DELETE and pos >= 0:
            is_row = data[pos] == _NEW_ROW
            pos = find_values(data, pos + 1, stop, count, values) if is_row else np.int64(-1)
            image = afters
        if pos != stop:
            state[BAD_COLUMN] = -1
            result = np.int64(BAD_COLUMNS)
            break
        only = _ALL
        if has_old:
            only = _known_of(letter, count, older, tables[4], first)
        if has_old and not (
            only == _IDENTITY and kind != _DELETE
            and _same_key(data, count, values, older, tables[4], first)
        ):  # fmt: skip
            put = put_row(
                befores, before, data, count, older, older, only, tables, first, free, spans
            )
            if put < 0:
                state[BAD_COLUMN] = -1 - put
                result = np.int64(BAD_COLUMNS)
                break
            before = put
        if kind != _DELETE:
            put = put_row(
                afters, after, data, count, values, older if has_old else values, 0, tables, first,
                free, spans,
            )  # fmt: skip
            if put < 0:
                state[BAD_COLUMN] = -1 - put
                result = np.int64(BAD_COLUMNS)
                break
            after = put
            if values[2 * count]:
                names_at = put_unchanged_names(
                    names_out, names_at, count, values, older if has_old else values, tables[2],
                    tables[3], first,
                )  # fmt: skip
        begin, end = key_first[plan], key_first[plan + 1]
        if end > begin:
            key_at = put_key(keys, key_at, image, spans, tables, first, key_columns, begin, end)
        row += 1
        before_ends[row] = before
        after_ends[row] = after
        key_ends[row] = key_at
        names_ends[row] = names_at
    state[BEFORE], state[AFTER], state[KEY], state[ROW] = before, after, key_at, row
    state[UNCHANGED] = names_at
    return result
