"""Kernels that turn one value from the server's text form into JSON text.

Buffers, offsets and room are those of ``columns.json_text_kernel``. ``scratch`` holds unescaped
copies of values from offset ``free`` on; it is as large as the longest value for every level of a
chain.
"""

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import load_word
from airflow_provider_deltaforge.columns.json_text_kernel import (
    QUOTE,
    kernel,
    not_a_mark,
    put_binary,
    put_bool,
    put_byte_escaped,
    put_bytes,
    put_escaped,
    put_inside,
    put_null,
    put_string,
)
from airflow_provider_deltaforge.columns.number_text_kernel import put_uint
from airflow_provider_deltaforge.sources.postgres import column_kinds as k
from airflow_provider_deltaforge.sources.postgres.time_kernel import put_moment, put_time_zoned

_BACKSLASH, _COMMA, _COLON, _SPACE = 92, 44, 58, 32
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_LIST, _CLOSE_LIST = 123, 125, 91, 93
_X, _ZERO, _NINE, _MINUS, _T, _F, _N = 120, 48, 57, 45, 116, 102, 78
_DIGITS, _KIND_MASK = 10, 0xFF

_UNCHANGED = np.frombuffer(b'{"_unchanged":true}', np.uint8)
_SPACES = np.uint64(0x2020202020202020)
_HIGH_BITS = np.uint64(0x8080808080808080)

_NIBBLES = np.zeros(256, np.uint8)
for _digit, _value in zip(b"0123456789abcdefABCDEF", [*range(16), *range(10, 16)], strict=True):
    _NIBBLES[_digit] = _value


@kernel
def fits(kind, data, start, stop):
    """Return whether a value can be of its kind, where another text would make invalid JSON."""
    kind &= _KIND_MASK
    if kind == k.NUMBER:
        if start < stop and data[start] == _MINUS:
            start += 1
        wrong = start >= stop
        for i in range(start, stop):
            wrong |= np.uint8(data[i] - _ZERO) >= _DIGITS
        return not wrong
    if kind == k.BOOL:
        return stop - start == 1 and (data[start] == _T or data[start] == _F)
    if kind == k.ARRAY:
        opened = stop > start and (data[start] == _OPEN_OBJECT or data[start] == _OPEN_LIST)
        return opened and data[stop - 1] == _CLOSE_OBJECT
    return True


@kernel
def put_scalar(out, at, kind, data, start, stop, scratch, free):
    """Write the value ``data[start:stop]`` of a column, or an array's element, of this kind."""
    if kind == k.NUMBER:
        return put_inside(out, at, data, start, stop)
    if kind == k.PLAIN:
        return _put_quoted(out, at, data, start, stop)
    if kind == k.TIMESTAMP:
        return put_moment(out, at, data, start, stop, zoned=False)
    if kind == k.TIMESTAMPTZ:
        return put_moment(out, at, data, start, stop, zoned=True)
    if kind == k.BOOL:
        return put_bool(out, at, data[start] == _T)
    if kind == k.JSON:
        return not_a_mark(out, at, put_json_line(out, at, data, start, stop))
    if kind == k.FLOAT:
        first = data[start + 1] if data[start] == _MINUS and start + 1 < stop else data[start]
        if _ZERO <= first <= _NINE:
            return put_inside(out, at, data, start, stop)
        return _put_quoted(out, at, data, start, stop)
    if kind == k.BYTEA:
        return put_bytea(out, at, data, start, stop, scratch, free)
    if kind == k.BIT:
        return _put_bits(out, at, data, start, stop)
    if kind == k.BIT1:
        return put_bool(out, at, data[start] != _ZERO)
    if kind == k.TIMETZ:
        return put_time_zoned(out, at, data, start, stop)
    if kind == k.HSTORE:
        return put_hstore(out, at, data, start, stop)
    if kind == k.VECTOR:
        return _put_vector(out, at, data, start, stop)
    return put_string(out, at, data, start, stop)


@kernel
def _put_quoted(out, at, data, start, stop):
    out[at] = QUOTE
    at = put_inside(out, at + 1, data, start, stop)
    out[at] = QUOTE
    return at + 1


@kernel
def put_json_line(out, at, data, start, stop):
    """Write a JSON document as it is, but on one line: ``json`` keeps the breaks it was given.

    A control character stands only between two parts of a document, where a space does as well.
    """
    end = put_inside(out, at, data, start, stop)
    while at + 8 <= end:
        word = load_word(out, at)
        if ((word - _SPACES) & ~word & _HIGH_BITS) != np.uint64(0):
            for i in range(at, at + 8):
                out[i] = max(out[i], _SPACE)
        at += 8
    while at < end:
        out[at] = max(out[at], _SPACE)
        at += 1
    return end


@kernel
def put_bytea(out, at, data, start, stop, scratch, free):
    """Write bytes, printed in either of the server's two formats, as ``{"_base64":"…"}``."""
    end = free
    if stop - start >= 2 and data[start] == _BACKSLASH and data[start + 1] == _X:
        for i in range(start + 2, stop - 1, 2):
            scratch[end] = _NIBBLES[data[i]] << 4 | _NIBBLES[data[i + 1]]
            end += 1
        return put_binary(out, at, scratch, free, end)
    while start < stop:
        byte = data[start]
        start += 1
        if byte == _BACKSLASH and data[start] == _BACKSLASH:
            start += 1
        elif byte == _BACKSLASH:
            high, middle, low = data[start] - 48, data[start + 1] - 48, data[start + 2] - 48
            byte = np.uint8(high << 6 | middle << 3 | low)
            start += 3
        scratch[end] = byte
        end += 1
    return put_binary(out, at, scratch, free, end)


@kernel
def _put_bits(out, at, data, start, stop):
    bits = np.uint64(0)
    for i in range(start, stop):
        bits = (bits << np.uint64(1)) | np.uint64(data[i] - _ZERO)
    return put_uint(out, at, bits)


@kernel
def _put_vector(out, at, data, start, stop):
    """Write ``1 2 3`` as a list."""
    out[at] = _OPEN_LIST
    end = put_inside(out, at + 1, data, start, stop)
    for i in range(at + 1, end):
        if out[i] == _SPACE:
            out[i] = _COMMA
    out[end] = _CLOSE_LIST
    return end + 1


@kernel
def put_hstore(out, at, data, start, stop):
    """Write ``"a"=>"1", "b"=>NULL`` as an object."""
    out[at] = _OPEN_OBJECT
    at += 1
    while start < stop:
        byte = data[start]
        if byte == QUOTE:
            at, start = _put_unescaped(out, at, data, start + 1, stop)
        elif byte == _N:
            at = put_null(out, at)
            start += 4
        else:
            if byte == 61:
                out[at] = _COLON
                at += 1
            elif byte == _COMMA:
                out[at] = _COMMA
                at += 1
            start += 1
    out[at] = _CLOSE_OBJECT
    return at + 1


@kernel
def _put_unescaped(out, at, data, start, stop):
    """Write quoted text whose quotes and backslashes stand behind a backslash.

    Returns:
        (offset behind what was written, offset behind the closing quote).
    """
    out[at] = QUOTE
    at += 1
    begin = start
    while start < stop and data[start] != QUOTE:
        if data[start] == _BACKSLASH:
            at = put_escaped(out, at, data, begin, start)
            at = put_byte_escaped(out, at, data[start + 1])
            start += 2
            begin = start
        else:
            start += 1
    at = put_escaped(out, at, data, begin, start)
    out[at] = QUOTE
    return at + 1, start + 1


@kernel
def unescape(scratch, at, data, start, stop):
    """Copy text without its backslashes, as arrays write it; return the offset behind it."""
    while start < stop:
        if data[start] == _BACKSLASH:
            start += 1
        scratch[at] = data[start]
        at += 1
        start += 1
    return at


@kernel
def put_unchanged(out, at):
    """Write the mark of a value, stored out of line, that the update did not touch."""
    return put_bytes(out, at, _UNCHANGED, 0, 19)
