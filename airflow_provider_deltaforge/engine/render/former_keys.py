"""Updates that change a row's primary key: the key before, found column by column.

A sink that keeps the last state of each key has to let go of the old key, and that key has to be
known before processors change, mask or drop parts of the images it is found in.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_compare_kernel, json_fields
from airflow_provider_deltaforge.columns.binary_columns import parts_of
from airflow_provider_deltaforge.columns.value_codes import combinations
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA

_FORMER = CHANGE_SCHEMA.get_field_index("former_key")
_KIND = ("db", "schema", "table", "schema_version")


def with_former_keys(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return change events with ``former_key`` filled in where an update changed the key.

    Args:
        rows: as the source decoded them.
    """
    is_update = pc.equal(rows["op"].cast(pa.utf8()), "u")
    known = pc.and_(rows["before"].is_valid(), rows["key"].is_valid())
    updates = np.flatnonzero(np.asarray(pc.and_(is_update, known)))
    if not len(updates):
        return rows
    places, texts = [], []
    tables, _ = combinations([rows[name] for name in _KIND])
    for table in np.unique(tables[updates]).tolist():
        mine = updates[tables[updates] == table]
        before, key = rows["before"], rows["key"]
        if len(mine) < rows.num_rows:
            before, key = before.take(pa.array(mine)), key.take(pa.array(mine))
        at, keys = _changed(before, key)
        places.append(mine[at])
        texts.append(keys)
    found = np.concatenate(places)
    if not len(found):
        return rows
    order = np.full(rows.num_rows, -1, np.int64)
    order[found] = np.arange(len(found))
    column = pa.concat_arrays(texts).take(pa.array(order, mask=order < 0))
    return rows.set_column(_FORMER, CHANGE_SCHEMA.field(_FORMER), column)


def without_foreign(before: pa.RecordBatch, rows: pa.RecordBatch, origins: Any) -> pa.RecordBatch:
    """Return what a processor made, without former keys of events that it gave another key.

    Args:
        before: what the processor was given.
        rows: what it returned.
        origins: int array, the row of the input that each stands for; None: one for one.
    """
    if rows["former_key"].null_count == rows.num_rows:
        return rows
    former = before if origins is None else before.take(pa.array(origins))
    foreign = pc.and_(
        _differs(rows, former, "key"), pc.invert(_differs(rows, former, "former_key"))
    )
    if not foreign.true_count:
        return rows
    kept = pc.if_else(foreign, pa.scalar(None, pa.binary()), rows["former_key"])
    return rows.set_column(_FORMER, CHANGE_SCHEMA.field(_FORMER), kept)


def _differs(rows: pa.RecordBatch, former: pa.RecordBatch, name: str) -> pa.BooleanArray:
    return pc.not_equal(pc.fill_null(rows[name], b""), pc.fill_null(former[name], b""))


def _changed(before: pa.BinaryArray, key: pa.BinaryArray) -> tuple[Any, pa.BinaryArray]:
    """Return which updates of one table changed the key, and the keys that they changed."""
    names = list(orjson.loads(key[0].as_py()))
    paths = [[name] for name in names]
    old, new = json_fields.locate_each(before, paths), json_fields.locate_each(key, paths)
    differs = np.zeros(len(key), np.bool_)
    known = np.full(len(key), bool(names), np.bool_)
    order, unsent = np.empty(len(key), np.int8), np.empty(len(key), np.bool_)
    for was, now in zip(old, new, strict=True):
        data = parts_of(before).data
        json_compare_kernel.compare_both(data, *was, parts_of(key).data, *now, order)
        json_compare_kernel.find_unchanged(data, *was, unsent)
        differs |= order != json_compare_kernel.EQUAL
        known &= (was.starts >= 0) & (now.starts >= 0) & ~unsent
    moved = np.flatnonzero(differs & known)
    return moved, key_texts(before, names, old, moved)


def key_texts(
    images: pa.BinaryArray, names: Sequence[str], places: Sequence[json_fields.Spans], rows: Any
) -> pa.BinaryArray:
    """Return keys as sources write them, with values of row images.

    Args:
        images: row images.
        names: the columns of the key.
        places: for each of them, where its value is in each image.
        rows: int array, of which images.
    """
    if not len(rows):
        return pa.array([], pa.binary())
    pieces: list[Any] = []
    for at, (name, spans) in enumerate(zip(names, places, strict=True)):
        pieces += [b"{" if at == 0 else b",", orjson.dumps(name) + b":"]
        pieces.append(json_fields.values(images, spans).take(pa.array(rows)))
    return pc.binary_join_element_wise(*pieces, b"}", b"")
