"""Which keys of an object are fields, and which are data: session ids, trace ids, dates.

An object with many keys that come in few of its instances is a map. Distinct keys, frequent keys
and examples are kept in sketches of bounded size.
"""

import math
from collections.abc import Iterable
from typing import Any

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.sensing.paths import Path
from airflow_provider_deltaforge.spec.sensing import HighCardinality
from airflow_provider_deltaforge.storage.records.sensing import SensedMap

_KEY_CHARS_MAX = 128
_SKETCH_FILL = 0.75  # A sketch of frequent keys holds as much of its nominal size.
_SKETCH_LG_MIN = 3


class KeyClassifier:
    """Judges the keys of the objects at one place.

    Args:
        path: the place.
        settings: ``spec.schema_sensing.high_cardinality``.
        known: what was known of it when it was stored.
    """

    def __init__(
        self, path: Path, settings: HighCardinality, known: SensedMap | None = None
    ) -> None:
        self._library = sketches()
        self._settings = settings
        self.path = path
        self.objects = 0
        """Objects that were looked at."""
        self.additions = 0
        """Fields that came behind those of the first object, or behind the last decision."""
        self.decided: str | None = None
        self.confidence = 0.0
        self.stable: frozenset[str] = frozenset()
        """Keys that are fields; known when that is decided."""
        self._keys = 0
        self._distinct, self._frequent = self._empty()
        self._examples = self._library.var_opt_sketch(settings.sample_size)
        self._next_decision = settings.min_events
        if known is not None:
            self._resume(known)

    @property
    def is_map(self) -> bool:
        """Return whether keys are data but for the stable ones."""
        return self.decided == "map"

    @property
    def is_undecided(self) -> bool:
        """Return whether too few objects were seen, or they allow no decision."""
        return self.decided is None

    @property
    def unique_keys(self) -> int:
        """Return an estimate of how many different keys there were."""
        estimate: float = self._distinct.get_estimate()
        return round(estimate)

    def see(self, keys: Iterable[str]) -> None:
        """Take note of one object's keys."""
        self.objects += 1
        for key in keys:
            text = _sketchable(key)
            self._keys += 1
            self._distinct.update(text)
            self._frequent.update(text)
            self._examples.update(text)

    def decide(self) -> bool:
        """Decide if that is due; return whether the keys are judged otherwise than before."""
        wanted = self._settings.min_dynamic_fields
        is_suspect = self.decided == "fields" and self.additions >= wanted
        if self.objects < self._next_decision and not is_suspect:
            return False
        self.additions = 0
        former = self.decided, self.stable
        self.decided, self.stable = self._judged()
        settings = self._settings
        wait = settings.min_events if self.is_undecided else settings.reevaluate_interval
        self._next_decision = self.objects + wait
        return former != (self.decided, self.stable)

    def record(self) -> SensedMap:
        """Return what is known, to be stored."""
        examples = sorted({text for text, _ in self._examples})
        return SensedMap(
            path=list(self.path),
            objects=self.objects,
            keys=self._keys,
            additions=self.additions,
            next_decision=self._next_decision,
            decided=self.decided,
            confidence=self.confidence,
            stable=sorted(self.stable),
            unique_keys=self.unique_keys,
            distinct=self._distinct.serialize_compact(),
            frequent=self._frequent.serialize(),
            examples=examples,
        )

    def _judged(self) -> tuple[str | None, frozenset[str]]:
        """Return what the object is, and the keys that are fields; None: not sure enough."""
        least = self._settings.stable_threshold * self.objects
        kind = self._library.frequent_items_error_type.NO_FALSE_NEGATIVES
        found = {
            key: min(1.0, count / self.objects)
            for key, count, *_ in self._frequent.get_frequent_items(kind)
            if count >= least
        }
        unique = self.unique_keys
        separation = 0.5
        if found:
            weakest = min(found.values())
            separation = (weakest - self._settings.stable_threshold) / weakest if weakest else 0.0
        share = min(1.0, self.objects / self._settings.min_events)
        self.confidence = 0.5 * math.sqrt(share) + 0.5 * separation
        # More fields than the sketch remembers look like rare keys, but come in most objects.
        are_usual = self._keys >= self._settings.stable_threshold * self.objects * unique
        if unique - len(found) < self._settings.min_dynamic_fields or are_usual:
            return "fields", frozenset()
        if self.confidence < self._settings.confidence_threshold:
            return None, frozenset()
        return "map", frozenset(found)

    def _empty(self) -> tuple[Any, Any]:
        size = math.ceil(self._settings.heavy_hitter_capacity / _SKETCH_FILL)
        lg_size = max(_SKETCH_LG_MIN, (size - 1).bit_length())
        kind = self._library.tgt_hll_type.HLL_4
        return (
            self._library.hll_sketch(self._settings.hll_precision, kind),
            self._library.frequent_strings_sketch(lg_size),
        )

    def _resume(self, known: SensedMap) -> None:
        self.objects, self._keys = known.objects, known.keys
        self.decided, self.confidence = known.decided, known.confidence
        self.stable = frozenset(known.stable)
        self.additions, self._next_decision = known.additions, known.next_decision
        distinct = self._library.hll_sketch.deserialize(known.distinct)
        frequent = self._library.frequent_strings_sketch.deserialize(known.frequent)
        if distinct.lg_config_k == self._settings.hll_precision:
            self._distinct = distinct
        else:  # The document asks for another precision since.
            union = self._library.hll_union(self._settings.hll_precision)
            union.update(distinct)
            self._distinct = union.get_result(self._library.tgt_hll_type.HLL_4)
        self._frequent.merge(frequent)
        for text in known.examples[: self._settings.sample_size]:
            self._examples.update(text)


def sketches() -> Any:
    """Return the library of sketches.

    Raises:
        SpecError: it is not installed.
    """
    try:
        import datasketches
    except ImportError as error:
        raise SpecError(
            "spec.schema_sensing.high_cardinality.enabled needs Apache DataSketches: "
            "pip install 'airflow-provider-deltaforge[sensing]'"
        ) from error
    return datasketches


def _sketchable(key: str) -> str:
    return key[:_KEY_CHARS_MAX].encode(errors="replace").decode()
