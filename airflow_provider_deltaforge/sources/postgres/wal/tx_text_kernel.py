"""Kernels that write the names and positions of a batch's transactions."""

from typing import Any

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import pointer
from airflow_provider_deltaforge.columns.json_text_kernel import kernel, put_inside
from airflow_provider_deltaforge.columns.number_text_kernel import put_uint

_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_LSN_BYTES = 17


@kernel
def _put_hex(out, at, value):
    """Write a uint64 in hexadecimal without leading zeros."""
    width = 1
    while width < 16 and value >> np.uint64(4 * width) != np.uint64(0):
        width += 1
    for i in range(width):
        digit = (value >> np.uint64(4 * (width - 1 - i))) & np.uint64(15)
        out[at + i] = _HEX[np.int64(digit)]
    return at + width


@kernel
def _put_lsn(out, at, lsn):
    value = np.uint64(lsn)
    at = _put_hex(out, at, value >> np.uint64(32))
    out[at] = 47
    return _put_hex(out, at + 1, value & np.uint64(0xFFFFFFFF))


@kernel
def _put_names(out, offsets, commits):
    text = pointer(out)
    at = np.int64(0)
    for i in range(len(commits)):
        at = _put_lsn(text, at, commits[i])
        offsets[i + 1] = at


@kernel
def _put_numbers(out, offsets, numbers):
    text = pointer(out)
    at = np.int64(0)
    for i in range(len(numbers)):
        at = put_uint(text, at, np.uint64(numbers[i]))
        offsets[i + 1] = at


@kernel
def _put_positions(out, offsets, commits, xids, parts, cuts):
    text, fixed = pointer(out), pointer(parts)
    at = np.int64(0)
    for i in range(len(commits)):
        at = put_inside(text, at, fixed, cuts[0], cuts[1])
        at = _put_lsn(text, at, commits[i])
        if xids[i] > 0:
            at = put_inside(text, at, fixed, cuts[1], cuts[2])
            at = put_uint(text, at, np.uint64(xids[i]))
        else:
            at = put_inside(text, at, fixed, cuts[2], cuts[3])
        offsets[i + 1] = at


def names_of(commits: Any) -> tuple[Any, Any]:
    """Return log sequence numbers as text, as (uint8, int64 offsets)."""
    out, offsets = _room(len(commits), _LSN_BYTES)
    _put_names(out, offsets, commits)
    return out[: offsets[-1]], offsets


def numbers_of(numbers: Any) -> tuple[Any, Any]:
    """Return numbers as text, as (uint8, int64 offsets)."""
    out, offsets = _room(len(numbers), 20)
    _put_numbers(out, offsets, numbers)
    return out[: offsets[-1]], offsets


def source_positions(commits: Any, xids: Any) -> tuple[Any, Any]:
    """Return the inside of each transaction's position object as (uint8, int64 offsets)."""
    texts = [b'"lsn":"', b'","txId":', b'"']
    cuts = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    blob = np.frombuffer(b"".join(texts), np.uint8)
    out, offsets = _room(len(commits), len(blob) + _LSN_BYTES + 20)
    _put_positions(out, offsets, commits, xids, blob, cuts)
    return out[: offsets[-1]], offsets


def _room(count: int, each: int) -> tuple[Any, Any]:
    return np.empty(count * each + 16, np.uint8), np.zeros(count + 1, np.int64)
