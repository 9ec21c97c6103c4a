"""Kernels that read JSON text where it lies, without building anything from it.

``data`` is a pointer (``bytes_kernel``) to a buffer of ``limit`` bytes, ``at`` an offset in it, and
``stop`` the end of the text; nothing is read at or behind ``limit``. Every kernel returns the
offset behind what it read, or -1 where the text is not JSON (RFC 8259). Whole texts are checked, so
that nothing broken is ever found in one. Two things are taken more loosely: UTF-8 is not checked,
and half of a surrogate pair, which PostgreSQL's ``json`` lets through, is U+FFFD.
"""

from typing import Any

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import special_bits, trailing_zeros
from airflow_provider_deltaforge.columns.compiled import kernel

DEPTH_MAX = 1024
"""As deep as kernels go that change something on each level; reading has no such limit."""

QUOTE, COMMA, COLON, BACKSLASH = 34, 44, 58, 92
CLOSE_ARRAY, OPEN_OBJECT, CLOSE_OBJECT = 93, 123, 125
# What a text or value is; 0 where there is none.
ABSENT, NULL, BOOL, NUMBER, STRING, OBJECT, ARRAY = range(7)

_BLOCK = 16
_REPLACEMENT = 0xFFFD

# What a value that begins with this byte is.
KIND_OF = np.zeros(256, np.uint8)
for _bytes, _kind in (
    (b"n", NULL),
    (b"tf", BOOL),
    (b"-0123456789", NUMBER),
    (b'"', STRING),
    (b"{", OBJECT),
    (b"[", ARRAY),
):
    KIND_OF[list(_bytes)] = _kind

# What a letter behind a backslash stands for; 0 for what may not stand there.
_UNESCAPED = np.zeros(256, np.uint8)
for _letter, _byte in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True):
    _UNESCAPED[_letter] = _byte

# The value of a hexadecimal digit; 255 for anything else.
_DIGIT = np.full(256, 255, np.uint8)
for _value, _letter in enumerate(b"0123456789abcdef"):
    _DIGIT[_letter] = _value
    _DIGIT[bytes([_letter]).upper()[0]] = _value

_LITERALS = np.frombuffer(b"null\0true\0false", np.uint8)


def stack_for(starts: Any, stops: Any) -> Any:
    """Return room to work with for texts of any depth: a text opens no more than it has bytes.

    Args:
        starts: where each text begins.
        stops: where each ends.
    """
    return np.empty(max(1, int((stops - starts).max(initial=0))), np.uint8)


@kernel
def skip_space(data, at, stop):
    """Return the offset of the next byte that is no white space, or ``stop``."""
    while at < stop:
        byte = data[at]
        if byte > 32 or not (byte == 32 or byte == 10 or byte == 13 or byte == 9):
            break
        at += 1
    return at


@kernel
def four_digits(data, at, stop):
    """Return the number that four hexadecimal digits stand for, or -1."""
    if at + 4 > stop:
        return np.int64(-1)
    code = np.int64(0)
    for i in range(4):
        digit = np.int64(_DIGIT[data[at + i]])
        if digit > 15:
            return np.int64(-1)
        code = code << 4 | digit
    return code


@kernel
def skip_escape(data, at, stop):
    """Return the offset behind an escape, from its backslash on."""
    if at + 2 > stop:
        return np.int64(-1)
    if data[at + 1] == 117:
        return at + 6 if four_digits(data, at + 2, stop) >= 0 else np.int64(-1)
    return at + 2 if _UNESCAPED[data[at + 1]] else np.int64(-1)


@kernel
def read_escape(data, at, stop):
    """Return (code point, offset behind) of a valid escape, from its backslash on."""
    if data[at + 1] != 117:
        return np.int64(_UNESCAPED[data[at + 1]]), at + 2
    code = four_digits(data, at + 2, stop)
    at += 6
    if code < 0xD800 or code > 0xDFFF:
        return code, at
    if code < 0xDC00 and at + 6 <= stop and data[at] == BACKSLASH and data[at + 1] == 117:
        low = four_digits(data, at + 2, stop)
        if 0xDC00 <= low <= 0xDFFF:
            return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00), at + 6
    return np.int64(_REPLACEMENT), at


@kernel
def skip_string(data, at, stop, limit):
    """Return (offset behind a string, whether it has escapes); ``at`` is behind its first quote."""
    escaped = False
    while True:
        if at + _BLOCK <= limit:
            special = special_bits(data, at)
            if special == np.uint64(0):
                at += _BLOCK
                continue
            at += trailing_zeros(special)
        if at >= stop:
            return np.int64(-1), escaped
        byte = data[at]
        if byte == QUOTE:
            return at + 1, escaped
        if byte == BACKSLASH:
            escaped = True
            at = skip_escape(data, at, stop)
            if at < 0:
                return np.int64(-1), escaped
        elif byte < 32:
            return np.int64(-1), escaped
        else:
            at += 1


@kernel
def _skip_digits(data, at, stop):
    """Return the offset behind at least one digit."""
    begin = at
    while at < stop and 48 <= data[at] <= 57:
        at += 1
    return at if at > begin else np.int64(-1)


@kernel
def skip_number(data, at, stop):
    """Return the offset behind a number."""
    if data[at] == 45:
        at += 1
    if at < stop and data[at] == 48:
        at += 1
    else:
        at = _skip_digits(data, at, stop)
    if 0 <= at < stop and data[at] == 46:
        at = _skip_digits(data, at + 1, stop)
    if 0 <= at < stop and data[at] | 32 == 101:
        at += 1
        if at < stop and (data[at] == 43 or data[at] == 45):
            at += 1
        at = _skip_digits(data, at, stop)
    return at


@kernel
def skip_literal(data, at, stop):
    """Return the offset behind ``null``, ``true`` or ``false``, whose first letter is here."""
    first = data[at]
    begin = 0 if first == 110 else (5 if first == 116 else 10)
    length = 5 if first == 102 else 4
    if at + length > stop:
        return np.int64(-1)
    for i in range(length):
        if data[at + i] != _LITERALS[begin + i]:
            return np.int64(-1)
    return at + length


@kernel
def skip_key(data, at, stop, limit):
    """Return (offset behind a key's last quote, of its value's first byte, has escapes).

    ``at`` is where the key's first quote should be; both offsets are -1 if something is wrong.
    """
    if at >= stop or data[at] != QUOTE:
        return np.int64(-1), np.int64(-1), False
    behind, escaped = skip_string(data, at + 1, stop, limit)
    if behind < 0:
        return np.int64(-1), np.int64(-1), escaped
    at = skip_space(data, behind, stop)
    if at >= stop or data[at] != COLON:
        return np.int64(-1), np.int64(-1), escaped
    return behind, skip_space(data, at + 1, stop), escaped


@kernel
def skip_value(data, at, stop, limit, stack):
    """Return the offset behind a value that begins here.

    Args:
        data: see above.
        at: offset of its first byte.
        stop: see above.
        limit: see above.
        stack: pointer to as many bytes as the text has, to work with; see ``stack_for``.
    """
    depth = 0
    while True:
        if at >= stop:
            return np.int64(-1)
        kind = KIND_OF[data[at]]
        opened = False
        if kind == STRING:
            at, _ = skip_string(data, at + 1, stop, limit)
        elif kind == NUMBER:
            at = skip_number(data, at, stop)
        elif kind == OBJECT or kind == ARRAY:
            stack[depth] = kind
            depth += 1
            at = skip_space(data, at + 1, stop)
            opened = at < stop and data[at] != CLOSE_OBJECT and data[at] != CLOSE_ARRAY
        elif kind == ABSENT:
            return np.int64(-1)
        else:
            at = skip_literal(data, at, stop)
        if at < 0:
            return at
        while depth and not opened:
            # Behind a value: what encloses it ends, or goes on with the next one.
            at = skip_space(data, at, stop)
            if at >= stop:
                return np.int64(-1)
            within = stack[depth - 1]
            byte = data[at]
            at += 1
            if byte == COMMA:
                at = skip_space(data, at, stop)
                opened = True
            elif byte == (CLOSE_OBJECT if within == OBJECT else CLOSE_ARRAY):
                depth -= 1
            else:
                return np.int64(-1)
        if depth == 0:
            return at
        if stack[depth - 1] == OBJECT:
            _, at, _ = skip_key(data, at, stop, limit)
            if at < 0:
                return at


@kernel
def same_key(data, at, stop, escaped, name, begin, end):
    """Return whether the key ``data[at:stop]``, without its quotes, is ``name[begin:end]``."""
    if escaped:
        return _same_decoded(data, at, stop, name, begin, end)
    if stop - at != end - begin:
        return False
    for i in range(end - begin):
        if data[at + i] != name[begin + i]:
            return False
    return True


@kernel
def _same_decoded(data, at, stop, name, begin, end):
    while at < stop:
        if data[at] == BACKSLASH:
            code, at = read_escape(data, at, stop)
            width = utf8_width(code)
            if begin + width > end:
                return False
            for i in range(width):
                if utf8_byte(code, width, i) != name[begin + i]:
                    return False
            begin += width
        else:
            if begin >= end or data[at] != name[begin]:
                return False
            at += 1
            begin += 1
    return begin == end


@kernel
def utf8_width(code):
    """Return how many bytes a code point takes in UTF-8."""
    return 1 if code < 0x80 else (2 if code < 0x800 else (3 if code < 0x10000 else 4))


@kernel
def utf8_byte(code, width, index):
    """Return byte ``index`` of a code point that takes ``width`` bytes in UTF-8."""
    if width == 1:
        return np.uint8(code)
    bits = (code >> (6 * (width - 1 - index))) & 0x3F
    if index:
        return np.uint8(0x80 | bits)
    return np.uint8(((0xF00 >> width) & 0xFF) | bits)
