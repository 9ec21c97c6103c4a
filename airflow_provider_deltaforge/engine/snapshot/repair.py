"""Repairs: rows that a verification found to differ are sent again, at their place in the log.

A row that is there arrives as ``r``, as in any copy. One that a sink holds and the table does not
arrives as a delete.

The copy of a table that stopped begins with chunks of deletes alone: of the rows that sinks hold
and the table does not have any more.
"""

import hashlib
import json
import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa

from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.render.route_templates import is_placed_by_key
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, ChangeBatch, Position, joined
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.schemas.registry import Registry
from airflow_provider_deltaforge.sources.contract import Snapshotter, TableChunk
from airflow_provider_deltaforge.storage.records.verifications import Verifications

_log = logging.getLogger(__name__)

_KEYS = "keys"
_DELETES, _POSITION = "deletes", "position"
_KEYS_AT_ONCE = 200
_DELETES_AT_ONCE = 500
_REPAIRED = ("missing", "extra", "different")


def repair_chunks(
    context: TaskContext, registry: Registry, snapshotter: Snapshotter, verification_id: str
) -> Iterator[TableChunk]:
    """Yield chunks of the rows that a verification found to differ.

    Raises:
        SpecError: its keys are not kept any more, or rows cannot be read by them.
    """
    kept = Verifications(context.store, context.pipeline.name).keys()
    if kept is None or kept.id != verification_id:
        raise SpecError(
            f"what verification {verification_id} found is not kept any more; verify again"
        )
    wanted: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for tables in kept.keys.values():
        for table, kinds in tables.items():
            found = (key for kind in _REPAIRED for key in kinds.get(kind, ()))
            wanted[table].update(dict.fromkeys(found))
    for table, keys in wanted.items():
        if keys:
            yield from _of_table(context, registry, snapshotter, table, list(keys))


def _of_table(
    context: TaskContext,
    registry: Registry,
    snapshotter: Snapshotter,
    table: str,
    keys: Sequence[str],
) -> Iterator[TableChunk]:
    spec = context.pipeline.spec
    source = spec.source
    chunk_rows = source.snapshot.chunk_size
    planned = (c for c in snapshotter.plan(chunk_rows, [table]) if c.full_name == table)
    whole = next(planned, None)
    latest = None if whole is None else registry.latest(whole.db, whole.schema, whole.table)
    known: dict[str, Mapping[str, Any]] = {}
    if latest is not None:
        found = ((text, key_in(latest.schema, text)) for text in keys)
        known = {text: key for text, key in found if key is not None}
    if len(known) < len(keys):
        _log.warning(
            "%d of %d keys in sinks are no keys of %s; they are left as they are",
            len(keys) - len(known),
            len(keys),
            table,
        )
    places = [
        sink.id
        for sink in spec.sinks
        if latest is not None and not is_placed_by_key(sink, spec.sharding, latest.schema)
    ]
    if places:
        _log.warning(
            "rows of %s that are not in the table stay in the sinks: %s sends rows to a place that "
            "the key does not name, so their deletes would go elsewhere",
            table,
            ", ".join(places),
        )
    texts = list(known)
    for first in range(0, len(texts), _KEYS_AT_ONCE):
        some = texts[first : first + _KEYS_AT_ONCE]
        chunk = None
        if whole is not None and latest is not None:
            members = [known[text] for text in some]
            chunk = source.chunk_of_keys(whole, latest.schema, members)
        if chunk is None:
            raise SpecError(
                f"rows of {table} cannot be read by their keys; copy the table: "
                f"deltaforge snapshot FILE --tables {table}"
            )
        bounds = {**chunk.bounds, **({} if places else {_KEYS: some})}
        yield replace(chunk, id=f"{table}:keys:{first}", bounds=bounds)


def key_in(table: TableSchema, text: str) -> Mapping[str, Any] | None:
    """Return the members of a key as the table has it; None for what can be none of its keys.

    One of another shape finds no row, and a row that is not found is deleted in the sinks.
    """
    try:
        key = json.loads(text, parse_float=Decimal, parse_constant=Decimal)
    except (ValueError, RecursionError):
        return None
    if not isinstance(key, dict) or set(key) != set(table.primary_key):
        return None
    return None if any(isinstance(value, Decimal | list) for value in key.values()) else key


def with_deletes(
    run_id: str, chunk: TableChunk, rows: pa.RecordBatch, inserted: pa.Array
) -> pa.RecordBatch:
    """Return a chunk's rows; of a repair, behind deletes of keys that sinks hold and no row has.

    The deletes come first: a key that differs from a row's only in its text (white space, or the
    case of letters where the collation knows none) is the same row for some consumers.

    Args:
        run_id: the snapshot run.
        chunk: of a repair; of another there are no deletes.
        rows: those that are there.
        inserted: keys of rows that the log has shown since.
    """
    texts = chunk.bounds.get(_KEYS, ())
    present, shown = {*rows["key"].to_pylist()}, {*map(_canonical, inserted.to_pylist())}
    gone = [
        text for text in texts if text.encode() not in present and _canonical(text) not in shown
    ]
    if not gone:
        return rows
    ts_ms = rows["ts_ms"][0].as_py() if rows.num_rows else int(time.time() * 1000)
    deletes = _deletes(run_id, chunk, gone, ts_ms)
    return joined([deletes, rows]) if rows.num_rows else deletes


def is_of_keys(chunk: TableChunk) -> bool:
    """Return whether keys without a row are deleted with a chunk: it is read as a whole."""
    return _KEYS in chunk.bounds


def delete_chunks(
    chunk: TableChunk, keys: Sequence[str], position: Position
) -> Iterator[TableChunk]:
    """Yield chunks that hold nothing but deletes.

    Args:
        chunk: any chunk of the table.
        keys: of the rows, as events have them.
        position: where the log is, up to which everything is delivered.
    """
    for first in range(0, len(keys), _DELETES_AT_ONCE):
        bounds = {
            _DELETES: [*keys[first : first + _DELETES_AT_ONCE]],
            _POSITION: dict(position),
        }
        name = f"{chunk.full_name}:deletes:{first}"
        yield replace(chunk, id=name, bounds=bounds, rows_estimate=0)


def is_of_deletes(chunk: TableChunk) -> bool:
    """Return whether a chunk holds deletes alone: no table is read for it."""
    return _DELETES in chunk.bounds


def delete_batches(run_id: str, chunk: TableChunk) -> Iterator[ChangeBatch] | None:
    """Return the events of a chunk that holds deletes alone; None of another one."""
    if not is_of_deletes(chunk):
        return None
    position = chunk.bounds[_POSITION]
    rows = _deletes(run_id, chunk, chunk.bounds[_DELETES], int(time.time() * 1000))
    return iter([ChangeBatch(rows, _OnePosition(position), position, "", rows.nbytes)])


@dataclass(frozen=True, slots=True)
class _OnePosition:
    position: Position

    def after(self, tx: int) -> Position:
        del tx
        return self.position


def _deletes(run_id: str, chunk: TableChunk, keys: Sequence[str], ts_ms: int) -> pa.RecordBatch:
    events: list[Mapping[str, Any]] = [
        {
            "op": "d",
            "db": chunk.db,
            "schema": chunk.schema,
            "table": chunk.table,
            "before": text.encode(),
            "key": text.encode(),
            "ts_ms": ts_ms,
            "tx": 0,
            "row": number,
            "tx_end": number == len(keys) - 1,
            "event_id": hashlib.blake2b(
                f"{run_id}:{chunk.id}:{text}".encode(), digest_size=16
            ).digest(),
        }
        for number, text in enumerate(keys)
    ]
    return pa.RecordBatch.from_pylist(events, schema=CHANGE_SCHEMA)


def _canonical(key: bytes | str) -> str:
    return json.dumps(json.loads(key, parse_float=str), sort_keys=True)
