"""Event ids: 16 bytes that are the same on every replay.

A 128-bit SipHash-2-4 of what an event is (source, transaction, row) under a key drawn from the
source's id, computed in a compiled kernel and marked as a UUID of version 8 (RFC 9562).
"""

import hashlib
from typing import Any

import numpy as np

from airflow_provider_deltaforge.columns.compiled import kernel as _kernel

_U = np.uint64
_SECOND_HALF = _U(0xDD)
_WIDE = _U(0xEE)
_FINAL = _U(0xFF)
_ROTATIONS = tuple((_U(n), _U(64 - n)) for n in (13, 32, 16, 21, 17, 32))
(_L13, _R13), (_L32, _R32), (_L16, _R16), (_L21, _R21), (_L17, _R17), _ = _ROTATIONS


def id_key(*parts: str) -> Any:
    """Return the hash key, two uint64, that stands for ``parts`` (a source id and what follows)."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(4, "little") + data)
    return np.frombuffer(digest.digest(), "<u8").copy()


@_kernel
def _round(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    v0 += v1
    v1 = ((v1 << _L13) | (v1 >> _R13)) ^ v0
    v0 = (v0 << _L32) | (v0 >> _R32)
    v2 += v3
    v3 = ((v3 << _L16) | (v3 >> _R16)) ^ v2
    v0 += v3
    v3 = ((v3 << _L21) | (v3 >> _R21)) ^ v0
    v2 += v1
    v1 = ((v1 << _L17) | (v1 >> _R17)) ^ v2
    v2 = (v2 << _L32) | (v2 >> _R32)
    return v0, v1, v2, v3


@_kernel
def siphash(key0: Any, key1: Any, data: Any, start: Any, stop: Any) -> Any:
    """Return the two halves of SipHash-2-4-128 over ``data[start:stop]``."""
    v0 = key0 ^ _U(0x736F6D6570736575)
    v1 = key1 ^ _U(0x646F72616E646F6D) ^ _WIDE
    v2 = key0 ^ _U(0x6C7967656E657261)
    v3 = key1 ^ _U(0x7465646279746573)
    at = start
    while at < stop or (at == stop and (stop - start) % 8 == 0):
        word = _U(0)
        count = min(8, stop - at)
        for i in range(count):
            word |= _U(data[at + i]) << _U(8 * i)
        if count < 8:
            word |= _U((stop - start) & 0xFF) << _U(56)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        at += 8
    v2 ^= _WIDE
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _SECOND_HALF
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@_kernel
def _put_id(out: Any, index: Any, first: Any, second: Any) -> None:
    for i in range(8):
        out[index, i] = np.uint8((first >> _U(8 * i)) & _FINAL)
        out[index, 8 + i] = np.uint8((second >> _U(8 * i)) & _FINAL)
    out[index, 6] = (out[index, 6] & 0x0F) | 0x80
    out[index, 8] = (out[index, 8] & 0x3F) | 0x80


@_kernel
def _fill_stream(key: Any, texts: Any, offsets: Any, tx: Any, row: Any, out: Any) -> None:
    ordinal = np.int64(-1)
    first = _U(0)
    second = _U(0)
    number = np.zeros(8, np.uint8)
    for i in range(len(tx)):
        if tx[i] != ordinal:
            ordinal = np.int64(tx[i])
            first, second = siphash(key[0], key[1], texts, offsets[ordinal], offsets[ordinal + 1])
        for shift in range(8):
            number[shift] = (np.int64(row[i]) >> (8 * shift)) & 0xFF
        left, right = siphash(first, second, number, 0, 8)
        _put_id(out, i, left, right)


@_kernel
def _fill_rows(key: Any, data: Any, offsets: Any, out: Any) -> None:
    for i in range(len(offsets) - 1):
        first, second = siphash(key[0], key[1], data, offsets[i], offsets[i + 1])
        _put_id(out, i, first, second)


@_kernel
def _fill_made(key: Any, ids: Any, origins: Any, made: Any, out: Any) -> None:
    ordinals = np.zeros(len(ids), np.int64)
    data = np.zeros(24, np.uint8)
    for i in range(len(origins)):
        origin = origins[i]
        if not made[i]:
            continue
        for j in range(16):
            data[j] = ids[origin, j]
        for j in range(8):
            data[16 + j] = (ordinals[origin] >> (8 * j)) & 0xFF
        ordinals[origin] += 1
        first, second = siphash(key[0], key[1], data, 0, 24)
        _put_id(out, i, first, second)


def stream_ids(key: Any, texts: Any, offsets: Any, tx: Any, row: Any) -> Any:
    """Return the ids of log rows, from their transaction's name and their index in it.

    Args:
        key: of the source, from ``id_key``.
        texts: uint8, the names of the batch's transactions one behind the other.
        offsets: int64, where each name begins, and the end of the last.
        tx: int32 per row, the ordinal of its transaction.
        row: int32 per row, its index in the transaction; rows nobody captures count.

    Returns:
        uint8 array of shape (rows, 16).
    """
    out = np.empty((len(tx), 16), np.uint8)
    _fill_stream(key, texts, offsets, tx, row, out)
    return out


def row_ids(key: Any, data: Any, offsets: Any) -> Any:
    """Return the ids of snapshot rows, from their primary key's bytes.

    Args:
        key: of the chunk as it was read, from ``id_key(source id, run, cut, table)``.
        data: uint8, the key texts (or row numbers) one behind the other.
        offsets: int64, where each begins, and the end of the last.

    Returns:
        uint8 array of shape (rows, 16).
    """
    out = np.empty((len(offsets) - 1, 16), np.uint8)
    _fill_rows(key, data, offsets, out)
    return out


def made_ids(key: Any, ids: Any, origins: Any, made: Any, out: Any) -> None:
    """Fill in the ids of events that a processor made.

    Args:
        key: of the processor, from ``id_key``.
        ids: uint8 of shape (rows, 16): the ids of the processor's input.
        origins: int32 per row of ``out``: the row of the input it was made from.
        made: bool per row of ``out``; the ids of other rows stay.
        out: uint8 of shape (rows, 16). The first event made from an origin has the ordinal 0, the
            next one 1, in the order of the rows.
    """
    # Whoever made them: machine code is made for one kind of arguments.
    read_only = [each.view() for each in (ids, origins, made)]
    for each in read_only:
        each.flags.writeable = False
    _fill_made(key, *read_only, out)
