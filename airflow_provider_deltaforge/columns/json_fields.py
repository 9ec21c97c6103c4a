"""Fields of JSON texts, found and changed in whole columns, without building objects.

Texts are whatever a database holds as JSON: white space, escapes and repeated keys included. Of
equal keys the last one counts, as in PostgreSQL's ``jsonb`` and in most parsers. A text that is not
JSON has no fields.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns import (
    json_column_kernel,
    json_scan_kernel,
    json_splice_kernel,
)
from airflow_provider_deltaforge.columns.binary_columns import column_of, parts_of

ABSENT = json_scan_kernel.ABSENT
NULL = json_scan_kernel.NULL
BOOL = json_scan_kernel.BOOL
NUMBER = json_scan_kernel.NUMBER
STRING = json_scan_kernel.STRING
OBJECT = json_scan_kernel.OBJECT
ARRAY = json_scan_kernel.ARRAY

_ASCII_END = 0x80


class Spans(NamedTuple):
    """Where one value per row lies in the data buffer of the column it was found in.

    Attributes:
        starts: int64 per row, -1 where there is none.
        stops: int64 per row, behind the value's last byte; -1 where there is none.
    """

    starts: Any
    stops: Any


def locate(texts: pa.BinaryArray, path: Sequence[str]) -> Spans:
    """Find the value at a path of keys, from the text's object inward; no key is the whole text."""
    return locate_each(texts, [path])[0]


def locate_each(texts: pa.BinaryArray, paths: Sequence[Sequence[str]]) -> list[Spans]:
    """Find the values at several paths, in one reading of the texts."""
    if not paths:
        return []
    names = [name.encode() for path in paths for name in path]
    starts = np.empty((len(paths), len(texts)), np.int64)
    stops = np.empty_like(starts)
    parts = parts_of(texts)
    json_column_kernel.locate(
        *parts,
        _fixed(np.frombuffer(b"".join(names) or b"\0", np.uint8)),
        _fixed(np.cumsum([len(name) for name in names] or [0], dtype=np.int64)),
        _fixed(np.cumsum([len(path) for path in paths], dtype=np.int64)),
        json_scan_kernel.stack_for(parts.offsets[:-1], parts.offsets[1:]),
        starts,
        stops,
    )
    return [Spans(starts[i], stops[i]) for i in range(len(paths))]


def kinds(texts: pa.BinaryArray, spans: Spans) -> Any:
    """Return uint8 per row: ``ABSENT``, ``NULL``, ``BOOL``, ``NUMBER`` and so on."""
    out = np.empty(len(texts), np.uint8)
    json_column_kernel.fill_kinds(parts_of(texts).data, spans.starts, out)
    return out


def values(texts: pa.BinaryArray, spans: Spans) -> pa.BinaryArray:
    """Return the JSON text of each value, null where there is none."""
    found = spans.starts >= 0
    data = np.empty(_room(spans), np.uint8)
    offsets = np.empty(len(texts) + 1, np.int32)
    json_column_kernel.copy_values(parts_of(texts).data, spans.starts, spans.stops, data, offsets)
    return column_of(data, offsets, found)


def as_text(texts: pa.BinaryArray) -> pa.StringArray:
    """Return JSON values as text: a string without quotes and escapes, all else as it stands.

    JSON's null becomes null, as does what is not JSON.
    """
    parts = parts_of(texts)
    spans = Spans(parts.offsets[:-1].astype(np.int64), parts.offsets[1:].astype(np.int64))
    if len(parts.present):
        for places in spans:
            places[~parts.present] = -1
    return text_values(texts, spans)


def text_values(texts: pa.BinaryArray, spans: Spans) -> pa.StringArray:
    """Return each value as ``as_text`` would, null where there is none."""
    data = np.empty(_room(spans), np.uint8)
    offsets = np.empty(len(texts) + 1, np.int32)
    present = np.empty(len(texts), np.bool_)
    used = json_column_kernel.decode_texts(parts_of(texts).data, *spans, data, offsets, present)
    decoded = column_of(data[:used], offsets, present)
    if not used or data[:used].max() < _ASCII_END:
        return pa.StringArray.from_buffers(
            len(decoded), *decoded.buffers()[1:], decoded.buffers()[0]
        )
    try:
        return decoded.cast(pa.utf8())
    except pa.ArrowInvalid:  # Bytes that are not UTF-8.
        repaired = [
            None if text is None else text.decode(errors="replace") for text in decoded.to_pylist()
        ]
        return pa.array(repaired, pa.utf8())


def compact(texts: pa.BinaryArray) -> pa.BinaryArray:
    """Return JSON texts without white space between their parts."""
    parts = parts_of(texts)
    data, offsets = np.empty(_bytes_of(parts), np.uint8), np.empty(len(texts) + 1, np.int32)
    used = json_splice_kernel.drop_space(parts.data, parts.offsets, data, offsets)
    return column_of(data[:used], offsets, parts.present)


def replaced(
    texts: pa.BinaryArray, replacements: Sequence[tuple[Spans, pa.BinaryArray]]
) -> pa.BinaryArray:
    """Return the texts with values replaced by others; a key's earlier values stay.

    Args:
        texts: the column.
        replacements: for each path its places and, per row, the JSON text to put there; null keeps
            the value. Of a value inside another one that is replaced nothing is left.
    """
    if not replacements:
        return texts
    parts = parts_of(texts)
    new = pa.concat_arrays([column for _, column in replacements])
    fresh = parts_of(new)
    kept = ~np.stack([np.asarray(column.is_valid()) for _, column in replacements])
    starts = np.stack([spans.starts for spans, _ in replacements])
    starts[kept] = -1
    stops = np.stack([spans.stops for spans, _ in replacements])
    room = _bytes_of(parts) + _bytes_of(fresh)
    data, offsets = np.empty(room, np.uint8), np.empty(len(texts) + 1, np.int32)
    used = json_splice_kernel.splice(
        parts.data, parts.offsets, starts, stops, fresh.data, fresh.offsets, data, offsets
    )
    return column_of(data[:used], offsets, parts.present)


def without(texts: pa.BinaryArray, removals: Sequence[Spans]) -> pa.BinaryArray:
    """Return the texts without the given members of their objects; a key's earlier ones stay."""
    if not removals:
        return texts
    parts = parts_of(texts)
    starts = np.stack([spans.starts for spans in removals])
    stops = np.stack([spans.stops for spans in removals])
    data, offsets = np.empty(_bytes_of(parts), np.uint8), np.empty(len(texts) + 1, np.int32)
    used = json_splice_kernel.remove(parts.data, parts.offsets, starts, stops, data, offsets)
    return column_of(data[:used], offsets, parts.present)


def precompile() -> None:
    """Compile the kernels, or load them from the cache, before rows are waiting."""
    texts = pa.array([b'{"a":"1"}'], pa.binary())
    spans = locate(texts, ["a"])
    kinds(texts, spans)
    values(texts, spans)
    as_text(texts)
    compact(texts)
    replaced(texts, [(spans, texts)])
    without(texts, [spans])


def _room(spans: Spans) -> int:
    """Return how many bytes the values take together, or a little more."""
    return max(0, int(spans.stops.sum() - spans.starts.sum()))


def _bytes_of(parts: Any) -> int:
    return int(parts.offsets[-1]) - int(parts.offsets[0])


def _fixed(array: Any) -> Any:
    array.setflags(write=False)
    return array
