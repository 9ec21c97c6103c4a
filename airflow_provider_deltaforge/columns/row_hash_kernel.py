"""Checksums of texts and of row images, for comparing what two places hold.

A row image's checksum is a sum over its members, so that neither the order of columns nor white
space between them counts; values count byte by byte. Members that hold ``marks.UNCHANGED`` do not
count: the log did not repeat them.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns.binary_columns import parts_of
from airflow_provider_deltaforge.columns.bytes_kernel import load_word, pointer
from airflow_provider_deltaforge.columns.compiled import kernel
from airflow_provider_deltaforge.columns.json_scan_kernel import (
    CLOSE_OBJECT,
    COMMA,
    OPEN_OBJECT,
    skip_key,
    skip_space,
    skip_value,
    stack_for,
)
from airflow_provider_deltaforge.columns.marks import UNCHANGED

_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_SEED_TEXT, _SEED_NAME, _SEED_VALUE = np.uint64(11), np.uint64(23), np.uint64(37)
_MARK = np.frombuffer(UNCHANGED, np.uint8)


@kernel
def _mixed(word):
    word ^= word >> np.uint64(33)
    word *= _PRIME_2
    word ^= word >> np.uint64(29)
    word *= _PRIME_3
    word ^= word >> np.uint64(32)
    return word


@kernel
def _hash_bytes(data, begin, end, seed):
    result = seed * _PRIME_1 + np.uint64(end - begin)
    while end - begin >= 8:
        result = (result ^ _mixed(load_word(data, begin) * _PRIME_1)) * _PRIME_2 + _PRIME_3
        begin += 8
    while begin < end:
        result = (result ^ _mixed(np.uint64(data[begin]) + _PRIME_2)) * _PRIME_1 + _PRIME_3
        begin += 1
    return _mixed(result)


@kernel
def _is_mark(data, begin, end):
    if end - begin != len(_MARK):
        return False
    for i in range(len(_MARK)):
        if data[begin + i] != _MARK[i]:
            return False
    return True


@kernel
def _hash_object(data, at, stop, limit, stack):
    """Return (checksum, whether members are marked as unchanged, whether it is an object)."""
    total, marked = np.uint64(0), False
    at = skip_space(data, at, stop)
    if at >= stop or data[at] != OPEN_OBJECT:
        return total, marked, False
    at = skip_space(data, at + 1, stop)
    if at < stop and data[at] == CLOSE_OBJECT:
        return total, marked, skip_space(data, at + 1, stop) == stop
    while True:
        name = at
        behind, begin, _ = skip_key(data, at, stop, limit)
        if behind < 0:
            return total, marked, False
        at = skip_value(data, begin, stop, limit, stack)
        if at < 0:
            return total, marked, False
        if _is_mark(data, begin, at):
            marked = True
        else:
            value = _hash_bytes(data, begin, at, _SEED_VALUE)
            total += _mixed(_hash_bytes(data, name, behind, _SEED_NAME) * _PRIME_1 + value)
        at = skip_space(data, at, stop)
        if at >= stop:
            return total, marked, False
        if data[at] == CLOSE_OBJECT:
            return total, marked, skip_space(data, at + 1, stop) == stop
        if data[at] != COMMA:
            return total, marked, False
        at = skip_space(data, at + 1, stop)


@kernel
def _fill_texts(data, offsets, seed, out):
    text = pointer(data)
    for row in range(len(out)):
        out[row] = _hash_bytes(text, offsets[row], offsets[row + 1], seed)


@kernel
def _fill_rows(data, offsets, stack_bytes, out, marked, objects):
    text, stack, limit = pointer(data), pointer(stack_bytes), len(data)
    for row in range(len(out)):
        begin, end = offsets[row], offsets[row + 1]
        out[row], marked[row], objects[row] = _hash_object(text, begin, end, limit, stack)
        if not objects[row]:
            out[row] = _hash_bytes(text, begin, end, _SEED_TEXT)


def text_checksums(texts: pa.BinaryArray, seed: Any = 0) -> Any:
    """Return a uint64 checksum of each text, as of nothing for null.

    Args:
        texts: the column.
        seed: uint64, or one per row is added to it by the caller: texts of two seeds differ.
    """
    parts = parts_of(texts)
    out = np.empty(len(texts), np.uint64)
    _fill_texts(parts.data, parts.offsets, np.uint64(seed), out)
    return out


def row_checksums(images: pa.BinaryArray) -> tuple[Any, Any, Any]:
    """Return (uint64 checksums, which images have unchanged members, which are objects).

    What is no JSON object has the checksum of its bytes.
    """
    parts = parts_of(images)
    count = len(images)
    out, marked = np.empty(count, np.uint64), np.empty(count, np.bool_)
    objects = np.empty(count, np.bool_)
    stack = stack_for(parts.offsets[:-1], parts.offsets[1:])
    _fill_rows(parts.data, parts.offsets, stack, out, marked, objects)
    return out, marked, objects
