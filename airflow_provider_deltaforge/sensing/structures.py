"""Numbers for the structures of JSON texts; see ``structure_kernel``."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns.binary_columns import parts_of
from airflow_provider_deltaforge.columns.json_scan_kernel import stack_for
from airflow_provider_deltaforge.sensing import structure_kernel
from airflow_provider_deltaforge.sensing.paths import DYNAMIC_KEY, ELEMENT_KEY, Path

DEPTH_MAX = structure_kernel.DEPTH_MAX
ELEMENTS_MAX = structure_kernel.ELEMENTS_MAX
_NONE = np.zeros(0, np.uint64)
_NONE.setflags(write=False)


class StructureNumbers:
    """Numbers structures alike that differ only in the keys of maps.

    Args:
        depth: levels below the first that are looked into.
        opaque: keys of the outermost object whose values are not looked into.
        maps: by the path of each map, those of its keys that are fields.
    """

    def __init__(
        self,
        depth: int,
        opaque: Collection[str] = (),
        maps: Mapping[Path, Collection[str]] | None = None,
    ) -> None:
        maps = maps or {}
        self._depth = depth
        self._opaque = _sorted(_key(name) for name in opaque)
        self._maps = _sorted(map(_place, maps))
        self._stable = _sorted(_place((*path, key)) for path, keys in maps.items() for key in keys)

    def of(self, texts: pa.BinaryArray) -> Any:
        """Return uint64 per text, of which none is null; 0 for what is not JSON."""
        parts = parts_of(texts)
        out = np.empty(len(texts), np.uint64)
        structure_kernel.fill_structures(
            parts.data,
            parts.offsets,
            self._depth,
            self._opaque,
            self._maps,
            self._stable,
            stack_for(parts.offsets[:-1], parts.offsets[1:]),
            np.empty((3 + structure_kernel.DISTINCT) * structure_kernel.FRAMES, np.uint64),
            np.empty(4 * structure_kernel.FRAMES, np.int64),
            out,
        )
        return out


def precompile() -> None:
    """Compile the kernels, or load them from the cache, before rows are waiting."""
    StructureNumbers(1, ["a"], {("a",): ["b"]}).of(pa.array([b'{"a":[1,{"b":2}]}'], pa.binary()))


def _place(path: Sequence[str]) -> Any:
    place = structure_kernel.ROOT
    for key in path:
        if key == DYNAMIC_KEY:
            step = structure_kernel.DYNAMIC
        else:
            step = structure_kernel.ELEMENT if key == ELEMENT_KEY else _key(key)
        # A kernel returns a plain int, which it would take for another type when given it.
        place = np.uint64(structure_kernel.mixed(place, step))
    return place


def _key(name: str) -> Any:
    data = _bytes(name)
    return np.uint64(structure_kernel.key_number(data, 0, len(data)))


def _bytes(name: str) -> Any:
    data = np.frombuffer(name.encode(errors="surrogatepass") or b"\0", np.uint8)
    return data if name else data[:0]


def _sorted(numbers: Iterable[Any]) -> Any:
    found = np.array(sorted(numbers), np.uint64)
    if not len(found):
        return _NONE
    found.setflags(write=False)
    return found
