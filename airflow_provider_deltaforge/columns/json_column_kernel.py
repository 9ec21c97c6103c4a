"""Kernels over whole columns of JSON texts; ``json_fields`` is how they are called.

A column is ``(data, offsets, present)`` as in ``binary_columns.Parts``. Places of values are int64
offsets into ``data``, -1 where there is none. Output buffers are as large as their callers say.
"""

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import load_word, pointer, store_word
from airflow_provider_deltaforge.columns.compiled import kernel
from airflow_provider_deltaforge.columns.json_scan_kernel import (
    BACKSLASH,
    CLOSE_OBJECT,
    COMMA,
    KIND_OF,
    NULL,
    OPEN_OBJECT,
    QUOTE,
    read_escape,
    same_key,
    skip_key,
    skip_space,
    skip_string,
    skip_value,
    utf8_byte,
    utf8_width,
)


@kernel
def put_bytes(out, at, data, begin, end):
    """Append bytes; return the offset behind them. Nothing beyond them is read or written."""
    while end - begin >= 8:
        store_word(out, at, load_word(data, begin))
        begin += 8
        at += 8
    while begin < end:
        out[at] = data[begin]
        begin += 1
        at += 1
    return at


@kernel
def find_members(data, at, stop, limit, stack, names, name_ends, wanted, count, places):
    """Find members of the object that begins here; of equal keys the last one counts.

    Args:
        data: see ``json_scan_kernel``.
        at: offset of the opening brace.
        stop: see ``json_scan_kernel``.
        limit: see ``json_scan_kernel``.
        stack: see ``json_scan_kernel``.
        names: pointer to names one behind the other.
        name_ends: pointer to where each name ends; name ``i`` begins where ``i - 1`` ends.
        wanted: pointer to the index of each name looked for, -1 for none.
        count: how many are looked for.
        places: pointer to ``2 * count`` offsets, set where a member is found.

    Returns:
        The offset behind the object, or -1.
    """
    at = skip_space(data, at + 1, stop)
    if at < stop and data[at] == CLOSE_OBJECT:
        return at + 1
    while True:
        key = at + 1
        behind, begin, escaped = skip_key(data, at, stop, limit)
        if behind < 0:
            return np.int64(-1)
        at = skip_value(data, begin, stop, limit, stack)
        if at < 0:
            return at
        for i in range(count):
            name = wanted[i]
            if name >= 0:
                first = name_ends[name - 1] if name else 0
                if same_key(data, key, behind - 1, escaped, names, first, name_ends[name]):
                    places[2 * i] = begin
                    places[2 * i + 1] = at
        at = skip_space(data, at, stop)
        if at >= stop:
            return np.int64(-1)
        if data[at] == CLOSE_OBJECT:
            return at + 1
        if data[at] != COMMA:
            return np.int64(-1)
        at = skip_space(data, at + 1, stop)


@kernel
def locate(data, offsets, present, names, name_ends, path_ends, stack_bytes, starts, stops):
    """Find one value per path and row.

    Args:
        data: the column.
        offsets: the column.
        present: the column.
        names: uint8, the segments of all paths one behind the other.
        name_ends: int64, where each segment ends.
        path_ends: int64 per path, how many segments it and those before it have.
        stack_bytes: uint8, from ``stack_for``.
        starts: int64 (paths, rows), filled.
        stops: int64 (paths, rows), filled.
    """
    count = len(path_ends)
    limit = len(data)
    text, segments, ends = pointer(data), pointer(names), pointer(name_ends)
    wanted_names = np.full(count + 1, -1, np.int64)
    found = np.empty(2 * count + 2, np.int64)
    stack, wanted, places = pointer(stack_bytes), pointer(wanted_names), pointer(found)
    for i in range(count):
        first = path_ends[i - 1] if i else 0
        wanted[i] = first if path_ends[i] > first else -1
    for row in range(len(offsets) - 1):
        found[:] = -1
        stop = np.int64(offsets[row + 1])
        at = skip_space(text, np.int64(offsets[row]), stop)
        begin = at
        if at >= stop or (len(present) and not present[row]):
            at = np.int64(-1)
        elif text[at] == OPEN_OBJECT:
            at = find_members(text, at, stop, limit, stack, segments, ends, wanted, count, places)
        else:
            at = skip_value(text, at, stop, limit, stack)
        whole = at >= 0 and skip_space(text, at, stop) == stop
        for i in range(count):
            first = path_ends[i - 1] if i else 0
            if not whole:
                starts[i, row] = stops[i, row] = -1
                continue
            if first == path_ends[i]:
                places[2 * i] = begin
                places[2 * i + 1] = at
            for name in range(first + 1, path_ends[i]):
                inner = places[2 * i]
                end = places[2 * i + 1]
                places[2 * i] = places[2 * i + 1] = -1
                if inner >= 0 and text[inner] == OPEN_OBJECT:
                    wanted[count] = name
                    places[2 * count] = places[2 * count + 1] = -1
                    find_members(
                        text, inner, end, limit, stack, segments, ends,
                        pointer(wanted_names[count:]), 1, pointer(found[2 * count :]),
                    )  # fmt: skip
                    places[2 * i] = places[2 * count]
                    places[2 * i + 1] = places[2 * count + 1]
            starts[i, row] = places[2 * i]
            stops[i, row] = places[2 * i + 1]


@kernel
def fill_kinds(data, starts, out):
    """Return the kind of each value."""
    for row in range(len(starts)):
        out[row] = KIND_OF[data[starts[row]]] if starts[row] >= 0 else 0


@kernel
def copy_values(data, starts, stops, out, out_offsets):
    """Copy values one behind the other; ``out`` is as large as all of them together."""
    text, target = pointer(data), pointer(out)
    at = np.int64(0)
    out_offsets[0] = 0
    for row in range(len(starts)):
        if starts[row] >= 0:
            at = put_bytes(target, at, text, starts[row], stops[row])
        out_offsets[row + 1] = at


@kernel
def put_decoded(out, at, data, begin, end):
    """Append the inside of a valid JSON string as UTF-8; return the offset behind it."""
    while begin < end:
        if data[begin] == BACKSLASH:
            code, begin = read_escape(data, begin, end)
            width = utf8_width(code)
            for i in range(width):
                out[at + i] = utf8_byte(code, width, i)
            at += width
        else:
            out[at] = data[begin]
            at += 1
            begin += 1
    return at


@kernel
def decode_texts(data, starts, stops, out, out_offsets, out_present):
    """Write what each value is as text; ``out`` is as large as all of them together.

    Returns:
        How many bytes were written.
    """
    text, target = pointer(data), pointer(out)
    limit = len(data)
    at = np.int64(0)
    out_offsets[0] = 0
    for row in range(len(starts)):
        begin, stop = starts[row], stops[row]
        known = begin >= 0
        if known:
            begin = skip_space(text, begin, stop)
            known = begin < stop
        if known and text[begin] == QUOTE:
            end, escaped = skip_string(text, begin + 1, stop, limit)
            known = end >= 0 and skip_space(text, end, stop) == stop
            if known and escaped:
                at = put_decoded(target, at, text, begin + 1, end - 1)
            elif known:
                at = put_bytes(target, at, text, begin + 1, end - 1)
        elif known:
            known = KIND_OF[text[begin]] != NULL
            while text[stop - 1] <= 32:
                stop -= 1
            if known:
                at = put_bytes(target, at, text, begin, stop)
        out_present[row] = known
        out_offsets[row + 1] = at
    return at
