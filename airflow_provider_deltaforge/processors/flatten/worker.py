"""Flattening at work: both row images of a batch, each as one column of JSON texts."""

import json
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns.binary_columns import column_of, parts_of
from airflow_provider_deltaforge.columns.json_scan_kernel import DEPTH_MAX, stack_for
from airflow_provider_deltaforge.errors import EventError
from airflow_provider_deltaforge.processors.contract import Processed, rejected
from airflow_provider_deltaforge.processors.flatten import (
    entry_kernel,
    flatten_kernel,
    reading_kernel,
)
from airflow_provider_deltaforge.processors.flatten.settings import Flatten

_POLICIES = {
    "preserve": reading_kernel.PRESERVE,
    "drop": reading_kernel.DROP,
    "null": reading_kernel.SET_NULL,
}
_WINNERS = {
    "last": entry_kernel.LAST,
    "first": entry_kernel.FIRST,
    "error": entry_kernel.ERROR,
}
_NAME_CHARS_MAX = 200
_TOO_DEEP = (
    f"flatten: nested more than {DEPTH_MAX:,} deep; max_depth keeps what is deeper as it stands"
)


class FlattenWorker:
    """Writes the row images flat. Events without images pass as they are."""

    def __init__(self, settings: Flatten) -> None:
        options = np.empty(reading_kernel.OPTION_COUNT, np.int64)
        depth = settings.max_depth
        options[reading_kernel.MAX_DEPTH] = -1 if depth is None else min(depth, DEPTH_MAX)
        options[reading_kernel.LISTS] = settings.lists == "index"
        options[reading_kernel.EMPTY_OBJECT] = _POLICIES[settings.empty_object]
        options[reading_kernel.EMPTY_LIST] = _POLICIES[settings.empty_list]
        options[reading_kernel.COLLISION] = _WINNERS[settings.on_collision]
        self._options = options
        separator = json.dumps(settings.separator, ensure_ascii=False)[1:-1]
        self._separator = np.frombuffer(separator.encode(), np.uint8)
        self._flat(pa.array([b'{"a":{"b":1}}'], pa.binary()), {})  # Compiled before rows wait.

    def process(self, rows: pa.RecordBatch) -> Processed:
        """Flatten both images of every event.

        Raises:
            EventError: flat, the images would take more than a batch can hold.
        """
        bad: dict[int, str] = {}
        for name in ("before", "after"):
            texts = self._flat(rows.column(name), bad)
            if texts is not None:
                rows = rows.set_column(
                    rows.schema.get_field_index(name), rows.schema.field(name), texts
                )
        if not bad:
            return Processed(rows)
        kept = np.setdiff1d(np.arange(rows.num_rows, dtype=np.int32), list(bad))
        origins = pa.array(kept, pa.int32())
        rejections = [rejected(row, bad[row]) for row in sorted(bad)]
        return Processed(rows.take(origins), origins, rejections=rejections)

    def close(self) -> None:
        """Nothing is open."""

    def _flat(self, texts: pa.BinaryArray, bad: dict[int, str]) -> pa.BinaryArray | None:
        """Return the flat texts, or None if all are flat; add what is wrong with rows."""
        if texts.null_count == len(texts):
            return None
        parts = parts_of(texts)
        offsets = np.empty(len(texts) + 1, np.int32)
        faults = np.empty(len(texts), np.uint8)
        stack = stack_for(parts.offsets[:-1], parts.offsets[1:])
        frames = np.empty(DEPTH_MAX * reading_kernel.FRAME, np.int64)
        data, used, changed = flatten_kernel.flatten(
            *parts, self._options, self._separator, stack, frames, offsets, faults
        )
        if used < 0:
            raise EventError(
                "flatten: the flat images of one batch would take more than 2 GiB; limit their "
                "depth with max_depth, or keep arrays whole with lists: preserve"
            )
        if not changed:
            return None
        for row in np.flatnonzero(faults).tolist():
            text = data[offsets[row] : offsets[row + 1]]
            bad.setdefault(row, _TOO_DEEP if faults[row] == flatten_kernel.DEEP else _met(text))
        return column_of(data[:used], offsets, parts.present)


def _met(text: Any) -> str:
    key = str(json.loads(f'"{text.tobytes().decode(errors="replace")}"'))[:_NAME_CHARS_MAX]
    return f"flatten: key collision on {key!r}; on_collision can let one of them win"
