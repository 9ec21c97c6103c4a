"""Kernels that write one text per row from pieces: columns, numbers and constants.

A piece is a line of a table of int64 numbers, whose columns are named here. Addresses are those of
Arrow's buffers; whoever calls a kernel keeps them alive meanwhile.
"""

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import (
    bytes_at,
    int32s_at,
    int64s_at,
    pointer,
)
from airflow_provider_deltaforge.columns.json_text_kernel import (
    kernel,
    put_inside,
    put_null,
    put_string,
)
from airflow_provider_deltaforge.columns.number_text_kernel import put_int

CONSTANT, COLUMN, CHOICE, INT32, INT64, UUID, WHERE = range(7)
"""The kinds: the same text in every row; a row's own bytes; one of a few texts, by its number;
digits; sixteen bytes as a UUID; the next pieces only in some rows."""

KIND, DATA, OFFSETS, NUMBERS, VALID, FIRST, SIZE = range(7)
"""Columns of a piece.

DATA: where its bytes or numbers begin. OFFSETS: of int32s, where each text begins in them, and the
end of the last. NUMBERS: of int32s, per row the number of its text. VALID: of bits, whether a row
has a value (or, for WHERE, the next pieces); zero if all have. FIRST: the place of the first row in
all of those. SIZE: bytes of a constant; the number of the text of a row without a value; how many
pieces are left out; what is added to a number.
"""
COLUMNS = 7

ROOM = 16
"""Bytes that may be touched behind the last text."""

_UUID_CHARS = 36
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


@kernel
def _has(valid, at):
    """Return whether the bit at ``at`` is set; true without bits."""
    return valid == 0 or (bytes_at(valid)[at >> 3] >> np.uint8(at & 7)) & np.uint8(1) != 0


@kernel
def size_of(pieces, count):
    """Return how many bytes the texts of ``count`` rows take at most."""
    size = np.int64(0)
    for piece in range(len(pieces)):
        kind = pieces[piece, KIND]
        first = pieces[piece, FIRST]
        if kind == CONSTANT:
            size += count * pieces[piece, SIZE]
        elif kind == COLUMN:
            offsets = int32s_at(pieces[piece, OFFSETS])
            size += np.int64(offsets[first + count]) - np.int64(offsets[first]) + 4 * count
        elif kind == CHOICE:
            size += _size_of_choice(pieces, piece, count)
        elif kind == UUID:
            size += count * _UUID_CHARS
        elif kind != WHERE:
            size += 20 * count
    return size


@kernel
def _size_of_choice(pieces, piece, count):
    offsets = int32s_at(pieces[piece, OFFSETS])
    size = np.int64(0)
    for row in range(count):
        number = _choice(pieces, piece, row)
        size += np.int64(offsets[number + 1]) - np.int64(offsets[number])
    return size


@kernel
def _choice(pieces, piece, row):
    at = pieces[piece, FIRST] + row
    if _has(pieces[piece, VALID], at):
        return np.int64(int32s_at(pieces[piece, NUMBERS])[at])
    return pieces[piece, SIZE]


@kernel
def put_rows(out, ends, pieces, count):
    """Write the text of each row.

    Args:
        out: uint8, ``size_of`` and ROOM bytes.
        ends: int32; where the texts begin, and the end of the last, are written to it.
        pieces: int64 (n, COLUMNS).
        count: of rows.
    """
    text = pointer(out)
    at = np.int64(0)
    ends[0] = 0
    for row in range(count):
        piece = 0
        while piece < len(pieces):
            if pieces[piece, KIND] == WHERE:
                if not _has(pieces[piece, VALID], pieces[piece, FIRST] + row):
                    piece += pieces[piece, SIZE]
            else:
                at = _put_piece(text, at, pieces, piece, row)
            piece += 1
        ends[row + 1] = at


@kernel
def _put_piece(text, at, pieces, piece, row):
    kind = pieces[piece, KIND]
    place = pieces[piece, FIRST] + row
    if kind == CONSTANT:
        begin = pieces[piece, FIRST]
        return put_inside(
            text, at, bytes_at(pieces[piece, DATA]), begin, begin + pieces[piece, SIZE]
        )
    if kind == CHOICE:
        place = _choice(pieces, piece, row)
    elif not _has(pieces[piece, VALID], place):
        return put_null(text, at)
    if kind == INT32:
        number = np.int64(int32s_at(pieces[piece, DATA])[place])
        return put_int(text, at, number + pieces[piece, SIZE])
    if kind == INT64:
        return put_int(text, at, int64s_at(pieces[piece, DATA])[place] + pieces[piece, SIZE])
    if kind == UUID:
        return _put_uuid(text, at, bytes_at(pieces[piece, DATA]), 16 * place)
    offsets = int32s_at(pieces[piece, OFFSETS])
    begin, end = np.int64(offsets[place]), np.int64(offsets[place + 1])
    return put_inside(text, at, bytes_at(pieces[piece, DATA]), begin, end)


@kernel
def _put_uuid(text, at, ids, begin):
    for i in range(16):
        if i in (4, 6, 8, 10):
            text[at] = 45
            at += 1
        byte = ids[begin + i]
        text[at] = _HEX[byte >> 4]
        text[at + 1] = _HEX[byte & 15]
        at += 2
    return at


@kernel
def put_strings(out, ends, data, offsets):
    """Write texts as JSON strings, with their quotes, one behind the other.

    Args:
        out: uint8, six bytes for each byte of a text and 32 more for each text.
        ends: int32; where the strings begin, and the end of the last, are written to it.
        data: uint8, the texts' bytes.
        offsets: int32, where each text begins in them, and the end of the last.
    """
    text, plain = pointer(out), pointer(data)
    at = np.int64(0)
    ends[0] = 0
    for i in range(len(offsets) - 1):
        at = put_string(text, at, plain, np.int64(offsets[i]), np.int64(offsets[i + 1]))
        ends[i + 1] = at


@kernel
def holds_break(data):
    """Return whether there is a line break among bytes (uint8)."""
    found = False
    for byte in data:
        found |= (byte == 10) | (byte == 13)
    return found


def precompile() -> None:
    """Compile the kernels, or load them from the cache, before rows are waiting."""
    out, ends = np.zeros(ROOM, np.uint8), np.zeros(1, np.int32)
    pieces, offsets = np.zeros((0, COLUMNS), np.int64), np.zeros(1, np.int32)
    data = np.zeros(0, np.uint8)
    data.setflags(write=False)
    offsets.setflags(write=False)
    size_of(pieces, 0)
    put_rows(out, ends, pieces, 0)
    put_strings(out, ends, data, offsets)
    holds_break(data)
