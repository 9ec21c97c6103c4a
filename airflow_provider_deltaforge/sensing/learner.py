"""Learns one schema, of a table's rows or of a JSON column, from texts that are looked at.

Texts are numbered by structure before any is parsed. One of each new structure is parsed and
merged; of the others it is counted only that they came. The first thousand, and one in twenty
behind them, are parsed as well, for the keys of maps and for enumerations.
"""

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import orjson
import pyarrow as pa

from airflow_provider_deltaforge.sensing.dynamic_keys import KeyClassifier
from airflow_provider_deltaforge.sensing.fingerprint import fingerprint
from airflow_provider_deltaforge.sensing.paths import DYNAMIC_KEY, ELEMENT_KEY, Path, shown
from airflow_provider_deltaforge.sensing.schema_tree import Reading, SchemaTree
from airflow_provider_deltaforge.sensing.structures import StructureNumbers
from airflow_provider_deltaforge.spec.sensing import SchemaSensing
from airflow_provider_deltaforge.storage.records.sensing import Evolution, SensedTable, SensedValue

_SLICE = 128
_READ_FIRST = 1000
_READ_RATE = 20
_MAPS_MAX = 64
_SKETCH_BYTES = 2 << 20
_EVOLUTIONS_MAX = 50
_PATHS_SHOWN = 20
_PATH_CHARS_MAX = 500

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Structure:
    """A structure that was merged."""

    places: list[tuple[SensedValue, bool]] = field(default_factory=list)
    """See ``Reading.places``."""
    is_drift: bool = False
    is_readable: bool = True
    count: int = 0
    """How often it came since that was added to the places."""

    def settle(self) -> None:
        """Add the count to the places."""
        for place, is_null in self.places if self.count else ():
            place.seen += self.count
            place.nulls += self.count if is_null else 0
        self.count = 0


class SchemaLearner:
    """Holds one schema. Used by one thread at a time.

    Args:
        settings: ``spec.schema_sensing``.
        record: what is known; it is changed in place.
    """

    def __init__(self, settings: SchemaSensing, record: SensedTable) -> None:
        self.record = record
        self._settings = settings
        self._tree = SchemaTree(settings, record.root, self._classifier)
        self._cache: dict[int, _Structure] = {}
        self._classifiers: dict[Path, KeyClassifier] = {}
        if settings.high_cardinality.enabled:
            for known in record.maps:
                path = tuple(known.path)
                self._classifiers[path] = KeyClassifier(path, settings.high_cardinality, known)
        self._numbers = self._numbering()
        record.max_cache_size = settings.sampling.structure_cache_size
        record.stabilized = self.room == 0

    @property
    def room(self) -> int | None:
        """Return how many texts are still looked at; None: there is no limit."""
        wanted = self._settings.deep_inspect.max_sample_size
        return max(0, wanted - self.record.sampled) if wanted else None

    @property
    def dynamic_maps(self) -> int:
        """Return how many places are maps."""
        return sum(known.is_map for known in self._classifiers.values())

    def guide(self, columns: Collection[str], opaque: Collection[str]) -> None:
        """Take from the catalog what it knows of the outermost object.

        Args:
            columns: keys that are fields, however rare they are.
            opaque: those whose values are not looked into here.
        """
        guided = frozenset(columns), frozenset(opaque)
        if guided != (self._tree.columns, self._tree.opaque):
            self._tree.columns, self._tree.opaque = guided
            self._forget_structures()

    def learn(self, texts: pa.BinaryArray) -> None:
        """Look at JSON texts, none null, as many as there is room for."""
        room = self.room
        if room is not None:
            texts = texts.slice(0, room)
        warmup = max(1, self._settings.sampling.warmup_events)
        at = 0
        while at < len(texts):
            left = warmup - self.record.sampled
            count = min(_SLICE, len(texts) - at, left if left > 0 else _SLICE)
            self._learn(texts.slice(at, count), late=left <= 0)
            at += count
        self.record.stabilized = self.room == 0

    def stored(self) -> SensedTable:
        """Return the record with everything counted."""
        self._settle()
        self.record.maps = [known.record() for known in self._classifiers.values()]
        self.record.cached_structures = len(self._cache)
        return self.record

    def _learn(self, texts: pa.BinaryArray, *, late: bool) -> None:
        record = self.record
        numbers = self._numbers.of(texts)
        _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
        counts = np.bincount(inverse)
        read: set[int] = set()
        for row, count in sorted(zip(first.tolist(), counts.tolist(), strict=True)):
            known = self._cache.get(int(numbers[row]))
            if known is not None:
                record.cache_hits += count
                known.count += count
            elif numbers[row]:
                known = self._first(int(numbers[row]), texts[row].as_py(), count, late=late)
                read.add(row)
            if known is None or not known.is_readable:
                record.unreadable += count
            elif late and known.is_drift:
                record.drifted += count
        for row in self._due(len(texts)):
            if row not in read and numbers[row]:
                self._read(texts[row].as_py(), late=late)
        record.sampled += len(texts)
        record.sampled_late += len(texts) if late else 0
        self._decide(late=late)

    def _first(self, number: int, text: bytes, count: int, *, late: bool) -> _Structure:
        """Merge a structure that is not in the cache, and put it there if there is room."""
        record, sampling = self.record, self._settings.sampling
        structure = self._read(text, late=late)
        structure.count = count
        if sampling.structure_cache and len(self._cache) < sampling.structure_cache_size:
            self._cache[number] = structure
            record.cache_misses += 1
            record.cache_hits += count - 1
        else:
            structure.settle()
            record.cache_misses += count
        return structure

    def _due(self, count: int) -> range:
        """Return which texts are parsed though their structure may be known."""
        settings, start = self._settings, self.record.sampled
        everything = (
            settings.tracking.field_statistics
            or not settings.sampling.structure_cache
            or (settings.tracking.enum_detection and start < _READ_FIRST)
            or any(
                known.is_undecided and known.objects < settings.high_cardinality.min_events
                for known in self._classifiers.values()
            )
        )
        if everything:
            return range(count)
        if not self._classifiers and not settings.tracking.enum_detection:
            return range(0)
        return range(-start % _READ_RATE, count, _READ_RATE)

    def _read(self, text: bytes, *, late: bool) -> _Structure:
        """Parse a text and merge it."""
        try:
            value = orjson.loads(text)
        except ValueError:
            return _Structure(is_readable=False)
        reading = self._tree.read(value, late=late)
        self._evolve(reading)
        places = reading.places if self._settings.tracking.null_rates else []
        return _Structure(places, reading.is_drift)

    def _classifier(self, path: Path) -> KeyClassifier | None:
        """Return what judges the keys of the objects at a place; None if nobody does."""
        settings = self._settings.high_cardinality
        if not settings.enabled:
            return None
        known = self._classifiers.get(path)
        room = min(_MAPS_MAX, max(1, _SKETCH_BYTES >> settings.hll_precision))
        is_short = sum(map(len, path)) <= _PATH_CHARS_MAX
        if known is None and is_short and len(self._classifiers) < room:
            known = self._classifiers[path] = KeyClassifier(path, settings)
        return known

    def _decide(self, *, late: bool) -> None:
        """Judge keys anew where that is due, and change the schema accordingly."""
        maps = self._maps()
        changed = [known for known in self._classifiers.values() if known.decide()]
        if not changed:
            return
        self._settle()
        for known in changed:
            self._tree.apply(known)
            if known.is_map:
                self._forget_below(known)
        if self._maps() != maps:
            self._forget_structures()
        self._evolve(Reading(late, changed=[known.path for known in changed]))

    def _forget_below(self, keys: KeyClassifier) -> None:
        """What was judged below single keys of a map is judged below all of them from now on."""
        depth = len(keys.path)
        kept = {DYNAMIC_KEY, ELEMENT_KEY, *keys.stable, *self._tree.fixed(keys.path)}
        self._classifiers = {
            path: known
            for path, known in self._classifiers.items()
            if len(path) <= depth or path[:depth] != keys.path or path[depth] in kept
        }

    def _evolve(self, reading: Reading) -> None:
        """Take note of a schema that is another one than before."""
        record = self.record
        if record.sequence and not reading.added and not reading.changed:
            return
        former, found = record.fingerprint, fingerprint(record.root)
        if found == former:
            return
        record.fingerprint = found
        record.sequence += 1
        evolution = Evolution(
            sequence=record.sequence,
            fingerprint=found,
            at_ms=int(time.time() * 1000),
            is_late=reading.late and bool(former),
            added=_shown(reading.added) if former else [],
            changed=_shown(reading.changed),
        )
        record.evolutions = [*record.evolutions, evolution][-_EVOLUTIONS_MAX:]
        if former:
            fields = {"table": record.name, "sequence": record.sequence}
            fingerprints = {"fingerprint": found, "former_fingerprint": former}
            _log.info("sensed schema evolved", extra={**fields, **fingerprints})

    def _forget_structures(self) -> None:
        self._settle()
        self._cache.clear()
        self._numbers = self._numbering()

    def _numbering(self) -> StructureNumbers:
        return StructureNumbers(self._tree.depth, self._tree.opaque, self._maps())

    def _maps(self) -> dict[Path, frozenset[str]]:
        """Return the places of maps, and those of their keys that are fields."""
        return {
            known.path: known.stable | self._tree.fixed(known.path)
            for known in self._classifiers.values()
            if known.is_map
        }

    def _settle(self) -> None:
        for structure in self._cache.values():
            structure.settle()


def _shown(paths: Sequence[Path]) -> list[str]:
    return [shown(path)[:_PATH_CHARS_MAX] for path in paths[:_PATHS_SHOWN]]
