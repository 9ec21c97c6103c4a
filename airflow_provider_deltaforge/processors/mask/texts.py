"""Texts whose values at some paths are to be masked."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns.binary_columns import column_of, parts_of
from airflow_provider_deltaforge.columns.json_column_kernel import copy_values
from airflow_provider_deltaforge.columns.json_scan_kernel import DEPTH_MAX, stack_for
from airflow_provider_deltaforge.processors.mask import mask_kernel
from airflow_provider_deltaforge.processors.mask.patterns import Part, folds
from airflow_provider_deltaforge.processors.mask.patterns import parts_of as parts_of_pattern


class Found(NamedTuple):
    """Values in a column of JSON texts, in the order of the text.

    Attributes:
        rows: int64, the row of each.
        starts: int64, where each begins in the column's buffer.
        stops: int64, where each ends.
        which: int64, the path that led to it. Below 0: text in which paths may go on; see ``keys``.
        deeper: bool (values, paths), which paths those are.
        faults: uint8 per row of the column: 0, ``BROKEN`` or ``DEEP`` of the kernels.
    """

    rows: Any
    starts: Any
    stops: Any
    which: Any
    deeper: Any
    faults: Any

    @property
    def keys(self) -> Any:
        """How many keys led to each text in which paths may go on; below 0 for other values."""
        return mask_kernel.NONE - 1 - self.which


@dataclass(frozen=True)
class Paths:
    """Paths of patterns for keys, ready for the kernel.

    Attributes:
        paths: of each rule's columns.
    """

    paths: tuple[tuple[Part, ...], ...]

    def find(self, texts: pa.BinaryArray, sets: Any, members: Sequence[Sequence[int]]) -> Found:
        """Find the values.

        Args:
            texts: the column.
            sets: int32 per row, which of ``members`` is looked for; -1 for none.
            members: sets of paths by their ordinals, first those that count first.
        """
        parts = parts_of(texts)
        firsts = np.array([0, *np.cumsum([len(paths) for paths in members])], np.int64)
        flat = np.array([path for paths in members for path in paths] or [0], np.int64)
        faults = np.zeros(len(texts), np.uint8)
        widest = max(map(len, members), default=1)
        space = mask_kernel.Space(
            stack=stack_for(parts.offsets[:-1], parts.offsets[1:]),
            key=np.empty(int(np.diff(parts.offsets).max(initial=1)), np.uint8),
            active=np.empty((DEPTH_MAX + 1, widest), np.bool_),
            level=np.empty(DEPTH_MAX + 1, np.int64),
            is_object=np.empty(DEPTH_MAX + 1, np.bool_),
            fresh=np.empty(DEPTH_MAX + 1, np.bool_),
            folds=folds(),
        )
        room = max(64, len(texts) * widest)
        while True:
            found = np.empty((room, 4), np.int64)
            deeper = np.empty((room, len(self.paths)), np.bool_)
            count = mask_kernel.find(
                *parts, sets, firsts, flat, *self._arrays, space, found, deeper, faults
            )
            if count <= room:
                rows, starts, stops, which = found[:count].T.copy()
                return Found(rows, starts, stops, which, deeper[:count], faults)
            room = count

    def below(self, keys: int) -> "Paths":
        """Return what is left of the paths behind so many keys, under the same ordinals."""
        return Paths(tuple(path[keys:] for path in self.paths))

    @cached_property
    def _arrays(self) -> tuple[Any, Any, Any]:
        names = [name for path in self.paths for name in path]
        paths = np.array([0, *np.cumsum([len(path) for path in self.paths])], np.int64)
        ends = np.cumsum([len(name) for name in names], dtype=np.int64)
        return paths, ends, np.array([code for name in names for code in name] or [0], np.int32)


def values(texts: pa.BinaryArray, found: Found) -> pa.BinaryArray:
    """Return the JSON text of every value that was found."""
    data = np.empty(int((found.stops - found.starts).sum()), np.uint8)
    offsets = np.empty(len(found.rows) + 1, np.int32)
    copy_values(parts_of(texts).data, found.starts, found.stops, data, offsets)
    return column_of(data, offsets)


def replaced(texts: pa.BinaryArray, found: Found, new: pa.BinaryArray) -> pa.BinaryArray:
    """Return the texts with other values, as JSON text, in the places of those found."""
    parts, fresh = parts_of(texts), parts_of(new)
    room = int(parts.offsets[-1] - parts.offsets[0]) + int(fresh.offsets[-1] - fresh.offsets[0])
    data, offsets = np.empty(room, np.uint8), np.empty(len(texts) + 1, np.int32)
    used = mask_kernel.put(
        parts.data, parts.offsets, found.rows, found.starts, found.stops,
        fresh.data, fresh.offsets, data, offsets,
    )  # fmt: skip
    return column_of(data[:used], offsets, parts.present)


def precompile() -> None:
    """Compile the kernels, or load them from the cache, before rows are waiting."""
    column = pa.array([b'{"a":"1"}'], pa.binary())
    found = Paths(((parts_of_pattern("a")),)).find(column, np.zeros(1, np.int32), [(0,)])
    replaced(column, found, values(column, found))
