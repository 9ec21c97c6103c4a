"""Which row images JavaScript would write differently than they are written.

Reading a text and writing it again loses blanks, the spelling of numbers and of strings, the
order of keys that are numbers, and digits that a double cannot hold.
"""

from typing import Any

import numpy as np

from airflow_provider_deltaforge.columns.compiled import kernel as _kernel

SPELLED = 1
"""The same values, written differently."""
EXACT = 2
"""Holds a number that a double may not hold."""

ESCAPED_KEY = 4
"""Has a key with an escape, which V8's own parser may take for an earlier object's key."""

_QUOTE, _BACKSLASH, _SLASH, _LOWER_U = 34, 92, 47, 117
_PLUS, _MINUS, _DOT, _ZERO, _NINE, _COLON = 43, 45, 46, 48, 57, 58
_UPPER_E, _LOWER_E = 69, 101
_BLANK = 32
_SAFE_DIGITS = 15
_SMALL_FRACTION = 6


@_kernel
def _string(data, at, stop):
    """Return where the string that begins at ``at`` ends, and its flags."""
    flags = 0
    at += 1
    start = at
    while at < stop and _ZERO <= data[at] <= _NINE:
        at += 1
    escaped = False
    only_digits = at > start and at < stop and data[at] == _QUOTE
    while at < stop:
        byte = data[at]
        if byte == _QUOTE:
            break
        if byte == _BACKSLASH:
            escaped = True
            at += 1
            if at < stop and (data[at] == _SLASH or data[at] == _LOWER_U):
                flags = SPELLED
        at += 1
    # Keys that are numbers come first in JavaScript's objects.
    if only_digits and at + 1 < stop and data[at + 1] == _COLON:
        flags = SPELLED
    if escaped:
        behind = at + 1
        while behind < stop and data[behind] <= _BLANK:
            behind += 1
        if behind < stop and data[behind] == _COLON:
            flags |= ESCAPED_KEY
    return at + 1, flags


@_kernel
def _number(data, at, stop):
    """Return where the number that begins at ``at`` ends, and its flags."""
    negative = data[at] == _MINUS
    if negative:
        at += 1
    first = data[at] if at < stop else _ZERO
    total = 0
    fraction = -1
    exponent = False
    last = first
    zero = True
    while at < stop:
        byte = data[at]
        if _ZERO <= byte <= _NINE:
            total += 1
            if fraction >= 0:
                fraction += 1
            if byte != _ZERO:
                zero = False
            last = byte
        elif byte == _DOT:
            fraction = 0
        elif byte in (_UPPER_E, _LOWER_E):
            exponent = True
        elif byte not in (_MINUS, _PLUS):
            break
        at += 1
    if exponent or (fraction < 0 and total > _SAFE_DIGITS):
        return at, SPELLED | EXACT
    if zero and negative:
        return at, SPELLED
    if fraction >= 0:
        short = total <= _SAFE_DIGITS and last != _ZERO
        if not short or (first == _ZERO and fraction > _SMALL_FRACTION):
            return at, SPELLED
    return at, 0


@_kernel
def _fill_flags(data, offsets, flags):
    for row in range(len(offsets) - 1):
        at = offsets[row]
        stop = offsets[row + 1]
        found = 0
        while at < stop:
            byte = data[at]
            if byte == _QUOTE:
                at, more = _string(data, at, stop)
                found |= more
            elif byte == _MINUS or _ZERO <= byte <= _NINE:
                at, more = _number(data, at, stop)
                found |= more
            else:
                if byte <= 32:
                    found |= SPELLED
                at += 1
        flags[row] = found


@_kernel
def _fill_units(data, offsets, units):
    count = 0
    at = offsets[0]
    for row in range(len(offsets)):
        while at < offsets[row]:
            byte = data[at]
            if byte & 0xC0 != 0x80:
                count += 2 if byte >= 0xF0 else 1
            at += 1
        units[row] = count


def precompile() -> None:
    """Compile, or load what was compiled before."""
    data, offsets = np.zeros(0, np.uint8), np.zeros(2, np.int32)
    for array in (data, offsets):
        array.setflags(write=False)
    image_flags(data, offsets)
    utf16_offsets(data, offsets)


def image_flags(data: Any, offsets: Any) -> Any:
    """Return a uint8 per row: SPELLED, EXACT and ESCAPED_KEY, or 0.

    Args:
        data: uint8, JSON texts.
        offsets: int32, where each begins, and the end of the last.
    """
    flags = np.zeros(len(offsets) - 1, np.uint8)
    _fill_flags(data, offsets, flags)
    return flags


def utf16_offsets(data: Any, offsets: Any) -> Any:
    """Return the offsets as JavaScript counts, from 0 at the first."""
    units = np.empty(len(offsets), np.int32)
    _fill_units(data, offsets, units)
    return units
