"""Kernels that turn one value of the text protocol into JSON text."""

import numpy as np

from airflow_provider_deltaforge.columns.float_text_kernel import put_decimal_float, put_float32
from airflow_provider_deltaforge.columns.json_text_kernel import (
    QUOTE,
    kernel,
    not_a_mark,
    put_base64,
    put_binary,
    put_bool,
    put_bytes,
    put_inside,
    put_string,
)
from airflow_provider_deltaforge.columns.number_text_kernel import put_uint
from airflow_provider_deltaforge.sources.mysql.binlog.value_kernel import put_wide
from airflow_provider_deltaforge.sources.mysql.charsets import UTF16, UTF32

INTEGER = 0
DECIMAL = 1
FLOAT32 = 2
FLOAT64 = 3
DATETIME = 4
TIMESTAMP = 5
STRING = 6
BINARY = 7
BIT1 = 8
BIT = 9
JSON = 10
GEOMETRY = 11
UCS2 = 12
WIDE = 13

_SRID_OPEN = np.frombuffer(b'{"srid":', np.uint8)
_WKB_OPEN = np.frombuffer(b',"_base64":"', np.uint8)
_TEN = np.uint64(10)
_SIGN32 = np.uint64(1 << 31)

# Digits beyond the nineteenth do not fit a uint64; the servers print at most seventeen.
_DIGITS_MAX = 19


@kernel
def put_value(out, at, kind, data, start, stop):
    """Write the value ``data[start:stop]`` of a column of this kind as JSON."""
    if kind == INTEGER:
        return _put_number(out, at, data, start, stop)
    if kind == STRING:
        return put_string(out, at, data, start, stop)
    if kind == DECIMAL:
        out[at] = QUOTE
        at = _put_number(out, at + 1, data, start, stop)
        out[at] = QUOTE
        return at + 1
    if kind in (DATETIME, TIMESTAMP):
        return _put_moment(out, at, data, start, stop, kind == TIMESTAMP)
    if kind == FLOAT64:
        negative, digits, exponent = parse_float(data, start, stop)
        return put_decimal_float(out, at, negative, digits, exponent)
    if kind == FLOAT32:
        return _put_single(out, at, data, start, stop)
    if kind == BINARY:
        return put_binary(out, at, data, start, stop)
    if kind == JSON:
        return not_a_mark(out, at, put_json(out, at, data, start, stop))
    if kind == GEOMETRY:
        return _put_geometry(out, at, data, start, stop)
    if kind == UCS2:
        return put_wide(out, at, data, start, stop, UTF16)
    if kind == WIDE:
        return put_wide(out, at, data, start, stop, UTF32)
    bits = np.uint64(0)
    for i in range(start, stop):
        bits = (bits << np.uint64(8)) | np.uint64(data[i])
    if kind == BIT1:
        return put_bool(out, at, bits != np.uint64(0))
    return put_uint(out, at, bits)


@kernel
def _put_number(out, at, data, start, stop):
    """Write digits as they are, but without the leading zeros of ZEROFILL and of the year 0000."""
    if start < stop and data[start] == 45:
        out[at] = 45
        at += 1
        start += 1
    while start + 1 < stop and data[start] == 48 and data[start + 1] != 46:
        start += 1
    return put_inside(out, at, data, start, stop)


@kernel
def _put_moment(out, at, data, start, stop, utc):
    """Write ``YYYY-MM-DD HH:MM:SS[.f]`` in the form of ISO 8601."""
    out[at] = QUOTE
    end = put_inside(out, at + 1, data, start, stop)
    if stop - start > 10:
        out[at + 11] = 84
    if utc:
        out[end] = 90
        end += 1
    out[end] = QUOTE
    return end + 1


@kernel
def parse_float(data, start, stop):
    """Return (negative, digits as uint64, power of ten) of a decimal text."""
    negative = data[start] == 45
    if negative:
        start += 1
    digits = np.uint64(0)
    count = 0
    exponent = np.int64(0)
    after_point = False
    while start < stop:
        byte = data[start]
        if byte == 46:
            after_point = True
        elif byte in (101, 69):
            return negative, digits, exponent + _parse_exponent(data, start + 1, stop)
        elif count < _DIGITS_MAX:
            digits = digits * _TEN + np.uint64(byte - 48)
            count += 1 if digits != np.uint64(0) else 0
            exponent -= 1 if after_point else 0
        else:
            exponent += 0 if after_point else 1
        start += 1
    return negative, digits, exponent


@kernel
def _parse_exponent(data, start, stop):
    negative = False
    value = np.int64(0)
    for i in range(start, stop):
        if data[i] == 45:
            negative = True
        elif data[i] != 43:
            value = value * 10 + np.int64(data[i]) - 48
    return -value if negative else value


@kernel
def _put_single(out, at, data, start, stop):
    """Write a 32-bit float from the text of the double that equals it.

    The double is read to within a few units of its last place only, which is enough: the nearest
    32-bit float is half a billion such units away from the next.
    """
    negative, digits, exponent = parse_float(data, start, stop)
    value = np.float64(digits)
    if exponent < 0:
        # Two steps, or the power alone would overflow for the smallest subnormals.
        half = (-exponent) // 2
        value = value / 10.0**half / 10.0 ** (-exponent - half)
    else:
        value = value * 10.0**exponent
    bits = np.uint64(np.float32(value).view(np.uint32))
    if negative:
        bits |= _SIGN32
    return put_float32(out, at, bits)


@kernel
def _put_geometry(out, at, data, start, stop):
    """Write ``{"srid":n,"_base64":WKB}`` from four bytes of SRID and the WKB."""
    srid = np.uint64(0)
    for i in range(4):
        srid |= np.uint64(data[start + i]) << np.uint64(8 * i)
    at = put_bytes(out, at, _SRID_OPEN, 0, 8)
    at = put_uint(out, at, srid)
    at = put_bytes(out, at, _WKB_OPEN, 0, 12)
    at = put_base64(out, at, data, start + 4, stop)
    out[at] = QUOTE
    out[at + 1] = 125
    return at + 2


@kernel
def put_json(out, at, data, start, stop):
    """Write a JSON column's text without the spaces between its parts; numbers stay as printed."""
    inside = False
    i = start
    while i < stop:
        byte = data[i]
        if inside and byte == 92:
            out[at] = byte
            at += 1
            i += 1
            byte = data[i]
        elif byte == QUOTE:
            inside = not inside
        if inside or byte != 32:
            out[at] = byte
            at += 1
        i += 1
    return at
