"""Avro's binary form of whole columns: numbers, texts and bytes, by numpy and Arrow alone."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns.binary_columns import column_of

NOTHING, SOMETHING = b"\0", b"\2"
"""Which branch of ``["null", T]`` follows."""

_MORE = np.uint8(0x80)
_LEAST_OF_WIDTH = np.array([1 << (7 * width) for width in range(1, 10)], np.uint64)


def integers(values: Any) -> pa.BinaryArray:
    """Return int64 numbers as zigzag varints, Avro's ``int`` and ``long``."""
    numbers = np.ascontiguousarray(values, np.int64)
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    most = int(zigzag.max(initial=0))
    if most < _MORE:
        return column_of(zigzag.astype(np.uint8), np.arange(len(zigzag) + 1, dtype=np.int32))
    widths = np.ones(len(zigzag), np.int32)
    for least in _LEAST_OF_WIDTH[most >= _LEAST_OF_WIDTH]:
        widths += zigzag >= least
    places = np.arange(int(widths.max()))
    groups = (zigzag[:, None] >> (7 * places).astype(np.uint64)).astype(np.uint8) & 0x7F
    groups |= np.where(places < widths[:, None] - 1, _MORE, np.uint8(0))
    return column_of(groups[places < widths[:, None]], ends(widths))


def texts(values: pa.Array) -> pa.BinaryArray:
    """Return texts or bytes with their lengths before them; null stays null."""
    values = values.cast(pa.binary())
    lengths = integers(pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False))
    return pc.binary_join_element_wise(lengths, values, b"")


def fixed(values: Any) -> pa.BinaryArray:
    """Return the bytes of each number as they are in memory: ``float`` and ``double``."""
    width, count = values.dtype.itemsize, len(values)
    borders = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return column_of(np.ascontiguousarray(values).view(np.uint8), borders)


def booleans(values: Any) -> pa.BinaryArray:
    """Return flags as a byte each."""
    return fixed(np.ascontiguousarray(values, np.bool_).view(np.uint8))


def big_endian(low: Any, high: Any) -> pa.BinaryArray:
    """Return 128-bit numbers in the fewest bytes of two's complement.

    Args:
        low: uint64, the low halves.
        high: int64, the high halves.
    """
    count = len(low)
    digits = np.empty((count, 16), np.uint8)
    digits[:, :8] = high.astype(">i8").view(np.uint8).reshape(count, 8)
    digits[:, 8:] = low.astype(">u8").view(np.uint8).reshape(count, 8)
    sign = (digits[:, :1] >> 7) * np.uint8(0xFF)
    # A byte may go while it only repeats the sign, and so does the top bit of the next one.
    spare = (digits[:, :-1] == sign) & ((digits[:, 1:] & 0x80) == (sign & 0x80))
    dropped = np.cumprod(spare, axis=1, dtype=np.uint8).sum(axis=1, dtype=np.int32)
    kept = np.arange(16) >= dropped[:, None]
    return column_of(digits[kept], ends(16 - dropped))


def optional(written: pa.BinaryArray) -> pa.BinaryArray:
    """Return each value as ``["null", T]``; what is null here is null there."""
    some = pc.binary_join_element_wise(SOMETHING, written, b"")
    return pc.fill_null(some, NOTHING)


def present(values: pa.BinaryArray, where: Any) -> pa.BinaryArray:
    """Return the values, null where the mask does not hold."""
    if where.all():
        return values
    return pc.if_else(pa.array(where), values, pa.scalar(None, pa.binary()))


def ends(widths: Any) -> Any:
    """Return where each of several values begins, and the end of the last."""
    offsets = np.zeros(len(widths) + 1, np.int32)
    np.cumsum(widths, out=offsets[1:])
    return offsets
