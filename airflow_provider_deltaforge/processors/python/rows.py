"""Functions over chosen columns of the row images, typed."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.processors.bad_rows import apart
from airflow_provider_deltaforge.processors.changed_events import outcome, repeated, replaced, taken
from airflow_provider_deltaforge.processors.contract import Processed
from airflow_provider_deltaforge.processors.event_tables import full_name, tables_of
from airflow_provider_deltaforge.processors.python.calls import UserCode
from airflow_provider_deltaforge.processors.python.chosen_rows import one_batch, only
from airflow_provider_deltaforge.processors.python.typed_columns import as_json, typed, with_member

_ROW, _OP, _TABLE = "_row", "_op", "_table"


class RowCalls:
    """Hands over columns of ``after`` and writes back those that came back changed."""

    def __init__(self, code: UserCode, columns: Mapping[str, str]) -> None:
        self._code = code
        self._columns = columns

    def processed(self, rows: pa.RecordBatch) -> Processed:
        """Return the batch with its new images changed; events without one pass.

        So does what is no object, such as the payload of an outbox message: it has no columns.
        """
        images = rows.column("after")
        kinds = json_fields.kinds(images, json_fields.locate(images, []))
        return only(rows, kinds == json_fields.OBJECT, self._of_images)

    def _of_images(self, rows: pa.RecordBatch) -> Processed:
        parts, rejections = apart(rows, self._called)
        origins = np.concatenate([np.zeros(0, np.int32), *(at + start for start, (at, _) in parts)])
        whole = pa.Table.from_batches([rows.slice(0, 0), *(batch for _, (_, batch) in parts)])
        return outcome(rows, one_batch(whole), origins, repeated(origins), rejections)

    def _called(self, rows: pa.RecordBatch) -> tuple[Any, pa.RecordBatch]:
        images = rows.column("after")
        spans = json_fields.locate_each(images, [[name] for name in self._columns])
        raw = {
            name: json_fields.values(images, found)
            for name, found in zip(self._columns, spans, strict=True)
        }
        given = {name: typed(name, raw[name], kind) for name, kind in self._columns.items()}
        result = self._code(_table(rows, given))
        origins = self._origins(result, rows.num_rows)
        events = taken(rows, origins)
        changed = images_with = events.column("after")
        for name in result.column_names:
            if name not in {_ROW, _OP, _TABLE}:
                former = given[name].take(pa.array(origins)) if name in given else None
                images_with = self._written(images_with, name, result.column(name), former)
        if images_with is changed:
            return origins, events
        return origins, replaced(events, {"after": images_with})

    def _origins(self, result: Any, count: int) -> Any:
        """Return which row given each row returned stands for."""
        name = self._code.name
        if isinstance(result, pa.RecordBatch):
            result = pa.Table.from_batches([result])
        if not isinstance(result, pa.Table):
            raise FatalError(f"{name} returned {type(result).__name__}, not a pyarrow.Table")
        if _ROW not in result.column_names:
            if result.num_rows != count:
                raise FatalError(
                    f"{name} returned {result.num_rows} rows for {count} without saying which: "
                    f"return the column {_ROW!r} as well"
                )
            return np.arange(count, dtype=np.int32)
        rows = result.column(_ROW)
        low, high = pc.min_max(rows).as_py().values()
        if rows.null_count or (result.num_rows and not 0 <= low <= high < count):
            raise FatalError(f"{name} returned a {_ROW!r} that it was not given")
        return rows.to_numpy().astype(np.int32)

    def _written(
        self, images: pa.BinaryArray, name: str, column: pa.ChunkedArray, former: pa.Array | None
    ) -> pa.BinaryArray:
        """Return the images with one column set where it differs from what was given."""
        new = one_batch(pa.table({name: column})).column(0)
        try:
            if former is not None:
                new = new.cast(former.type)
            texts = as_json(name, new, self._columns.get(name))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
            kind = self._columns.get(name, "a JSON value")
            detail = f": {error}" if isinstance(error, TypeError) else ""
            raise FatalError(
                f"{self._code.name} returned {name!r} as {column.type}, not as {kind}{detail}"
            ) from None
        if former is not None:
            same = pc.fill_null(pc.equal(new, former), False)  # noqa: FBT003
            same = pc.or_(same, pc.and_(new.is_null(), former.is_null()))
            if pc.all(same, min_count=0).as_py():
                return images
            texts = pc.fill_null(texts, b"null")
            texts = pc.if_else(same, pa.scalar(None, pa.binary()), texts)
        place = json_fields.locate(images, [name])
        images = json_fields.replaced(images, [(place, texts)])
        absent = pa.array(place.starts < 0)
        added = pc.if_else(absent, texts, pa.scalar(None, pa.binary()))
        return images if added.null_count == len(added) else with_member(images, name, added)


def _table(rows: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.Table:
    tables, index = tables_of(rows)
    names = pa.array([full_name(table) for table in tables], pa.utf8())
    described = {
        _ROW: pa.array(np.arange(rows.num_rows, dtype=np.int32)),
        _OP: rows.column("op").cast(pa.utf8()),
        _TABLE: names.take(pa.array(index)),
    }
    return pa.table({**columns, **described})
