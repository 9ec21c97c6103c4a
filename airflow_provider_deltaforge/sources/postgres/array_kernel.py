"""Kernels from the server's text form of arrays to JSON lists."""

import numpy as np

from airflow_provider_deltaforge.columns.json_text_kernel import QUOTE, kernel, put_null
from airflow_provider_deltaforge.sources.postgres import column_kinds as k
from airflow_provider_deltaforge.sources.postgres.value_kernel import put_scalar, unescape

_OPEN, _CLOSE, _BACKSLASH, _COMMA = 123, 125, 92, 44
_BOUNDS_OPEN, _BOUNDS_END = 91, 61
_LIST_OPEN, _LIST_CLOSE = 91, 93
_KIND_BITS, _KIND_MASK = 8, 0xFF


@kernel
def put_value(out, at, chain, level, data, start, stop, scratch, free):
    """Write the value ``data[start:stop]`` of a column as JSON.

    Args:
        out: see ``columns.json_text_kernel``.
        at: where to write.
        chain: pointer to kinds; behind an array's stands its elements'.
        level: where the column's kind stands in them.
        data: holds the value.
        start: where it begins.
        stop: where it ends.
        scratch: see ``value_kernel``.
        free: offset of scratch's free part.
    """
    kind = chain[level]
    if kind & _KIND_MASK != k.ARRAY:
        return put_scalar(out, at, kind, data, start, stop, scratch, free)
    return _put_array(out, at, chain, level, data, start, stop, scratch, free)


@kernel
def _put_array(out, at, chain, level, data, start, stop, scratch, free):
    """Write an array, with a list for each of its dimensions.

    Further dimensions are braces; an element is itself an array only where a domain makes it one,
    and is then read in its own turn. No kernel calls itself: numba cannot keep such code.
    """
    source, room = data, free
    outer_start, outer_stop = start, np.int64(-1)
    start = _behind_bounds(source, start, stop)
    while True:
        if start >= stop:
            if outer_stop < 0:
                return at
            source, room, level = data, free, level - 1
            start, stop, outer_stop = outer_start, outer_stop, np.int64(-1)
            continue
        byte = source[start]
        delimiter = chain[level] >> _KIND_BITS
        # Compared one by one, because a set costs.
        if byte == _OPEN or byte == _CLOSE or byte == delimiter:
            out[at] = _LIST_OPEN if byte == _OPEN else (_LIST_CLOSE if byte == _CLOSE else _COMMA)
            at += 1
            start += 1
            continue
        end, behind, quoted, escaped = _element(source, start, stop, delimiter)
        begin = start + quoted
        if not quoted and _is_null(source, start, end):
            at = put_null(out, at)
            start = behind
            continue
        inside = source
        if escaped:
            end = unescape(scratch, room, source, begin, end)
            inside, begin = scratch, room
        kind = chain[level + 1]
        if kind & _KIND_MASK != k.ARRAY:
            at = put_scalar(out, at, kind, inside, begin, end, scratch, end if escaped else room)
            start = behind
            continue
        outer_start, outer_stop = behind, stop
        source, start, stop, level = inside, _behind_bounds(inside, begin, end), end, level + 1
        room = end if escaped else room


@kernel
def _behind_bounds(data, start, stop):
    """Step over ``[2:4]=``."""
    if data[start] == _BOUNDS_OPEN:
        while start < stop and data[start] != _BOUNDS_END:
            start += 1
        start += 1
    return start


@kernel
def _element(data, start, stop, delimiter):
    """Return (end of an element's text, offset behind it, 1 if it is quoted, it has escapes)."""
    if data[start] != QUOTE:
        while start < stop and data[start] != delimiter and data[start] != _CLOSE:
            start += 1
        return start, start, 0, False
    start += 1
    escaped = False
    while start < stop and data[start] != QUOTE:
        if data[start] == _BACKSLASH:
            escaped = True
            start += 1
        start += 1
    return start, start + 1, 1, escaped


@kernel
def _is_null(data, start, end):
    return (
        end - start == 4
        and data[start] == 78
        and data[start + 1] == 85
        and data[start + 2] == 76
        and data[start + 3] == 76
    )
