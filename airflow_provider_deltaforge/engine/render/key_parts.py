"""A batch in parts that are worked on at the same time, so that each key keeps its order.

Every batch is waited for as a whole before the next one begins: what is divided, and how, is
nobody's state, and another number of parts is another number from the next start on.
"""

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns.row_hash_kernel import text_checksums
from airflow_provider_deltaforge.columns.value_codes import codes, combinations
from airflow_provider_deltaforge.events.message import Messages

_TABLE = ("db", "schema", "table")
_PRIME = np.uint64(0x9E3779B185EBCA87)
_OF_TABLES = frozenset({"t", "ddl"})


def parts_of_rows(rows: pa.RecordBatch, count: int) -> np.ndarray:
    """Return the part of each row: the same for a key in every batch.

    Args:
        rows: change events; those without a key are all in the part of their table.
        count: number of parts.
    """
    return _numbers(_row_ids(rows, rows["key"]), count)


def parts_of_messages(messages: Messages, rows: pa.RecordBatch, count: int) -> np.ndarray:
    """Return the part of each message: one for all that must not overtake each other.

    Args:
        messages: of one sink.
        rows: the change events that ``event_rows`` counts in.
        count: number of parts; all messages are in the first where any is about a whole table, as a
            truncate.
    """
    groups = order_groups(messages, rows)
    if groups.null_count:
        return np.zeros(len(messages), np.int64)
    return _numbers(np.asarray(groups), count)


def order_groups(
    messages: Messages, rows: pa.RecordBatch, *, by_keys: bool = True
) -> pa.UInt64Array:
    """Return ``Messages.order_groups``.

    A group holds the messages of a key, and the messages of a row, whatever their keys are: a row
    that changes its key is in one group with what came before, under either key.

    Args:
        messages: of one sink.
        rows: the change events that ``event_rows`` counts in.
        by_keys: False: the keys of messages do not count, only their rows.
    """
    event_rows = messages.event_rows.to_numpy()
    ids = _row_ids(rows, rows["key"])[event_rows]
    groups = ids
    if by_keys:
        keyed = np.asarray(messages.keys.is_valid())
        groups = np.where(keyed, text_checksums(messages.keys), ids)
    former = rows["former_key"]
    if former.null_count < len(former):
        moved = np.asarray(former.is_valid())[event_rows]
        before = _row_ids(rows, former)[event_rows[moved]]
        linked = np.concatenate([ids, before]), np.concatenate([groups, groups[moved]])
    else:
        linked = ids, groups
    of_tables = _concerns_tables(rows)[event_rows]
    return pa.array(_joined(*linked, groups), pa.uint64(), mask=of_tables)


def _row_ids(rows: pa.RecordBatch, keys: pa.BinaryArray) -> np.ndarray:
    """Return a uint64 per row that is the same for equal keys of a table."""
    which, names = combinations([rows[name] for name in _TABLE])
    texts = ["\0".join(name or "" for name in table).encode() for table in names]
    tables: np.ndarray = text_checksums(pa.array(texts, pa.binary())) * _PRIME
    found: np.ndarray = text_checksums(keys) ^ tables[which]
    return found


def _numbers(ids: np.ndarray, count: int) -> np.ndarray:
    numbers: np.ndarray = (ids % np.uint64(count)).astype(np.int64)
    return numbers


def _concerns_tables(rows: pa.RecordBatch) -> np.ndarray:
    ops = rows["op"]
    of_tables = [name in _OF_TABLES for name in ops.dictionary.to_pylist()]
    found: np.ndarray = np.array([*of_tables, False])[codes(ops)]
    return found


def _joined(ids: np.ndarray, groups: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return for each wanted group the one that it becomes, so that each id is in one."""
    order = np.argsort(ids, kind="stable")
    ids, groups = ids[order], groups[order]
    crossing = (ids[1:] == ids[:-1]) & (groups[1:] != groups[:-1])
    if not crossing.any():
        return wanted
    ends = np.stack([groups[:-1][crossing], groups[1:][crossing]])
    names, links = np.unique(ends, return_inverse=True)
    first, second = links.reshape(ends.shape)
    roots = np.arange(len(names))
    while (roots[first] != roots[second]).any():
        lower = np.minimum(roots[first], roots[second])
        np.minimum.at(roots, first, lower)
        np.minimum.at(roots, second, lower)
        roots = roots[roots]  # Halves the way, or a long chain of keys would take as many rounds.
    at = np.minimum(np.searchsorted(names, wanted), len(names) - 1)
    joined: np.ndarray = np.where(names[at] == wanted, names[roots[at]], wanted)
    return joined
