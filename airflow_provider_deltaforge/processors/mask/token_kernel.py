"""Kernels that make tokens: other digits for digits, other letters of the same case for letters.

The digits and letters of a text are a word; each place of it counts to 10 or 26. A Feistel network
permutes the words of one shape: in each turn one half goes through a keyed SipHash-2-4, under a key
drawn from the shape, and the result is added to the other half, place by place.
"""

import numpy as np

from airflow_provider_deltaforge.columns.compiled import kernel
from airflow_provider_deltaforge.columns.json_scan_kernel import BACKSLASH, NUMBER, QUOTE, STRING
from airflow_provider_deltaforge.events.ids import siphash

LIKE_MAX = 256
"""Longer texts have tokens of another look."""

OPAQUE_BYTES = 34
"""Of a token of that look, in its quotes."""

_TURNS = 10
_PLACES_PER_WORD = 5
"""Drawn from 64 bits: what is left over makes no remainder noticeably likelier than another."""

_U = np.uint64
_TEN, _LETTERS = _U(10), _U(26)
_ZERO, _SMALL_A, _LARGE_A = 48, 97, 65
_SPACE = 32
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


@kernel
def _first_alike(byte):
    """Return the first of the digits or letters that a byte belongs to, or 0."""
    if 48 <= byte <= 57:
        return _ZERO
    if 97 <= byte <= 122:
        return _SMALL_A
    if 65 <= byte <= 90:
        return _LARGE_A
    return 0


@kernel
def _read(data, begin, end, shape, word, places):
    """Read a text of ASCII; return how many places it has, 0 if it gets no token that looks alike.

    Args:
        data: the texts.
        begin: where the text begins.
        end: where it ends.
        shape: filled with the text, its digits made 0, its letters a and A.
        word: filled with the number at each place.
        places: filled with where in the text each place is.
    """
    if end - begin > LIKE_MAX:
        return 0
    count = 0
    for at in range(end - begin):
        byte = data[begin + at]
        if byte >= 128:
            return 0
        first = _first_alike(byte)
        shape[at] = byte
        if first:
            shape[at] = first
            word[count] = byte - first
            places[count] = at
            count += 1
    return count


@kernel
def _permute(key0, key1, shape, word, places, count, scratch):
    """Replace a word by another of its shape; ``scratch`` is room for half of it, and two more."""
    half = count // 2
    for turn in range(_TURNS):
        begin, end, other, behind = 0, half, half, count
        if turn % 2:
            begin, end, other, behind = half, count, 0, half
        scratch[0] = turn
        for i in range(other, behind):
            scratch[2 + i - other] = word[i]
        first = second = _U(0)
        for i in range(begin, end):
            at = i - begin
            if at % (2 * _PLACES_PER_WORD) == 0:
                scratch[1] = at // (2 * _PLACES_PER_WORD)
                first, second = siphash(key0, key1, scratch, 0, 2 + behind - other)
            elif at % _PLACES_PER_WORD == 0:
                first = second
            if shape[places[i]] == _ZERO:
                word[i] = (_U(word[i]) + first % _TEN) % _TEN
                first //= _TEN
            else:
                word[i] = (_U(word[i]) + first % _LETTERS) % _LETTERS
                first //= _LETTERS


@kernel
def _put_escaped(out, at, byte):
    """Append one byte of ASCII as it stands in a JSON string."""
    if byte in (QUOTE, BACKSLASH):
        out[at] = BACKSLASH
        at += 1
    elif byte < _SPACE:
        for escape in (92, 117, 48, 48):  # \u00
            out[at] = escape
            at += 1
        out[at] = _HEX[byte >> 4]
        at += 1
        byte = _HEX[byte & 15]
    out[at] = byte
    return at + 1


@kernel
def _put_opaque(key0, key1, data, begin, end, out, at):
    out[at] = QUOTE
    at += 1
    for half in siphash(key0, key1, data, begin, end):
        for i in range(16):
            out[at] = _HEX[np.int64((half >> _U(60 - 4 * i)) & _U(15))]
            at += 1
    out[at] = QUOTE
    return at + 1


@kernel
def put_tokens(keys, data, offsets, kinds, out, out_offsets):
    """Write the tokens of texts as JSON text.

    Args:
        keys: four uint64: two to permute with, two to hash what gets no token that looks alike.
        data: the texts.
        offsets: int32, where each begins, and the end of the last.
        kinds: uint8 per text, what it is in JSON.
        out: filled.
        out_offsets: int32, filled like ``offsets``.

    Returns:
        How many bytes were written.
    """
    shape = np.empty(LIKE_MAX, np.uint8)
    word = np.empty(LIKE_MAX, np.uint8)
    places = np.empty(LIKE_MAX, np.int64)
    scratch = np.empty(LIKE_MAX // 2 + 2, np.uint8)
    used = np.int64(0)
    out_offsets[0] = 0
    for row in range(len(kinds)):
        begin, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        count = 0
        if kinds[row] in (STRING, NUMBER):
            count = _read(data, begin, end, shape, word, places)
        if count == 0:
            used = _put_opaque(keys[2], keys[3], data, begin, end, out, used)
            out_offsets[row + 1] = used
            continue
        is_number = True
        for i in range(count):
            is_number &= shape[places[i]] == _ZERO
        keeps_zero, is_zero = is_number and count > 1, word[0] == 0
        key0, key1 = siphash(keys[0], keys[1], shape, 0, end - begin)
        _permute(key0, key1, shape, word, places, count, scratch)
        # A number keeps its length: walking on until it does is a permutation as well.
        while keeps_zero and (word[0] == 0) != is_zero:
            _permute(key0, key1, shape, word, places, count, scratch)
        for i in range(count):
            shape[places[i]] += word[i]
        # The exponent of a number is a letter: its token need not be a number.
        quoted = kinds[row] == STRING or not is_number
        if quoted:
            out[used] = QUOTE
            used += 1
        for at in range(end - begin):
            used = _put_escaped(out, used, shape[at])
        if quoted:
            out[used] = QUOTE
            used += 1
        out_offsets[row + 1] = used
    return used
