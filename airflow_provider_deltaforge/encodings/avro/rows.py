"""Row images as Avro records: the columns of a table, and what scripts have put beside them."""

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.columns.json_fields import Spans
from airflow_provider_deltaforge.encodings.avro import binary
from airflow_provider_deltaforge.encodings.avro.column_types import ANYTHING, AvroType
from airflow_provider_deltaforge.encodings.avro.names import apart
from airflow_provider_deltaforge.encodings.avro.values import Values

RAW = "_raw"
"""The field that holds, by column, the text of values that their types cannot hold."""

EXTRA_MAX = 1000
"""So many names that no column has, and no more, become fields of a table's record."""

_RAW_TYPE = {"type": "map", "values": "string"}


@dataclass(frozen=True, slots=True)
class RowField:
    """One field of a row: its key in the JSON image, its name in Avro, its type."""

    key: str
    name: str
    type: AvroType


class ImageRecords:
    """Row images, none null, and where their keys lie."""

    def __init__(self, texts: pa.BinaryArray) -> None:
        self.texts = texts
        self._sought: list[RowField] | None = None
        self._places: list[Spans] = []

    def places(self, fields: list[RowField]) -> list[Spans]:
        """Return where the value of each field lies."""
        if self._sought is not fields:
            self._places = json_fields.locate_each(self.texts, [[field.key] for field in fields])
            self._sought = fields
        return self._places


class UnreadableError(Exception):
    """The keys of an image are unknown."""


class RowRecord:
    """The record ``Value`` of one table, as it looks now.

    Args:
        columns: keys and types of the table's columns; empty for a table that nobody knows.
        extra: keys that images have had beside the columns.
    """

    def __init__(self, columns: Sequence[tuple[str, AvroType]], extra: Iterable[str] = ()) -> None:
        known = {key for key, _ in columns}
        keys = [*columns, *((key, ANYTHING) for key in sorted(extra) if key not in known)]
        names = apart(key for key, _ in keys)
        self.fields = [
            RowField(key, name, kind.named_for(name))
            for (key, kind), name in zip(keys, names, strict=True)
        ]
        (self._raw_name,) = apart([RAW], names)

    def schema(self, name: str) -> dict[str, Any]:
        """Return the schema; every field may be null, so that columns may come and go."""
        fields = [_described(field) for field in self.fields]
        raw = {"name": self._raw_name, "type": ["null", _RAW_TYPE], "default": None}
        return {"type": "record", "name": name, "fields": [*fields, raw]}

    def write(self, images: ImageRecords) -> pa.BinaryArray:
        """Return the records; a key that is no field is left out, see ``unknown``."""
        texts = images.texts
        unfit: list[tuple[str, Any, Values]] = []
        pieces: list[pa.BinaryArray | bytes] = []
        for field, spans in zip(self.fields, images.places(self.fields), strict=True):
            values = Values(texts, spans)
            written = field.type.write(values)
            if not field.type.whole:
                there = written.is_valid().to_numpy(zero_copy_only=False)
                lost = values.there & ~there
                if lost.any():
                    unfit.append((field.key, lost, values))
                written = binary.optional(written)
            pieces.append(written)
        return pc.binary_join_element_wise(*pieces, self._raw(unfit, len(texts)), b"")

    def _raw(self, unfit: list[tuple[str, Any, Values]], count: int) -> pa.BinaryArray:
        if not unfit:
            return pa.repeat(pa.scalar(binary.NOTHING, pa.binary()), count)
        found: dict[int, dict[str, str]] = {}
        for key, lost, values in unfit:
            rows = np.flatnonzero(lost)
            for row, text in zip(rows.tolist(), values.text.take(rows).to_pylist(), strict=True):
                found.setdefault(row, {})[key] = text
        written = [binary.NOTHING] * count
        for row, texts in found.items():
            written[row] = binary.SOMETHING + _map(texts)
        return pa.array(written, pa.binary())

    def unknown(self, images: ImageRecords) -> set[str]:
        """Return the keys that some images have and no field holds.

        An image as sources write it has no byte that its known members do not account for, so
        only those of other sizes are parsed.

        Raises:
            UnreadableError: an image has keys that no schema can name, or is nested too deep.
        """
        texts = images.texts
        explained = np.full(len(texts), len("{}"), np.int64)
        members = np.zeros(len(texts), np.int64)
        for field, spans in zip(self.fields, images.places(self.fields), strict=True):
            there = spans.starts >= 0
            key = len(orjson.dumps(field.key)) + len(":")
            explained += np.where(there, key + spans.stops - spans.starts, 0)
            members += there
        explained += np.maximum(members - 1, 0)
        sizes = pc.binary_length(texts).to_numpy(zero_copy_only=False)
        odd = texts.take(pa.array(np.flatnonzero(sizes != explained))).to_pylist()
        keys = {key for text in odd for key in _keys(text)}
        return keys - {field.key for field in self.fields}


def _keys(text: bytes) -> set[str]:
    """Return an image's keys; the standard library takes what PostgreSQL's ``json`` holds, too."""
    try:
        keys = set(json.loads(text, parse_int=len))  # However many digits it has.
        "".join(keys).encode()
    except (ValueError, RecursionError) as error:
        raise UnreadableError(type(error).__name__) from None
    return keys


def _described(field: RowField) -> dict[str, Any]:
    kind = field.type.schema if field.type.whole else ["null", field.type.schema]
    described: dict[str, Any] = {"name": field.name, "type": kind, "default": None}
    if field.name != field.key:
        described["column"] = field.key
    return described


def _map(texts: dict[str, str]) -> bytes:
    from fastavro import schemaless_writer

    out = io.BytesIO()
    schemaless_writer(out, _RAW_TYPE, texts)
    return out.getvalue()
