"""From the columns of a batch to what is handed to the glue: numbers, and one text.

The order of the numbers is that in which the glue reads them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from airflow_provider_deltaforge import __version__
from airflow_provider_deltaforge.columns.binary_columns import id_bytes, parts_of
from airflow_provider_deltaforge.columns.value_codes import combinations
from airflow_provider_deltaforge.processors.event_tables import full_name
from airflow_provider_deltaforge.processors.javascript.number_scan_kernel import (
    image_flags,
    utf16_offsets,
)
from airflow_provider_deltaforge.processors.javascript.settings import PipelineInfo

_BEYOND_ASCII = 128


@dataclass(frozen=True, slots=True)
class ScriptInput:
    """A batch as the interpreter takes it.

    Attributes:
        columns: parts of the numbers, one after the other.
        text: parts of the text.
    """

    columns: Sequence[Any]
    text: Sequence[Any]


def handed(rows: pa.RecordBatch, home: PipelineInfo, *, each: bool) -> ScriptInput:
    """Lay out a batch.

    Args:
        rows: in CHANGE_SCHEMA.
        home: what the pipeline's events share.
        each: call the script once per event.
    """
    heads, head_codes = _heads(rows)
    positions, position_codes = _coded(rows["source_position"])
    txids, tx_codes = _coded(rows["tx_id"])
    versions, version_codes = _coded(rows["schema_version"])
    header = orjson.dumps(
        {
            "version": f"deltaforge-{__version__}",
            "connector": home.connector,
            "name": home.pipeline,
            "tenant": home.tenant,
            "heads": heads,
            "positions": ["{" + text.decode() + "}" for text in positions],
            "txids": txids,
            "versions": versions,
            "ddl": _rare(rows["ddl"]),
            "tags": _rare(rows["tags"]),
            "routing": _routing(rows["routing"]),
            "synthetic": _rare(rows["synthetic"]),
        }
    )
    header_units = (
        len(header) if header.isascii() else len(header.decode().encode("utf-16-le")) // 2
    )
    before, before_at, before_flags = _images(rows["before"], header_units)
    after, after_at, after_flags = _images(rows["after"], int(before_at[-1]))
    numbers = [
        rows["ts_ms"].to_numpy(zero_copy_only=False).astype(np.float64),
        rows["schema_sequence"].fill_null(-1).to_numpy(zero_copy_only=False).astype(np.float64),
        before_at,
        after_at,
        head_codes,
        position_codes,
        rows["row"].to_numpy(zero_copy_only=False),
        tx_codes,
        version_codes,
        before_flags,
        after_flags,
        np.asarray(rows["tx_end"].cast(pa.uint8())),
        id_bytes(rows["event_id"]),
    ]
    size = 16 + sum(column.nbytes for column in numbers)
    control = np.array([rows.num_rows, header_units, each, size], np.int32)
    return ScriptInput(
        [np.ascontiguousarray(column).reshape(-1).view(np.uint8) for column in (control, *numbers)],
        [header, before, after],
    )


def image_bytes(rows: pa.RecordBatch) -> Any:
    """Return how many bytes of images each row has."""
    offsets = [parts_of(rows[name]).offsets for name in ("before", "after")]
    return sum(np.diff(part).astype(np.int64) for part in offsets)


def _heads(rows: pa.RecordBatch) -> tuple[list[list[str | None]], Any]:
    """Number the combinations of operation and table that occur."""
    codes, found = combinations([rows[name] for name in ("op", "db", "schema", "table")])
    heads = [[*head, full_name(head[1:])] for head in found]
    return heads, codes.astype(np.int32)


def _coded(column: pa.DictionaryArray) -> tuple[list[Any], Any]:
    return column.dictionary.to_pylist(), _codes(column)


def _codes(column: pa.DictionaryArray) -> Any:
    codes = column.indices
    if codes.null_count:
        codes = codes.fill_null(-1)
    return codes.to_numpy(zero_copy_only=False).astype(np.int32, copy=False)


def _rare(column: pa.Array) -> list[Any] | None:
    """Return a column that is mostly empty as values; None if it is empty altogether."""
    if column.null_count == len(column):
        return None
    values: list[Any] = column.to_pylist()
    if pa.types.is_binary(column.type):
        return [None if value is None else value.decode() for value in values]
    return values


def _routing(column: pa.StructArray) -> Sequence[Any] | None:
    values = _rare(column)
    if values is None:
        return None
    return [
        route and {**route, "headers": None if route["headers"] is None else dict(route["headers"])}
        for route in values
    ]


def _images(column: pa.BinaryArray, start: int) -> tuple[Any, Any, Any]:
    """Return the texts, where each begins as JavaScript counts, and what they hold."""
    data, offsets, _ = parts_of(column)
    flags = image_flags(data, offsets)
    texts = data[offsets[0] : offsets[-1]]
    ascii_only = not len(texts) or texts.max() < _BEYOND_ASCII
    units = offsets - offsets[0] if ascii_only else utf16_offsets(data, offsets)
    return texts, (units + start).astype(np.int32), flags
