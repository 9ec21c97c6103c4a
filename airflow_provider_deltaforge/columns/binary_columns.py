"""Arrow columns as numpy arrays that kernels take, and back."""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

_EVERY = np.zeros(0, np.bool_)
_NO_BYTES = np.zeros(0, np.uint8)
_ZERO = np.zeros(1, np.int32)
for _constant in (_EVERY, _NO_BYTES, _ZERO):
    _constant.setflags(write=False)
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)
_UUID_CHARS = 36
_UUID_DASHES = (8, 13, 18, 23)
_UUID_GROUPS = ((0, 8), (9, 13), (14, 18), (19, 23), (24, 36))


class Parts(NamedTuple):
    """A column of bytes; arrays are read-only, so that a kernel is compiled for one kind only.

    Attributes:
        data: uint8, the whole data buffer.
        offsets: int32, where each row's bytes begin in it, and the end of the last.
        present: bool per row; empty if no row is null.
    """

    data: Any
    offsets: Any
    present: Any


def parts_of(column: pa.BinaryArray) -> Parts:
    """Return what a column (or a slice of one) consists of, without copying its bytes."""
    count, first = len(column), column.offset
    _, offsets, data = column.buffers()
    if not count:
        return Parts(_NO_BYTES, _ZERO, _EVERY)
    borders = np.frombuffer(offsets, np.int32, count + 1, 4 * first)
    held = np.frombuffer(data, np.uint8) if data is not None and data.size else _NO_BYTES
    borders.flags.writeable = held.flags.writeable = False
    return Parts(held, borders, _presence(column))


def column_of(data: Any, offsets: Any, present: Any = None) -> pa.BinaryArray:
    """Return a column of bytes.

    Args:
        data: uint8, the rows' bytes one behind the other.
        offsets: int32, where each begins, and the end of the last.
        present: bool per row; None or empty if no row is null.
    """
    count = len(offsets) - 1
    valid = None
    if present is not None and len(present) and not present.all():
        valid = pa.py_buffer(np.packbits(present, bitorder="little"))
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), count, buffers)


def number_column(numbers: Any, kind: pa.DataType) -> pa.Array:
    """Return numbers as a column, none of them null, without copying them.

    Args:
        numbers: contiguous, as wide as ``kind``.
        kind: of the column.
    """
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def flag_column(flags: Any) -> pa.BooleanArray:
    """Return bool per row as a column, none of them null."""
    bits = pa.py_buffer(np.packbits(flags, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, bits])


def bytes_in(column: pa.BinaryArray) -> int:
    """Return how many bytes the values of a column have together."""
    count = len(column)
    if not count:
        return 0
    ends = np.frombuffer(column.buffers()[1], np.int32, count + 1, 4 * column.offset)
    return int(ends[-1]) - int(ends[0])


def id_bytes(column: pa.FixedSizeBinaryArray) -> Any:
    """Return event ids, none null, as uint8 of shape (rows, 16), without copying them."""
    first, count = column.offset, len(column)
    return np.frombuffer(column.buffers()[1], np.uint8, 16 * count, 16 * first).reshape(count, 16)


def uuid_texts(ids: pa.FixedSizeBinaryArray) -> pa.BinaryArray:
    """Return 16-byte ids, none null, as 36 characters each, without quotes."""
    count = len(ids)
    digits = _HEX[id_bytes(ids)].view(np.uint8).reshape(count, 32)
    text = np.empty((count, _UUID_CHARS), np.uint8)
    taken = 0
    for first, last in _UUID_GROUPS:
        text[:, first:last] = digits[:, taken : taken + last - first]
        taken += last - first
    text[:, _UUID_DASHES] = ord("-")
    offsets = np.arange(0, (count + 1) * _UUID_CHARS, _UUID_CHARS, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.BinaryArray.from_buffers(pa.binary(), count, buffers)


def _presence(column: pa.BinaryArray) -> Any:
    if not column.null_count:
        return _EVERY
    first, count = column.offset, len(column)
    bits = np.frombuffer(column.buffers()[0], np.uint8)[first // 8 : (first + count + 7) // 8]
    start = first % 8
    present = np.unpackbits(bits, bitorder="little")[start : start + count].view(np.bool_)
    present.setflags(write=False)
    return present
