"""Kernels from the server's dates and times to ISO 8601.

The sessions that read print them with ``DateStyle`` ISO and ``TimeZone`` UTC. Years before Christ
and the infinities have no ISO form: they stay as the server prints them.
"""

from airflow_provider_deltaforge.columns.json_text_kernel import QUOTE, kernel, put_inside

_SPACE, _PLUS, _MINUS, _ZERO, _COLON = 32, 43, 45, 48, 58
_T, _Z, _LAST_OF_BC, _FIRST_OF_INFINITY = 84, 90, 67, 105
_DATE_MIN = 10


@kernel
def put_moment(out, at, data, start, stop, zoned):
    """Write a timestamp; ``zoned`` says that it ends with its distance from UTC."""
    out[at] = QUOTE
    begin = at + 1
    end = put_inside(out, begin, data, start, stop)
    plain = data[start] not in (_FIRST_OF_INFINITY, _MINUS) and data[stop - 1] != _LAST_OF_BC
    if plain:
        # Years above 9999 take more than four digits.
        space = begin + _DATE_MIN
        while space < end and out[space] != _SPACE:
            space += 1
        if space < end:
            out[space] = _T
        if zoned:
            end = _zone(out, end, zulu=True)
    out[end] = QUOTE
    return end + 1


@kernel
def put_time_zoned(out, at, data, start, stop):
    """Write a time with its own distance from UTC."""
    out[at] = QUOTE
    end = put_inside(out, at + 1, data, start, stop)
    end = _zone(out, end, zulu=False)
    out[end] = QUOTE
    return end + 1


@kernel
def _zone(out, end, zulu):
    """Complete a distance of whole hours, ``+00`` or ``-07``; return the new end."""
    if out[end - 3] != _PLUS and out[end - 3] != _MINUS:
        return end
    if zulu and out[end - 2] == _ZERO and out[end - 1] == _ZERO:
        out[end - 3] = _Z
        return end - 2
    out[end] = _COLON
    out[end + 1] = _ZERO
    out[end + 2] = _ZERO
    return end + 3
