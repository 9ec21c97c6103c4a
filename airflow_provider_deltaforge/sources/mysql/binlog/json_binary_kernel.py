"""A kernel from MySQL's binary JSON to JSON text, number for number as the server prints it."""

import numpy as np

from airflow_provider_deltaforge.columns.float_text_kernel import put_json_double
from airflow_provider_deltaforge.columns.json_text_kernel import (
    QUOTE,
    kernel,
    not_a_mark,
    put_base64,
    put_bool,
    put_bytes,
    put_null,
    put_string,
)
from airflow_provider_deltaforge.columns.number_text_kernel import (
    put_clock,
    put_date,
    put_fraction,
    put_int,
    put_uint,
)
from airflow_provider_deltaforge.sources.mysql.binlog.value_kernel import low, put_decimal

_LINE_BYTES = 57
_OPAQUE_OPEN = np.frombuffer(b"base64:type", np.uint8)


@kernel
def _put_lines(out, at, src, start, stop):
    """Write bytes in base64 as the server does: in lines of 76 characters."""
    while stop - start > _LINE_BYTES:
        at = put_base64(out, at, src, start, start + _LINE_BYTES)
        out[at] = 92
        out[at + 1] = 110
        at += 2
        start += _LINE_BYTES
    return put_base64(out, at, src, start, stop)


@kernel
def _number(src, pos, size):
    return np.int64(low(src, pos, size))


@kernel
def put_json(out, at, src, pos, stop):
    """Write a JSON document; an empty value is what old servers stored for NULL.

    Returns:
        The new offset, or -1 if the document is damaged.
    """
    if pos >= stop:
        return put_null(out, at)
    end = _put_any(out, at, src, np.int64(src[pos]), pos + 1, stop)
    return not_a_mark(out, at, end)


@kernel
def _put_any(out, at, src, kind, pos, stop):
    if kind <= 3:
        large = (kind & 1) == 1
        width = 4 if large else 2
        if pos + 2 * width > stop:
            return np.int64(-1)
        is_object = kind < 2
        count = _number(src, pos, width)
        value = pos + 2 * width + (count * (width + 2) if is_object else 0)
        if value + count * (width + 1) > stop:
            return np.int64(-1)
        out[at] = 123 if is_object else 91
        at += 1
        for i in range(count):
            if i:
                out[at] = 44
                at += 1
            if is_object:
                entry = pos + 2 * width + i * (width + 2)
                name = pos + _number(src, entry, width)
                at = put_string(out, at, src, name, name + _number(src, entry + width, 2))
                out[at] = 58
                at += 1
            inner = np.int64(src[value])
            if inner in (4, 5, 6) or (large and inner in (7, 8)):
                at = _put_scalar(out, at, src, inner, value + 1, stop)
            else:
                place = pos + _number(src, value + 1, width)
                if place > stop:
                    return np.int64(-1)
                if inner <= 3:
                    at = _put_any(out, at, src, inner, place, stop)
                else:
                    at = _put_scalar(out, at, src, inner, place, stop)
            if at < 0:
                return np.int64(-1)
            value += width + 1
        out[at] = 125 if is_object else 93
        return at + 1
    return _put_scalar(out, at, src, kind, pos, stop)


@kernel
def _length(src, pos):
    """Return (value, next offset) of a length in groups of seven bits."""
    value = np.int64(0)
    shift = 0
    while True:
        byte = np.int64(src[pos])
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7


@kernel
def _signed(value, bits):
    return value - (np.int64(1) << bits) if value >> (bits - 1) else value


@kernel
def _put_scalar(out, at, src, kind, pos, stop):
    if kind == 4:
        literal = src[pos]
        return put_null(out, at) if literal == 0 else put_bool(out, at, literal == 1)
    if kind == 5:
        return put_int(out, at, _signed(_number(src, pos, 2), 16))
    if kind == 6:
        return put_int(out, at, _number(src, pos, 2))
    if kind == 7:
        return put_int(out, at, _signed(_number(src, pos, 4), 32))
    if kind == 8:
        return put_int(out, at, _number(src, pos, 4))
    if kind == 9:
        return put_int(out, at, _number(src, pos, 8))
    if kind == 10:
        return put_uint(out, at, low(src, pos, 8))
    if kind == 11:
        return put_json_double(out, at, low(src, pos, 8))
    if kind == 12:
        length, begin = _length(src, pos)
        if begin + length > stop:
            return np.int64(-1)
        return put_string(out, at, src, begin, begin + length)
    if kind == 15:
        return _put_opaque(out, at, src, pos, stop)
    return np.int64(-1)


@kernel
def _put_opaque(out, at, src, pos, stop):
    """Write a value of a column type inside a document, as the server's JSON text has it."""
    field = np.int64(src[pos])
    length, begin = _length(src, pos + 1)
    if begin + length > stop:
        return np.int64(-1)
    if field in (0, 246):
        return put_decimal(out, at, src, begin + 2, np.int64(src[begin]), np.int64(src[begin + 1]))
    out[at] = QUOTE
    at += 1
    if field in (7, 10, 11, 12, 17, 18, 19) and length == 8:
        packed = _number(src, begin, 8)
        if packed < 0:
            out[at] = 45
            at += 1
            packed = -packed
        micros = packed & 0xFFFFFF
        whole = packed >> 24
        if field in (11, 19):
            at = put_clock(out, at, (whole >> 12) & 1023, (whole >> 6) & 63, whole & 63)
            at = put_fraction(out, at, micros, 6)
        else:
            date = whole >> 17
            months = date >> 5
            at = put_date(out, at, months // 13, months % 13, date & 31)
            if field != 10:
                out[at] = 32
                at = put_clock(out, at + 1, (whole >> 12) & 31, (whole >> 6) & 63, whole & 63)
                at = put_fraction(out, at, micros, 6)
    else:
        at = put_bytes(out, at, _OPAQUE_OPEN, 0, 11)
        at = put_uint(out, at, np.uint64(field))
        out[at] = 58
        at = _put_lines(out, at + 1, src, begin, begin + length)
    out[at] = QUOTE
    return at + 1
