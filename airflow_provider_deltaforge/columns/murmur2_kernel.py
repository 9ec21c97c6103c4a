"""Kafka's hash of message keys, by which its Java client chooses partitions."""

from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns.binary_columns import parts_of
from airflow_provider_deltaforge.columns.compiled import kernel

_SEED, _M, _R = np.uint32(0x9747B28C), np.uint32(0x5BD1E995), np.uint32(24)
_POSITIVE = np.uint32(0x7FFFFFFF)


@kernel
def _hashed(data, begin, end):
    result = _SEED ^ np.uint32(end - begin)
    while end - begin >= 4:
        word = np.uint32(data[begin])
        word |= np.uint32(data[begin + 1]) << np.uint32(8)
        word |= np.uint32(data[begin + 2]) << np.uint32(16)
        word |= np.uint32(data[begin + 3]) << np.uint32(24)
        word = np.uint32(word * _M)
        word = np.uint32((word ^ (word >> _R)) * _M)
        result = np.uint32(np.uint32(result * _M) ^ word)
        begin += 4
    if end > begin:
        for at in range(end - begin):
            result ^= np.uint32(data[begin + at]) << np.uint32(8 * at)
        result = np.uint32(result * _M)
    result = np.uint32((result ^ (result >> np.uint32(13))) * _M)
    return result ^ (result >> np.uint32(15))


@kernel
def _fill_partitions(data, offsets, count, out):
    for row in range(len(out)):
        found = _hashed(data, offsets[row], offsets[row + 1]) & _POSITIVE
        out[row] = np.int32(np.int64(found) % count)


def partitions_of(keys: pa.BinaryArray, count: int) -> Any:
    """Return an int32 per key: the partition of a topic of ``count`` that Kafka's clients choose.

    A null key counts as an empty one.
    """
    parts = parts_of(keys)
    out = np.empty(len(keys), np.int32)
    _fill_partitions(parts.data, parts.offsets, count, out)
    return out
