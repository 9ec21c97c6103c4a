"""The record around the rows: what an envelope says its messages look like, as Avro."""

from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.encodings.avro import binary, scalars
from airflow_provider_deltaforge.encodings.avro.objects import exactly, listed, written
from airflow_provider_deltaforge.encodings.avro.rows import ImageRecords, RowRecord
from airflow_provider_deltaforge.encodings.avro.values import Values
from airflow_provider_deltaforge.events.shapes import Field, Kind, Shape

MEDIA_TYPE = "application/avro"

ROW_NAME = "Value"


def schema_of(shape: Shape, row: RowRecord, namespace: str) -> dict[str, Any]:
    """Return the schema of a message."""
    whole = {**_record(shape, row), "namespace": namespace}
    schema: dict[str, Any] = _once(whole, namespace, set())
    return schema


def row_schema(row: RowRecord, namespace: str) -> dict[str, Any]:
    """Return the schema of a message that is a row alone."""
    whole = {**row.schema(ROW_NAME), "namespace": namespace}
    schema: dict[str, Any] = _once(whole, namespace, set())
    return schema


class MessageLayout:
    """Messages of one shape, taken apart once.

    Args:
        shape: what they look like; None: each is a row image alone.
        texts: their JSON, none null.
    """

    def __init__(self, shape: Shape | None, texts: pa.BinaryArray) -> None:
        inside = [shape.inside] if shape is not None and shape.inside is not None else []
        self._whole = Values(texts, json_fields.locate(texts, inside))
        self._part = _FieldLayout(Kind.ROW if shape is None else shape, self._whole)

    def images(self) -> list[ImageRecords]:
        """Return the row images in the messages, one column for each field that holds one."""
        return self._part.images()

    def write(self, row: RowRecord) -> pa.BinaryArray:
        """Return the records; null for a message that lacks what it must have.

        So is one whose row image is no object: a record of the row cannot hold it.
        """
        written, misfits = self._part.write(row), self._part.misfits()
        return pc.if_else(misfits, None, written) if misfits.any() else written


class _FieldLayout:
    """A field of messages, and what is inside of it."""

    def __init__(self, what: Kind | Shape, values: Values) -> None:
        self._what = what
        self._values = values
        self._inner: list[tuple[Field, _FieldLayout]] = []
        self._images: ImageRecords | None = None
        if isinstance(what, Shape) or what is Kind.ROW:
            self._there = values.kinds == json_fields.OBJECT
        if isinstance(what, Shape) and self._there.any():
            texts = self._objects()
            places = json_fields.locate_each(texts, [[field.name] for field in what.fields])
            for field, spans in zip(what.fields, places, strict=True):
                self._inner.append((field, _FieldLayout(field.what, Values(texts, spans))))
        elif what is Kind.ROW and self._there.any():
            self._images = ImageRecords(self._objects())

    def images(self) -> list[ImageRecords]:
        own = [self._images] if self._images is not None else []
        return own + [images for _, part in self._inner for images in part.images()]

    def write(self, row: RowRecord) -> pa.BinaryArray:
        if not self._values.there.any():
            return pa.nulls(len(self._values), pa.binary())
        if self._images is not None:
            return self._spread(row.write(self._images))
        if self._inner:
            fields = [
                part.write(row) if field.required else binary.optional(part.write(row))
                for field, part in self._inner
            ]
            return self._spread(pc.binary_join_element_wise(*fields, b""))
        if isinstance(self._what, Shape) or self._what is Kind.ROW:
            return pa.nulls(len(self._values), pa.binary())  # Something else than an object.
        return _WRITERS[self._what](self._values)

    def misfits(self) -> Any:
        """Return in which values there is a row image that is no object; bool."""
        if self._what is Kind.ROW:
            return self._values.there & ~self._there
        found = np.zeros(len(self._values), np.bool_)
        for _, part in self._inner:
            inner = part.misfits()
            if inner.any():
                found[np.flatnonzero(self._there)[inner]] = True
        return found

    def _objects(self) -> pa.BinaryArray:
        texts = self._values.json
        return texts if self._there.all() else texts.take(pa.array(np.flatnonzero(self._there)))

    def _spread(self, written: pa.BinaryArray) -> pa.BinaryArray:
        """Return what was written of the objects, null for what is none."""
        there = self._there
        return written if there.all() else written.take(pa.array(np.cumsum(there) - 1, mask=~there))


def _texts(values: Values) -> pa.BinaryArray:
    """Write the few different texts that a field has once each."""
    coded = values.text.dictionary_encode()
    if len(coded.dictionary) * 2 > len(values):
        return scalars.string(values)
    return binary.texts(coded.dictionary).take(coded.indices)


def _media_type(values: Values) -> pa.BinaryArray:
    return binary.texts(pa.repeat(pa.scalar(MEDIA_TYPE, pa.utf8()), len(values)))


def _text_lists(values: Values) -> pa.BinaryArray:
    return written(_SCHEMAS[Kind.TEXTS], listed(exactly(str)))(values)


_WRITERS: dict[Kind, scalars.Writer] = {
    Kind.TEXT: _texts,
    Kind.INTEGER: scalars.long_,
    Kind.BOOLEAN: scalars.boolean,
    Kind.TEXTS: _text_lists,
    Kind.JSON: scalars.json_text,
    Kind.MEDIA_TYPE: _media_type,
}
_SCHEMAS: dict[Kind, Any] = {
    Kind.TEXT: "string",
    Kind.INTEGER: "long",
    Kind.BOOLEAN: "boolean",
    Kind.TEXTS: {"type": "array", "items": "string"},
    Kind.JSON: "string",
    Kind.MEDIA_TYPE: "string",
}


def _record(shape: Shape, row: RowRecord) -> dict[str, Any]:
    fields = []
    for field in shape.fields:
        if isinstance(field.what, Shape):
            kind: Any = _record(field.what, row)
        else:
            kind = row.schema(ROW_NAME) if field.what is Kind.ROW else _SCHEMAS[field.what]
        described: dict[str, Any] = {"name": field.name, "type": kind}
        if not field.required:
            described |= {"type": ["null", kind], "default": None}
        fields.append(described)
    return {"type": "record", "name": shape.name, "fields": fields}


def _once(schema: Any, namespace: str, seen: set[str]) -> Any:
    """Return a schema in which each named type is described where it stands first."""
    if isinstance(schema, list):
        return [_once(branch, namespace, seen) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    if "name" in schema and schema.get("type") in ("record", "enum"):
        full = f"{schema.get('namespace', namespace)}.{schema['name']}"
        if full in seen:
            return full
        seen.add(full)
    return {key: _inner(key, value, namespace, seen) for key, value in schema.items()}


def _inner(key: str, value: Any, namespace: str, seen: set[str]) -> Any:
    if key == "fields":
        return [{**field, "type": _once(field["type"], namespace, seen)} for field in value]
    return _once(value, namespace, seen) if key in ("type", "items", "values") else value


def text_of(schema: dict[str, Any]) -> str:
    """Return a schema as the text that is registered."""
    return orjson.dumps(schema).decode()
