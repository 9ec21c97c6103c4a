"""Kernels that append JSON text to a byte buffer; shared by the stream and the snapshot.

Every function takes the output buffer and the offset to write at, and returns the offset behind
what it wrote. Buffers are pointers (``bytes_kernel``) or arrays. None of them checks the buffer's
size: the caller makes room first, six bytes for each byte of a text and 32 more, and
``SCALAR_BYTES_MAX`` for everything else; of that room they may touch up to 16 bytes behind the
offset they return. ``src[start:stop]`` are the bytes of a value. All run without the interpreter
lock.
"""

import numpy as np

from airflow_provider_deltaforge.columns import compiled
from airflow_provider_deltaforge.columns.bytes_kernel import (
    copy_block,
    load_word,
    store_word,
    trailing_zeros,
)

kernel = compiled.kernel
"""How every kernel of this package is compiled."""

SCALAR_BYTES_MAX = 96
"""No number or temporal value is longer than this; DECIMAL(65,30) takes 69 bytes."""

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_BASE64 = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)
_BASE64_OPEN = np.frombuffer(b'{"_base64":"', np.uint8)

# 0: copied as it is, 1: written as \u00xx, else the letter behind the backslash.
_ESCAPES = np.zeros(256, np.uint8)
_ESCAPES[:32] = 1
for _byte, _letter in zip(b'\b\t\n\f\r"\\', b'btnfr"\\', strict=True):
    _ESCAPES[_byte] = _letter

QUOTE = 34

_MARK = np.frombuffer(b'{"_unchanged":true}', np.uint8)
_MARK_COLON = 13

_NULL = np.uint64(0x6C6C756E)
_SPACES = np.uint64(0x2020202020202020)
_ONES = np.uint64(0x0101010101010101)
_HIGH_BITS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)


@kernel
def put_bytes(out, at, src, start, stop):
    """Copy bytes as they are, one after the other: the two may overlap, nothing else is touched."""
    # Unsigned offsets spare the check for negative ones, which would keep the loop slow.
    to = np.uintp(at)
    begin = np.uintp(start)
    for i in range(np.uintp(max(stop - start, 0))):
        out[to + i] = src[begin + i]
    return max(at, at + stop - start)


@kernel
def put_words(out, at, src, start, stop):
    """Copy bytes in words: up to 7 bytes behind ``stop`` are read as well, and written."""
    for i in range(0, stop - start, 8):
        store_word(out, at + i, load_word(src, start + i))
    return at + stop - start


@kernel
def put_inside(out, at, src, start, stop):
    """Copy bytes in words, reading none behind ``stop``; up to 7 bytes more are written."""
    length = stop - start
    if length >= 8:
        for i in range(0, length - 8, 8):
            store_word(out, at + i, load_word(src, start + i))
        store_word(out, at + length - 8, load_word(src, stop - 8))
        return at + length
    if length <= 0 or stop < 8:
        return put_bytes(out, at, src, start, stop)
    store_word(out, at, load_word(src, stop - 8) >> np.uint64(64 - 8 * length))
    return at + length


@kernel
def put_byte_escaped(out, at, byte):
    """Write one byte of UTF-8 text the way it stands inside a JSON string."""
    escape = _ESCAPES[byte]
    if escape == 0:
        out[at] = byte
        return at + 1
    out[at] = 92
    if escape != 1:
        out[at + 1] = escape
        return at + 2
    out[at + 1] = 117
    out[at + 2] = 48
    out[at + 3] = 48
    out[at + 4] = _HEX[byte >> 4]
    out[at + 5] = _HEX[byte & 15]
    return at + 6


@kernel
def put_escaped(out, at, src, start, stop):
    """Write UTF-8 text the way it stands inside a JSON string, without the quotes."""
    while stop - start >= 16:
        special = copy_block(out, at, src, start)
        clean = 16 if special == np.uint64(0) else trailing_zeros(special)
        start += clean
        at += clean
        if clean < 16:
            at = put_byte_escaped(out, at, src[start])
            start += 1
    left = stop - start
    if left > 0 and stop >= 16:
        # The last bytes at the end of a block; those before them are written and not counted.
        special = _put_end(out, at, src, stop, left)
        if special == np.uint64(0):
            return at + left
    while start < stop:
        at = put_byte_escaped(out, at, src[start])
        start += 1
    return at


@kernel
def _put_end(out, at, src, stop, left):
    """Copy the up to 15 bytes before ``stop``; return whether one of them has to be escaped."""
    low = load_word(src, stop - 16)
    high = load_word(src, stop - 8)
    if left > 8:
        shift = np.uint64(8 * (16 - left))
        first = (low >> shift) | (high << (np.uint64(64) - shift))
        second = high >> shift | (_SPACES << (np.uint64(64) - shift))
        store_word(out, at, first)
        store_word(out, at + 8, second)
        return _special(first) | _special(second)
    if left < 8:
        shift = np.uint64(8 * (8 - left))
        high = high >> shift | (_SPACES << (np.uint64(64) - shift))
    store_word(out, at, high)
    return _special(high)


@kernel
def _special(word):
    """Return zero if none of eight bytes has to be escaped; more bits than needed otherwise."""
    quotes = word ^ _QUOTES
    backslashes = word ^ _BACKSLASHES
    below = (word - _SPACES) & ~word
    found = ((quotes - _ONES) & ~quotes) | ((backslashes - _ONES) & ~backslashes) | below
    return found & _HIGH_BITS


@kernel
def put_string(out, at, src, start, stop):
    """Write UTF-8 (or ASCII) text as a JSON string."""
    out[at] = QUOTE
    at = put_escaped(out, at + 1, src, start, stop)
    out[at] = QUOTE
    return at + 1


@kernel
def put_code_point(out, at, code):
    """Write one Unicode code point as UTF-8 the way it stands inside a JSON string."""
    if code < 0x80:
        return put_byte_escaped(out, at, code)
    if code < 0x800:
        out[at] = 0xC0 | (code >> 6)
        out[at + 1] = 0x80 | (code & 0x3F)
        return at + 2
    if code < 0x10000:
        out[at] = 0xE0 | (code >> 12)
        out[at + 1] = 0x80 | ((code >> 6) & 0x3F)
        out[at + 2] = 0x80 | (code & 0x3F)
        return at + 3
    out[at] = 0xF0 | (code >> 18)
    out[at + 1] = 0x80 | ((code >> 12) & 0x3F)
    out[at + 2] = 0x80 | ((code >> 6) & 0x3F)
    out[at + 3] = 0x80 | (code & 0x3F)
    return at + 4


@kernel
def put_base64(out, at, src, start, stop):
    """Write bytes in base64 (standard alphabet, padded), without quotes."""
    i = start
    while i + 2 < stop:
        group = (np.int64(src[i]) << 16) | (np.int64(src[i + 1]) << 8) | np.int64(src[i + 2])
        out[at] = _BASE64[group >> 18]
        out[at + 1] = _BASE64[(group >> 12) & 63]
        out[at + 2] = _BASE64[(group >> 6) & 63]
        out[at + 3] = _BASE64[group & 63]
        at += 4
        i += 3
    left = stop - i
    if left == 0:
        return at
    group = np.int64(src[i]) << 16
    if left == 2:
        group |= np.int64(src[i + 1]) << 8
    out[at] = _BASE64[group >> 18]
    out[at + 1] = _BASE64[(group >> 12) & 63]
    out[at + 2] = _BASE64[(group >> 6) & 63] if left == 2 else 61
    out[at + 3] = 61
    return at + 4


@kernel
def put_binary(out, at, src, start, stop):
    """Write bytes as ``{"_base64":"…"}``."""
    at = put_bytes(out, at, _BASE64_OPEN, 0, 12)
    at = put_base64(out, at, src, start, stop)
    out[at] = QUOTE
    out[at + 1] = 125
    return at + 2


@kernel
def not_a_mark(out, begin, end):
    """Put a space into a JSON value that reads like the mark of an unchanged one; return its end.

    ``events.change.UNCHANGED`` says why.
    """
    if end - begin != len(_MARK):
        return end
    for i in range(len(_MARK)):
        if out[begin + i] != _MARK[i]:
            return end
    for i in range(end, begin + _MARK_COLON + 1, -1):
        out[i] = out[i - 1]
    out[begin + _MARK_COLON + 1] = 32
    return end + 1


@kernel
def put_null(out, at):
    """Write ``null``."""
    store_word(out, at, _NULL)
    return at + 4


@kernel
def put_bool(out, at, value):
    """Write ``true`` or ``false``."""
    if value:
        out[at] = 116
        out[at + 1] = 114
        out[at + 2] = 117
        out[at + 3] = 101
        return at + 4
    out[at] = 102
    out[at + 1] = 97
    out[at + 2] = 108
    out[at + 3] = 115
    out[at + 4] = 101
    return at + 5
