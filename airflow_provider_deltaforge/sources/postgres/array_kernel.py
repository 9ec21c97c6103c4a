"""Kernels from the server's text form of arrays to JSON lists."""

from airflow_provider_deltaforge.sources.json_text import QUOTE, kernel, put_null
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
        out: see ``sources.json_text``.
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

    An element is itself an array only where it has a domain's type: further dimensions are braces.
    """
    delimiter = chain[level] >> _KIND_BITS
    nested = chain[level + 1] & _KIND_MASK == k.ARRAY
    kind = chain[level + 1]
    if data[start] == _BOUNDS_OPEN:
        while data[start] != _BOUNDS_END:
            start += 1
        start += 1
    while start < stop:
        byte = data[start]
        if byte == _OPEN or byte == _CLOSE or byte == delimiter:  # noqa: PLR1714, SIM109 - a set costs
            out[at] = _LIST_OPEN if byte == _OPEN else (_LIST_CLOSE if byte == _CLOSE else _COMMA)
            at += 1
            start += 1
            continue
        end, behind, quoted, escaped = _element(data, start, stop, delimiter)
        if not quoted and _is_null(data, start, end):
            at = put_null(out, at)
        else:
            begin = start + quoted
            source, room = data, free
            if escaped:
                room = unescape(scratch, free, data, begin, end)
                source, begin, end = scratch, free, room
            if nested:
                at = _put_array(out, at, chain, level + 1, source, begin, end, scratch, room)
            else:
                at = put_scalar(out, at, kind, source, begin, end, scratch, room)
        start = behind
    return at


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
