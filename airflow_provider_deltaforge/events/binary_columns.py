"""Arrow columns of bytes as numpy arrays that kernels take, and back."""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

_EVERY = np.zeros(0, np.bool_)
_EVERY.setflags(write=False)


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
    return Parts(
        _read_only(data, np.uint8),
        _read_only(offsets, np.int32)[first : first + count + 1] if count else _read_only_zero(),
        _presence(column),
    )


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


def _presence(column: pa.BinaryArray) -> Any:
    if not column.null_count:
        return _EVERY
    first, count = column.offset, len(column)
    bits = np.frombuffer(column.buffers()[0], np.uint8)[first // 8 : (first + count + 7) // 8]
    start = first % 8
    present = np.unpackbits(bits, bitorder="little")[start : start + count].view(np.bool_)
    present.setflags(write=False)
    return present


def _read_only(buffer: pa.Buffer | None, kind: Any) -> Any:
    if buffer is None or not buffer.size:
        array = np.zeros(0, kind)
    else:
        array = np.frombuffer(buffer, np.uint8)
        array = array[: len(array) // np.dtype(kind).itemsize * np.dtype(kind).itemsize].view(kind)
    array.setflags(write=False)
    return array


def _read_only_zero() -> Any:
    zero = np.zeros(1, np.int32)
    zero.setflags(write=False)
    return zero
