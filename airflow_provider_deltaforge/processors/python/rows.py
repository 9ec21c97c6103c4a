"""Functions over chosen columns of the row images, typed."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.columns.json_strings import quoted
from airflow_provider_deltaforge.columns.marks import UNCHANGED
from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.processors.bad_rows import RowsError, apart
from airflow_provider_deltaforge.processors.changed_events import outcome, repeated, replaced, taken
from airflow_provider_deltaforge.processors.contract import Processed
from airflow_provider_deltaforge.processors.event_tables import full_name, tables_of
from airflow_provider_deltaforge.processors.json_objects import are_json
from airflow_provider_deltaforge.processors.python.arrow_types import arrow_type
from airflow_provider_deltaforge.processors.python.calls import UserCode
from airflow_provider_deltaforge.processors.python.chosen_rows import one_batch, only

_ROW, _OP, _TABLE = "_row", "_op", "_table"


def typed(column: str, raw: pa.BinaryArray, kind: str) -> pa.Array:
    """Return one column's JSON values in a type; absent, null and untouched TOAST values are null.

    Raises:
        RowsError: a value does not fit.
    """
    raw = pc.if_else(pc.equal(raw, UNCHANGED), pa.scalar(None, pa.binary()), raw)
    if kind == "json":
        return pc.if_else(pc.equal(raw, b"null"), pa.scalar(None, pa.binary()), raw).cast(pa.utf8())
    target = arrow_type(column, kind)
    try:
        return json_fields.as_text(raw).cast(target)
    except pa.ArrowInvalid:
        raise RowsError(f"column {column!r} holds a value that is no {kind}") from None


def as_json(column: str, values: pa.Array, kind: str | None) -> pa.BinaryArray:
    """Return typed values as JSON texts, in the shapes that sources write; null stays null.

    Args:
        column: its name.
        values: what was computed.
        kind: the type the document names for it; None for a column that was added.

    Raises:
        RowsError: a value cannot be written.
        TypeError: there is no JSON for that type.
    """
    if kind == "json":
        if not are_json(values):
            raise RowsError(f"returned {column!r} that is not JSON")
        return values.cast(pa.binary())
    if pa.types.is_floating(values.type):
        return _number_texts(values)
    written = _text_of(values.type)(values)
    plain = pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)
    return written.cast(pa.binary()) if plain else quoted(written)


def _text_of(kind: pa.DataType) -> Callable[[pa.Array], pa.StringArray]:
    if pa.types.is_timestamp(kind):
        return lambda values: pc.replace_substring(values.cast(pa.utf8()), " ", "T")
    known = (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_date32(kind)
    )
    if not known:
        raise TypeError(f"there is no JSON for Arrow's {kind}; cast it, for example to string")
    if pa.types.is_decimal(kind):
        return _decimal_texts
    return lambda values: values.cast(pa.utf8())


def _decimal_texts(values: pa.Array) -> pa.StringArray:
    """Return decimals without exponents, which Arrow writes for small ones."""
    texts = values.cast(pa.utf8())
    if not pc.any(pc.match_substring(texts, "E")).as_py():
        return texts
    plain = [None if value is None else format(value, "f") for value in values.to_pylist()]
    return pa.array(plain, pa.utf8())


def _number_texts(values: pa.Array) -> pa.BinaryArray:
    """Return floats as numbers; what JSON has no number for as a string, as sources do."""
    names = pc.if_else(
        pc.is_nan(values), '"NaN"', pc.if_else(pc.greater(values, 0), '"Infinity"', '"-Infinity"')
    )
    return pc.if_else(pc.is_finite(values), values.cast(pa.utf8()), names).cast(pa.binary())


def with_member(texts: pa.BinaryArray, name: str, values: pa.BinaryArray) -> pa.BinaryArray:
    """Return JSON objects with a member put at their end, where there is a value for it."""
    whole = json_fields.locate(texts, [])
    open_ended = json_fields.values(
        texts, json_fields.Spans(whole.starts, np.where(whole.starts < 0, -1, whole.stops - 1))
    )
    is_empty = pc.equal(pc.binary_length(pc.ascii_trim_whitespace(open_ended.cast(pa.utf8()))), 1)
    comma: Any = pc.if_else(is_empty, b"", b",")
    label = orjson.dumps(name) + b":"
    longer = pc.binary_join_element_wise(open_ended, comma, label, values, b"}", b"")
    return pc.if_else(values.is_valid(), longer, texts)


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
        columns = {name: typed(name, raw[name], kind) for name, kind in self._columns.items()}
        result = self._code(_table(rows, columns))
        origins = self._origins(result, rows.num_rows)
        events = taken(rows, origins)
        changed = images_with = events.column("after")
        for name in result.column_names:
            if name not in {_ROW, _OP, _TABLE}:
                former = columns[name].take(pa.array(origins)) if name in columns else None
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
