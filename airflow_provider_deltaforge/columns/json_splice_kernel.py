"""Kernels that write columns of JSON texts anew, with parts changed; see ``json_column_kernel``."""

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import pointer
from airflow_provider_deltaforge.columns.compiled import kernel
from airflow_provider_deltaforge.columns.json_column_kernel import put_bytes
from airflow_provider_deltaforge.columns.json_scan_kernel import (
    BACKSLASH,
    COMMA,
    QUOTE,
    skip_space,
    skip_string,
)


@kernel
def _next_place(starts, row, behind):
    """Return which of a row's places is the first at or behind an offset, or -1."""
    best = -1
    for i in range(len(starts)):
        begin = starts[i, row]
        if begin >= behind and (best < 0 or begin < starts[best, row]):
            best = i
    return best


@kernel
def splice(data, offsets, starts, stops, new, new_offsets, out, out_offsets):
    """Write each text with its values replaced; of values inside others the outer ones count.

    Args:
        data: the column.
        offsets: the column.
        starts: int64 (paths, rows).
        stops: int64 (paths, rows).
        new: uint8, the replacements, those of the first path first.
        new_offsets: int32, paths * rows + 1.
        out: uint8, as large as the texts and the replacements together.
        out_offsets: int32, rows + 1.
    """
    text, fresh, target = pointer(data), pointer(new), pointer(out)
    rows = len(offsets) - 1
    at = np.int64(0)
    out_offsets[0] = 0
    for row in range(rows):
        begin = np.int64(offsets[row])
        place = _next_place(starts, row, begin)
        while place >= 0:
            index = place * rows + row
            at = put_bytes(target, at, text, begin, starts[place, row])
            at = put_bytes(target, at, fresh, new_offsets[index], new_offsets[index + 1])
            begin = stops[place, row]
            place = _next_place(starts, row, begin)
        at = put_bytes(target, at, text, begin, np.int64(offsets[row + 1]))
        out_offsets[row + 1] = at
    return at


@kernel
def _key_of(data, at, floor):
    """Return where the key of the value that begins here begins, not before ``floor``."""
    at -= 1
    while at > floor and data[at] != QUOTE:  # White space and the colon.
        at -= 1
    while at > floor:
        at -= 1
        if data[at] == QUOTE:
            before = at
            while before > floor and data[before - 1] == BACKSLASH:
                before -= 1
            if (at - before) % 2 == 0:
                return at
    return floor


@kernel
def remove(data, offsets, starts, stops, out, out_offsets):
    """Write each text without its values, their keys and their commas."""
    text, target = pointer(data), pointer(out)
    at = np.int64(0)
    out_offsets[0] = 0
    for row in range(len(offsets) - 1):
        begin = np.int64(offsets[row])
        stop = np.int64(offsets[row + 1])
        place = _next_place(starts, row, begin)
        while place >= 0:
            key = _key_of(text, starts[place, row], begin)
            at = put_bytes(target, at, text, begin, key)
            begin = skip_space(text, stops[place, row], stop)
            if begin < stop and text[begin] == COMMA:
                begin = skip_space(text, begin + 1, stop)
            else:
                # The last member: the comma before it, if there is one, was written.
                end = at
                while end > 0 and target[end - 1] <= 32:
                    end -= 1
                if end > 0 and target[end - 1] == COMMA:
                    at = end - 1
            place = _next_place(starts, row, begin)
        at = put_bytes(target, at, text, begin, stop)
        out_offsets[row + 1] = at
    return at


@kernel
def drop_space(data, offsets, out, out_offsets):
    """Write each text without the white space outside of its strings; return how much was written.

    Args:
        data: the column.
        offsets: the column.
        out: uint8, as large as the texts together.
        out_offsets: int32, rows + 1.
    """
    text, target = pointer(data), pointer(out)
    at = np.int64(0)
    out_offsets[0] = 0
    for row in range(len(offsets) - 1):
        begin, stop = np.int64(offsets[row]), np.int64(offsets[row + 1])
        while begin < stop:
            if text[begin] == QUOTE:
                end, _ = skip_string(text, begin + 1, stop, len(data))
                if end < 0:  # Not JSON: the rest stays.
                    end = stop
                at = put_bytes(target, at, text, begin, end)
                begin = end
            else:
                if text[begin] > 32:
                    target[at] = text[begin]
                    at += 1
                begin += 1
        out_offsets[row + 1] = at
    return at
