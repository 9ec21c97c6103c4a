"""Kernels from one column's value to its JSON text, by the column's kind."""

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import load_word
from airflow_provider_deltaforge.columns.float_text_kernel import put_float32, put_float64
from airflow_provider_deltaforge.columns.json_text_kernel import (
    QUOTE,
    kernel,
    put_base64,
    put_binary,
    put_bytes,
    put_string,
    put_words,
)
from airflow_provider_deltaforge.columns.number_text_kernel import put_int, put_timestamp, put_uint
from airflow_provider_deltaforge.sources.mysql.binlog.column_kinds import (
    BINARY,
    BIT,
    DATE,
    DATETIME,
    DECIMAL,
    DOUBLE,
    ENUM,
    FLOAT,
    GEOMETRY,
    INT,
    JSON,
    OLD_DATETIME,
    OLD_TIME,
    OLD_TIMESTAMP,
    P1,
    SIZE,
    TEXT,
    TIME,
    TIMESTAMP,
    UUID,
    YEAR,
)
from airflow_provider_deltaforge.sources.mysql.binlog.json_binary_kernel import put_json
from airflow_provider_deltaforge.sources.mysql.binlog.value_kernel import (
    low,
    put_bits,
    put_datetime,
    put_day,
    put_decimal,
    put_old_datetime,
    put_old_time,
    put_set,
    put_text,
    put_time,
    put_timestamp2,
    put_uuid,
)
from airflow_provider_deltaforge.sources.mysql.charsets import UTF8

# Why a value cannot be written; ``row_kernel`` continues the numbers.
BAD_JSON, BAD_LABEL, OVERRUN = 4, 5, 6


@kernel
def value_stop(src, pos, stop, columns, column):
    """Return the offset behind a value; above ``stop`` if it is damaged.

    ``column`` is the place of the column's fields in ``columns``.
    """
    size = columns[column + SIZE]
    if size == 0:
        prefix = columns[column + P1]
        pos += prefix
        if pos > stop:
            return pos
        size = np.int64(low(src, pos - prefix, prefix))
    return pos + size


@kernel
def _put_enum(out, at, index, p2, p3, labels, offsets):
    """Write an enum's label; index 0 is the server's mark of a refused value, an empty text."""
    if index > p3:
        return np.int64(-BAD_LABEL)
    out[at] = QUOTE
    at += 1
    if index:
        label = p2 + index - 1
        at = put_words(out, at, labels, offsets[label], offsets[label + 1])
    out[at] = QUOTE
    return at + 1


_GEOMETRY_OPEN = np.frombuffer(b'{"srid":', np.uint8)
_GEOMETRY_MIDDLE = np.frombuffer(b',"_base64":"', np.uint8)


@kernel
def _put_geometry(out, at, src, pos, stop):
    """Write ``{"srid":n,"_base64":"WKB"}``."""
    at = put_bytes(out, at, _GEOMETRY_OPEN, 0, 8)
    at = put_uint(out, at, low(src, pos, 4))
    at = put_bytes(out, at, _GEOMETRY_MIDDLE, 0, 12)
    at = put_base64(out, at, src, pos + 4, stop)
    out[at] = QUOTE
    out[at + 1] = 125
    return at + 2


@kernel
def _put_padded_binary(out, at, src, pos, stop, width):
    """Write fixed-width bytes; the log leaves out the zeros at their end."""
    if stop - pos >= width:
        return put_binary(out, at, src, pos, stop)
    whole = np.zeros(width, np.uint8)
    for i in range(stop - pos):
        whole[i] = src[pos + i]
    return put_binary(out, at, whole, 0, width)


@kernel
def _put_inet(out, at, src, pos, stop, width):
    """Write an IPv4 or IPv6 address the way inet_ntop does."""
    if width == 4:
        out[at] = QUOTE
        at += 1
        for i in range(4):
            if i:
                out[at] = 46
                at += 1
            at = put_uint(out, at, np.uint64(src[pos + i] if pos + i < stop else np.uint8(0)))
        out[at] = QUOTE
        return at + 1
    words = np.zeros(8, np.int64)
    for i in range(16):
        if pos + i < stop:
            words[i >> 1] |= np.int64(src[pos + i]) << (8 * (1 - (i & 1)))
    best, best_length, i = -1, 0, 0
    while i < 8:
        j = i
        while j < 8 and words[j] == 0:
            j += 1
        if j - i > best_length:
            best, best_length = i, j - i
        i = max(j, i + 1)
    mapped = best == 0 and (best_length == 6 or (best_length == 5 and words[5] == 0xFFFF))
    out[at] = QUOTE
    at += 1
    i = 0
    while i < 8:
        if i == best:
            out[at] = 58
            out[at + 1] = 58
            at += 2
            i += best_length
            continue
        if i and i != best + best_length:
            out[at] = 58
            at += 1
        if i == 6 and mapped:
            for j in range(4):
                if j:
                    out[at] = 46
                    at += 1
                at = put_uint(
                    out, at, np.uint64((words[6 + (j >> 1)] >> (8 * (1 - (j & 1)))) & 255)
                )
            break
        started = False
        for shift in (12, 8, 4, 0):
            digit = (words[i] >> shift) & 15
            if digit or started or shift == 0:
                out[at] = digit + (48 if digit < 10 else 87)
                at += 1
                started = True
        i += 1
    out[at] = QUOTE
    return at + 1


@kernel
def _put_long(out, at, src, pos, stop, kind, p2, charsets):
    """Write a value that carries its length, or has a kind that is rare."""
    if kind == TEXT:
        if p2 == UTF8:
            return put_string(out, at, src, pos, stop)
        return put_text(out, at, src, pos, stop, p2, charsets)
    if kind == BINARY:
        return _put_padded_binary(out, at, src, pos, stop, p2)
    if kind == JSON:
        at = put_json(out, at, src, pos, stop)
        return at if at >= 0 else np.int64(-BAD_JSON)
    if kind == GEOMETRY:
        return _put_geometry(out, at, src, pos, stop)
    if kind == UUID:
        return put_uuid(out, at, src, pos, stop)
    if kind == OLD_TIMESTAMP:
        return put_timestamp(out, at, np.int64(low(src, pos, 4)), np.int64(0), np.int64(0))
    if kind == OLD_TIME:
        return put_old_time(out, at, src, pos)
    if kind == OLD_DATETIME:
        return put_old_datetime(out, at, src, pos)
    return _put_inet(out, at, src, pos, stop, p2)


@kernel
def _put_decimal(out, at, src, pos, precision, scale, is_number):
    if is_number:
        return put_decimal(out, at, src, pos, precision, scale)
    out[at] = QUOTE
    at = put_decimal(out, at + 1, src, pos, precision, scale)
    out[at] = QUOTE
    return at + 1


@kernel
def put_value(out, at, src, pos, stop, kind, p1, p2, p3, labels, label_offsets, charsets):
    """Write the value ``src[pos:stop]``; a negative result is the negated error."""
    if kind == INT:
        shift = 64 - 8 * p1
        word = load_word(src, stop - 8)
        if p2:
            return put_uint(out, at, word >> np.uint64(shift))
        return put_int(out, at, np.int64(word) >> shift)
    if kind >= TEXT:
        return _put_long(out, at, src, pos + p1, stop, kind, p2, charsets)
    if kind == DECIMAL:
        return _put_decimal(out, at, src, pos, p1, p2, p3)
    if kind == DATETIME:
        return put_datetime(out, at, src, pos, p1)
    if kind == TIMESTAMP:
        return put_timestamp2(out, at, src, pos, p1)
    if kind == DATE:
        return put_day(out, at, src, pos)
    if kind == TIME:
        return put_time(out, at, src, pos, p1)
    if kind == DOUBLE:
        return put_float64(out, at, low(src, pos, 8))
    if kind == FLOAT:
        return put_float32(out, at, low(src, pos, 4))
    if kind == YEAR:
        return put_uint(out, at, np.uint64(src[pos]) + np.uint64(1900 if src[pos] else 0))
    if kind == BIT:
        return put_bits(out, at, src, pos, p1)
    if kind == ENUM:
        return _put_enum(out, at, np.int64(low(src, pos, p1)), p2, p3, labels, label_offsets)
    return put_set(out, at, low(src, pos, p1), labels, label_offsets, p2, p3)
