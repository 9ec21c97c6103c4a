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

    Those are the messages of a key, and the messages of a row, whatever their keys are: a row that
    changes its key is in one part with what came before, under either key.

    Args:
        messages: of one sink.
        rows: the change events that ``event_rows`` counts in.
        count: number of parts; all messages are in the first where any event is about a whole
            table, as a truncate.
    """
    if _concerns_tables(rows):
        return np.zeros(len(messages), np.int64)
    event_rows = messages.event_rows.to_numpy()
    ids = _row_ids(rows, rows["key"])[event_rows]
    keyed = np.asarray(messages.keys.is_valid())
    parts = _numbers(np.where(keyed, text_checksums(messages.keys), ids), count)
    former = rows["former_key"]
    if former.null_count < len(former):
        moved = np.asarray(former.is_valid())[event_rows]
        before = _row_ids(rows, former)[event_rows[moved]]
        linked = np.concatenate([ids, before]), np.concatenate([parts, parts[moved]])
    else:
        linked = ids, parts
    joined: np.ndarray = _joined(*linked, count)[parts]
    return joined


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


def _concerns_tables(rows: pa.RecordBatch) -> bool:
    ops = rows["op"]
    names = ops.dictionary.to_pylist()
    return any(names[code] in _OF_TABLES for code in np.unique(codes(ops)).tolist())


def _joined(ids: np.ndarray, parts: np.ndarray, count: int) -> np.ndarray:
    """Return by part the one that it becomes, so that each id is in one."""
    order = np.argsort(ids, kind="stable")
    ids, parts = ids[order], parts[order]
    crossing = (ids[1:] == ids[:-1]) & (parts[1:] != parts[:-1])
    roots = np.arange(count)
    at = np.flatnonzero(crossing)
    for first, second in zip(parts[at].tolist(), parts[at + 1].tolist(), strict=True):
        if roots[first] != roots[second]:
            roots[roots == roots[second]] = roots[first]
    return roots
