"""Kernels that compare JSON values where they lie: numbers by every digit, strings decoded.

Offsets and pointers are those of ``json_scan_kernel``; only values that it found to be valid come
here.
"""

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import pointer
from airflow_provider_deltaforge.columns.compiled import kernel
from airflow_provider_deltaforge.columns.json_scan_kernel import (
    BACKSLASH,
    CLOSE_ARRAY,
    KIND_OF,
    NUMBER,
    OBJECT,
    STRING,
    read_escape,
    skip_space,
    skip_value,
)
from airflow_provider_deltaforge.columns.marks import UNCHANGED

LESS, EQUAL, GREATER = -1, 0, 1
OTHER = 2
"""Not equal, and without an order between them; also where there is no value."""
DEEP = 3
"""Two objects or two arrays with different texts, which may still be equal."""

_EXPONENT_MAX = 1 << 40
_UNCHANGED = np.frombuffer(UNCHANGED, np.uint8)


@kernel
def _magnitude(data, at, stop):
    """Return (sign, offset of the first digit that is not 0, its power of ten) of a number."""
    sign = 1
    if data[at] == 45:
        sign = -1
        at += 1
    power = np.int64(-1)
    first = np.int64(-1)
    fraction = False
    while at < stop and data[at] | 32 != 101:
        if data[at] == 46:
            fraction = True
        else:
            if first < 0 and data[at] != 48:
                first = at
            if fraction and first < 0:
                power -= 1
            elif not fraction and first >= 0:
                power += 1
        at += 1
    if first < 0:
        return 0, at, np.int64(0)
    exponent = np.int64(0)
    at += 1
    minus = at < stop and data[at] == 45
    while at < stop:
        if 48 <= data[at] <= 57 and exponent < _EXPONENT_MAX:
            exponent = exponent * 10 + data[at] - 48
        at += 1
    return sign, first, power - exponent if minus else power + exponent


@kernel
def _next_digit(data, at, stop):
    """Return (digit, offset behind it); 0 behind the last one."""
    if at < stop and data[at] == 46:
        at += 1
    if at >= stop or data[at] | 32 == 101:
        return 48, stop
    return np.int64(data[at]), at + 1


@kernel
def order_numbers(left, begin, end, right, start, stop):
    """Return ``LESS``, ``EQUAL`` or ``GREATER``."""
    sign, at, power = _magnitude(left, begin, end)
    other_sign, other, other_power = _magnitude(right, start, stop)
    if sign != other_sign:
        return LESS if sign < other_sign else GREATER
    if sign == 0:
        return EQUAL
    if power != other_power:
        return sign if power > other_power else -sign
    while at < end or other < stop:
        digit, at = _next_digit(left, at, end)
        other_digit, other = _next_digit(right, other, stop)
        if digit != other_digit:
            return sign if digit > other_digit else -sign
    return EQUAL


@kernel
def read_character(data, at, stop):
    """Return (code point, offset behind it), of an escape or of UTF-8."""
    first = np.int64(data[at])
    if first == BACKSLASH:
        return read_escape(data, at, stop)
    width = 1 if first < 0xC0 else (2 if first < 0xE0 else (3 if first < 0xF0 else 4))
    code = first if width == 1 else first & (0x7F >> width)
    for i in range(1, min(width, stop - at)):
        code = code << 6 | np.int64(data[at + i]) & 0x3F
    return code, min(at + width, stop)


@kernel
def order_strings(left, at, end, right, other, stop):
    """Return ``LESS``, ``EQUAL`` or ``GREATER`` by code points; offsets are inside the quotes."""
    while at < end and other < stop:
        byte, other_byte = left[at], right[other]
        if byte == BACKSLASH or other_byte == BACKSLASH:
            code, at = read_character(left, at, end)
            other_code, other = read_character(right, other, stop)
            if code != other_code:
                return LESS if code < other_code else GREATER
        elif byte != other_byte:
            return LESS if byte < other_byte else GREATER
        else:
            at += 1
            other += 1
    if at < end:
        return GREATER
    return LESS if other < stop else EQUAL


@kernel
def order_values(left, begin, end, right, start, stop):
    """Compare two values of any kind; see the constants above."""
    kind = KIND_OF[left[begin]]
    if kind != KIND_OF[right[start]]:
        return OTHER
    if kind == NUMBER:
        return order_numbers(left, begin, end, right, start, stop)
    if kind == STRING:
        return order_strings(left, begin + 1, end - 1, right, start + 1, stop - 1)
    if end - begin == stop - start:
        i = 0
        while i < end - begin and left[begin + i] == right[start + i]:
            i += 1
        if i == end - begin:
            return EQUAL
    return DEEP if kind >= OBJECT else OTHER


@kernel
def compare_to(data, starts, stops, constant, out):
    """Compare each value with one constant, JSON text without white space around it."""
    text, wanted = pointer(data), pointer(constant)
    size = len(constant)
    for row in range(len(starts)):
        out[row] = OTHER
        if starts[row] >= 0:
            out[row] = order_values(text, starts[row], stops[row], wanted, 0, size)


@kernel
def compare_both(data, starts, stops, other, other_starts, other_stops, out):
    """Compare the values of two columns row by row; two that are absent are equal."""
    left, right = pointer(data), pointer(other)
    for row in range(len(starts)):
        begin, start = starts[row], other_starts[row]
        if begin >= 0 and start >= 0:
            out[row] = order_values(left, begin, stops[row], right, start, other_stops[row])
        else:
            out[row] = EQUAL if begin == start else OTHER


@kernel
def any_element(data, starts, stops, constant, stack_bytes, out):
    """Return whether each value is an array with an element equal to a scalar constant.

    ``stack_bytes`` are uint8, from ``stack_for``.
    """
    text, wanted = pointer(data), pointer(constant)
    size, limit = len(constant), len(data)
    stack = pointer(stack_bytes)
    for row in range(len(starts)):
        out[row] = False
        if starts[row] < 0 or text[starts[row]] != 91:
            continue
        stop = stops[row]
        at = skip_space(text, starts[row] + 1, stop)
        while 0 <= at < stop and text[at] != CLOSE_ARRAY:
            begin = at
            at = skip_value(text, begin, stop, limit, stack)
            if at < 0 or order_values(text, begin, at, wanted, 0, size) == EQUAL:
                out[row] = at >= 0
                break
            at = skip_space(text, at, stop)
            if at < stop and text[at] == 44:
                at = skip_space(text, at + 1, stop)


@kernel
def find_unchanged(data, starts, stops, out):
    """Return whether each value is the mark for a value that the server did not send."""
    for row in range(len(starts)):
        same = starts[row] >= 0 and stops[row] - starts[row] == len(_UNCHANGED)
        i = 0
        while same and i < len(_UNCHANGED):
            same = data[starts[row] + i] == _UNCHANGED[i]
            i += 1
        out[row] = same


def precompile() -> None:
    """Compile the kernels, or load them from the cache, before rows are waiting."""
    data = np.frombuffer(b"1", np.uint8)
    begin, end = np.zeros(1, np.int64), np.ones(1, np.int64)
    order, found = np.empty(1, np.int8), np.empty(1, np.bool_)
    compare_to(data, begin, end, data, order)
    compare_both(data, begin, end, data, begin, end, order)
    any_element(data, begin, end, data, np.empty(1, np.uint8), found)
    find_unchanged(data, begin, end, found)
