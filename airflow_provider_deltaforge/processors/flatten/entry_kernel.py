"""Kernels that settle which of the entries with one key wins, and write them as an object.

An entry is ``ENTRY`` int64: where its key begins and ends in ``keys``, without quotes and as it
stands in a JSON string, and where its value begins and ends in the text; a value that begins at -1
is null, and an entry whose key ends at -1 has lost.
"""

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import load_word, pointer
from airflow_provider_deltaforge.columns.compiled import kernel
from airflow_provider_deltaforge.columns.json_column_kernel import put_bytes
from airflow_provider_deltaforge.columns.json_scan_kernel import (
    CLOSE_OBJECT,
    COLON,
    COMMA,
    OPEN_OBJECT,
    QUOTE,
)

ENTRY = 4
LAST, FIRST, ERROR = range(3)

_NULL = np.frombuffer(b"null", np.uint8)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


@kernel
def _hash(keys, begin, end):
    mixed = np.uint64(end - begin)
    while begin < end:
        word = load_word(keys, begin)
        if end - begin < 8:
            word &= (np.uint64(1) << np.uint64(8 * (end - begin))) - np.uint64(1)
        mixed = (mixed ^ word) * _MIX
        mixed ^= mixed >> _HALF
        begin += 8
    return mixed


@kernel
def _same(keys, begin, end, other, stop):
    if end - begin != stop - other:
        return False
    for i in range(end - begin):
        if keys[begin + i] != keys[other + i]:
            return False
    return True


@kernel
def settle(entries, count, keys, table, base, policy):
    """Choose one of the entries with the same key; the others get a key that ends at -1.

    Args:
        entries: pointer to the entries of a row.
        count: how many there are.
        keys: pointer to their keys.
        table: int64, a power of two larger than ``count``; what is below ``base`` is empty.
        base: more than was put into the table before.
        policy: ``LAST``, ``FIRST`` or ``ERROR``.

    Returns:
        The first entry whose key was there already, if that is an error; else -1.
    """
    mask = np.uint64(len(table) - 1)
    slots = pointer(table)
    for i in range(count):
        begin, end = entries[ENTRY * i], entries[ENTRY * i + 1]
        slot = _hash(keys, begin, end) & mask
        while slots[slot] >= base:
            other = ENTRY * (slots[slot] - base)
            if _same(keys, begin, end, entries[other], entries[other + 1]):
                break
            slot = (slot + np.uint64(1)) & mask
        if slots[slot] < base:
            slots[slot] = base + i
            continue
        if policy == ERROR:
            return i
        if policy == LAST:
            entries[other + 2] = entries[ENTRY * i + 2]
            entries[other + 3] = entries[ENTRY * i + 3]
        entries[ENTRY * i + 1] = -1
    return -1


@kernel
def written_size(entries, count):
    """Return how many bytes the entries take as an object."""
    size = np.int64(2)
    for i in range(count):
        if entries[ENTRY * i + 1] >= 0:
            size += entries[ENTRY * i + 1] - entries[ENTRY * i] + 8
            if entries[ENTRY * i + 2] >= 0:
                size += entries[ENTRY * i + 3] - entries[ENTRY * i + 2]
    return size


@kernel
def write_members(out, at, data, entries, count, keys):
    """Write the entries as an object; return the offset behind it."""
    null = pointer(_NULL)
    out[at] = OPEN_OBJECT
    at += 1
    first = True
    for i in range(count):
        begin, end = entries[ENTRY * i], entries[ENTRY * i + 1]
        if end < 0:
            continue
        if not first:
            out[at] = COMMA
            at += 1
        first = False
        out[at] = QUOTE
        at = put_bytes(out, at + 1, keys, begin, end)
        out[at], out[at + 1] = QUOTE, COLON
        at += 2
        if entries[ENTRY * i + 2] < 0:
            at = put_bytes(out, at, null, 0, 4)
        else:
            at = put_bytes(out, at, data, entries[ENTRY * i + 2], entries[ENTRY * i + 3])
    out[at] = CLOSE_OBJECT
    return at + 1
