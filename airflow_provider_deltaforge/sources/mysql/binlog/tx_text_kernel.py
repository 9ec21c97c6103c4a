"""Kernels that write the names and positions of a batch's transactions."""

from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import pointer
from airflow_provider_deltaforge.columns.json_text_kernel import kernel, put_inside
from airflow_provider_deltaforge.columns.number_text_kernel import put_uint
from airflow_provider_deltaforge.sources.mysql.positions import (
    TX_NUMBER,
    TX_ORIGIN,
    TX_SERVER,
    TX_START,
)


@kernel
def _put_names(out, offsets, transactions, prefixes, prefix_offsets):
    at = np.int64(0)
    last = len(prefix_offsets) - 2
    text, known = pointer(out), pointer(prefixes)
    for i in range(len(transactions)):
        origin = transactions[i, TX_ORIGIN]
        number = transactions[i, TX_NUMBER]
        if origin < 0:
            origin, number = last, transactions[i, TX_START]
        at = put_inside(text, at, known, prefix_offsets[origin], prefix_offsets[origin + 1])
        at = put_uint(text, at, np.uint64(number))
        offsets[i + 1] = at


@kernel
def _put_positions(out, offsets, transactions, names, name_offsets, parts, cuts):
    at = np.int64(0)
    text, known, fixed, cut = pointer(out), pointer(names), pointer(parts), pointer(cuts)
    for i in range(len(transactions)):
        at = put_inside(text, at, fixed, cut[0], cut[1])
        at = put_uint(text, at, np.uint64(transactions[i, TX_SERVER]))
        if transactions[i, TX_ORIGIN] >= 0:
            at = put_inside(text, at, fixed, cut[1], cut[2])
            at = put_inside(text, at, known, name_offsets[i], name_offsets[i + 1])
            at = put_inside(text, at, fixed, cut[4], cut[5])
        # The file, and the name of the offset in it.
        at = put_inside(text, at, fixed, cut[2], cut[4])
        at = put_uint(text, at, np.uint64(transactions[i, TX_START]))
        offsets[i + 1] = at


def names_of(transactions: Any, prefixes: tuple[str, ...], anonymous: str) -> tuple[Any, Any]:
    """Return the transactions' names as (uint8, int64 offsets).

    Args:
        transactions: int64 (n, TX_COLUMNS).
        prefixes: what stands before the number of a GTID, by origin.
        anonymous: what stands before the start offset of a transaction without GTID.
    """
    texts, ends, longest = _joined((*prefixes, anonymous))
    out = np.empty(len(transactions) * (longest + 20) + 8, np.uint8)
    offsets = np.zeros(len(transactions) + 1, np.int64)
    _put_names(out, offsets, transactions, texts, ends)
    return out[: offsets[-1]], offsets


def source_positions(transactions: Any, names: Any, name_offsets: Any, file: str) -> Any:
    """Return the inside of each transaction's position object as (uint8, int64 offsets)."""
    texts, ends, _ = _joined(('"server_id":', ',"gtid":"', f',"file":"{file}"', ',"pos":', '"'))
    out = np.empty(len(transactions) * (len(texts) + 48) + len(names), np.uint8)
    offsets = np.zeros(len(transactions) + 1, np.int64)
    _put_positions(out, offsets, transactions, names, name_offsets, texts, ends)
    return out[: offsets[-1]], offsets


@lru_cache(maxsize=64)
def _joined(texts: tuple[str, ...]) -> tuple[Any, Any, int]:
    """Return texts one behind the other (uint8), where each ends (int64), the longest's bytes.

    The same ones serve many batches.
    """
    encoded = [text.encode() for text in texts]
    ends = np.array([0, *accumulate(map(len, encoded))], np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), ends, max(map(len, encoded))
