"""The kernel from lines of COPY's text format to JSON rows."""

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import pointer
from airflow_provider_deltaforge.columns.json_text_kernel import kernel
from airflow_provider_deltaforge.sources.postgres.wal.row_kernel import (
    BAD_COLUMNS,
    DONE,
    put_key,
    put_row,
    table_pointers,
)

MORE = np.int64(-1)

_TAB, _NEWLINE, _BACKSLASH, _NULL = 9, 10, 92, 78

# What the letters behind a backslash stand for; every other one stands for itself.
_MEANINGS = np.arange(256, dtype=np.uint8)
for _letter, _meaning in zip(b"bfnrtv", b"\b\f\n\r\t\v", strict=True):
    _MEANINGS[_letter] = _meaning


@kernel
def find_fields(text, start, stop, count, values):
    """Note where a line's values begin and end, and take COPY's escapes out of them in place.

    What is taken out is not needed again: lines are read once, from the front.

    Returns:
        (offset behind the line, DONE), (``start``, MORE) when the line is not complete, or
        (``start``, BAD_COLUMNS).
    """
    end = start
    escapes = False
    while end < stop and text[end] != _NEWLINE:
        escapes |= text[end] == _BACKSLASH
        end += 1
    if end == stop:
        return start, MORE
    column = np.int64(0)
    at = start
    while count > 0:
        if column == count:
            return start, np.int64(BAD_COLUMNS)
        begin = at
        if escapes:
            at, length = _unescape_field(text, at)
            values[2 * column] = begin if length >= 0 else -1
            values[2 * column + 1] = begin + length
        else:
            while text[at] != _TAB and text[at] != _NEWLINE:
                at += 1
            values[2 * column] = begin
            values[2 * column + 1] = at
        column += 1
        # The place was not written to: a value only becomes shorter.
        if at == end:
            break
        at += 1
    if column != count:
        return start, np.int64(BAD_COLUMNS)
    return end + 1, np.int64(DONE)


@kernel
def _unescape_field(text, at):
    r"""Take the escapes out of one field; return (offset of its end, its length or -1 for \N)."""
    begin = to = at
    null = False
    while text[at] != _TAB and text[at] != _NEWLINE:
        byte = text[at]
        if byte == _BACKSLASH:
            at += 1
            byte = text[at]
            null = byte == _NULL and at == begin + 1
            byte = _MEANINGS[byte]
        text[to] = byte
        to += 1
        at += 1
    if null and at == begin + 2:
        return at, np.int64(-1)
    return at, to - begin


@kernel
def decode_lines(text, plans, after, after_ends, key, key_ends, marks, scratch):
    """Decode the complete lines in ``text``.

    Args:
        text: uint8, writable; its escapes are taken out on the way.
        plans: a PlanArrays of one plan.
        after: uint8, where row JSON goes; there must be room for all of it.
        after_ends: int64, the rows' borders.
        key: uint8, where key JSON goes.
        key_ends: int64.
        marks: int64 (4 for each column), scratch.
        scratch: uint8, see ``value_kernel``.

    Returns:
        (DONE or BAD_COLUMNS, rows, bytes of ``text`` that were decoded).
    """
    tables = table_pointers(plans)
    count = plans.first[1]
    key_columns, key_count = plans.key_columns, plans.key_first[1]
    data, out, keys, free = pointer(text), pointer(after), pointer(key), pointer(scratch)
    values, spans = pointer(marks), pointer(marks[len(marks) // 2 :])
    pos = row = at = key_at = np.int64(0)
    while pos < len(text):
        behind, found = find_fields(data, pos, len(text), count, values)
        if found == BAD_COLUMNS:
            return found, row, pos
        if found == MORE:
            break
        put = put_row(out, at, data, count, values, values, 0, tables, 0, free, spans)
        if put < 0:
            return np.int64(BAD_COLUMNS), row, pos
        at = put
        if key_count:
            key_at = put_key(keys, key_at, out, spans, tables, 0, key_columns, 0, key_count)
        pos = behind
        row += 1
        after_ends[row] = at
        key_ends[row] = key_at
    return np.int64(DONE), row, pos
