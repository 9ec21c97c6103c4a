"""The tree of a sensed schema: how values are merged into it, and fields become a map's keys.

The tree is bounded: so many places altogether, so many fields of an object, so many elements of an
array that are looked at, so many values of enumerations.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_deltaforge.sensing.dynamic_keys import KeyClassifier
from airflow_provider_deltaforge.sensing.paths import DYNAMIC_KEY, ELEMENT_KEY, Path
from airflow_provider_deltaforge.sensing.structures import ELEMENTS_MAX
from airflow_provider_deltaforge.spec.sensing import SchemaSensing
from airflow_provider_deltaforge.storage.records.sensing import JSON_TYPES, SensedValue

_FIELDS_MAX = 1000  # Of one object.
_PLACES_MAX = 5000
_NAME_CHARS = 64  # A name that is so much longer counts as a place more.
_NAME_CHARS_MAX = 256
_COUNTED_MAX = 1000  # Of one structure.
_VALUE_CHARS_MAX = 64
_VALUES_MAX = 5000  # Of all enumerations together.
_KINDS = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
}


@dataclass(slots=True)
class Reading:
    """What one value added."""

    late: bool
    """The warm-up was over."""
    places: list[tuple[SensedValue, bool]] = field(default_factory=list)
    """Those that are reached by names alone, and whether null stands there."""
    added: list[Path] = field(default_factory=list)
    changed: list[Path] = field(default_factory=list)
    is_drift: bool = False
    """It has fields or types that the warm-up did not see."""


@dataclass(frozen=True, slots=True)
class _Here:
    """Where a value is merged."""

    place: SensedValue
    path: Path
    counted: bool = True
    """The place is reached by names alone."""
    pending: bool = False
    """It is, or lies in, what may be the key of a map."""

    def at(self, place: SensedValue, key: str, *, counted: bool) -> "_Here":
        """Return a place inside this one."""
        pending = self.pending or place.pending
        return _Here(place, (*self.path, key), counted and self.counted, pending)


class SchemaTree:
    """Merges values into a root. Used by one thread at a time.

    Args:
        settings: ``spec.schema_sensing``.
        root: what was seen so far; it is changed in place.
        classifier: finds what judges the keys of the objects at a place; None if nobody does.
    """

    def __init__(
        self,
        settings: SchemaSensing,
        root: SensedValue,
        classifier: Callable[[Path], KeyClassifier | None],
    ) -> None:
        self._tracking = settings.tracking
        self._pending_from = settings.high_cardinality.min_dynamic_fields
        self._classifier = classifier
        self.root = root
        self.depth = settings.deep_inspect.max_depth if settings.deep_inspect.enabled else 0
        """Levels below the first that are looked into."""
        self.columns: frozenset[str] = frozenset()
        """Keys of the outermost object that are fields, however rare they are."""
        self.opaque: frozenset[str] = frozenset()
        """Those of them whose values are not looked into."""
        self._places, self._values = _sizes(root)

    def read(self, value: Any, *, late: bool) -> Reading:
        """Merge a value, as its parser returned it."""
        reading = Reading(late)
        self._visit(_Here(self.root, ()), value, reading)
        return reading

    def fixed(self, path: Path) -> frozenset[str]:
        """Return the keys of the objects at a place that are fields, however rare they are."""
        return frozenset() if path else self.columns

    def apply(self, keys: KeyClassifier) -> None:
        """Make the fields of a place what its keys were judged to be."""
        place = _at(self.root, keys.path)
        if place is None or keys.is_undecided:
            return
        for inner in place.fields.values():
            inner.pending = False
        if not keys.is_map:
            place.dynamic = None  # Its keys become fields as they come.
            return
        fixed = keys.stable | self.fixed(keys.path)
        for name in [name for name in place.fields if name not in fixed]:
            folded = place.fields.pop(name)
            folded.optional = folded.pending = False
            _forget_counts(folded)
            place.dynamic = folded if place.dynamic is None else _merge(place.dynamic, folded)
        place.is_cut = False
        self._places, self._values = _sizes(self.root)

    def _visit(self, here: _Here, value: Any, reading: Reading) -> None:
        """Merge a value into a place."""
        place, kind = here.place, _kind_of(value)
        is_first = kind not in place.types
        if is_first:
            _add_type(here, kind, reading)
        reading.is_drift |= (place.late or kind in place.late_types) and not here.pending
        if here.counted and len(reading.places) < _COUNTED_MAX:
            reading.places.append((place, kind == "null"))
        if kind == "string":
            self._see_text(place, value)
        elif kind in ("integer", "number"):
            self._see_number(place, value)
        elif self._looks_into(here.path):
            if kind == "object":
                self._visit_object(here, value, reading, is_first=is_first)
            elif kind == "array" and value:
                inner = here.at(self._elements(place), ELEMENT_KEY, counted=False)
                for element in value[:ELEMENTS_MAX]:
                    self._visit(inner, element, reading)

    def _visit_object(
        self, here: _Here, value: dict[str, Any], reading: Reading, *, is_first: bool
    ) -> None:
        place, path = here.place, here.path
        keys, fixed = self._classifier(path), self.fixed(path)
        if keys is not None:
            keys.see([name for name in value if name not in fixed])
        for name, inner in place.fields.items():
            if not inner.optional and name not in value:
                inner.optional, inner.late_optional = True, reading.late
                if not here.pending and not inner.pending:
                    reading.changed.append((*path, name))
        is_map = keys is not None and keys.is_map
        for name, item in value.items():
            known = place.fields.get(name)
            if known is None and is_map and name not in fixed and not _is_stable(keys, name):
                inner_map = here.at(self._dynamic(place, reading), DYNAMIC_KEY, counted=False)
                self._visit(inner_map, item, reading)
                continue
            if known is None:
                judges = None if is_first or name in fixed else keys
                known = self._add_field(here, name, judges, reading, is_first=is_first)
            if known is not None:
                self._visit(here.at(known, name, counted=True), item, reading)

    def _add_field(
        self,
        here: _Here,
        name: str,
        keys: KeyClassifier | None,
        reading: Reading,
        *,
        is_first: bool,
    ) -> SensedValue | None:
        """Return a new field; None if there are too many."""
        place = here.place
        is_full = len(place.fields) >= _FIELDS_MAX or self._places >= _PLACES_MAX
        if is_full or len(name) > _NAME_CHARS_MAX:
            place.is_cut = True
            return None
        added = place.fields[name] = SensedValue(optional=not is_first, late=reading.late)
        self._places += _weight(name)
        if keys is not None:
            keys.additions += 1
            added.pending = keys.is_undecided and keys.additions > self._pending_from
        if not here.pending and not added.pending:
            reading.added.append((*here.path, name))
        return added

    def _elements(self, place: SensedValue) -> SensedValue:
        if place.elements is None:
            place.elements = SensedValue()
            self._places += 1
        return place.elements

    def _dynamic(self, place: SensedValue, reading: Reading) -> SensedValue:
        if place.dynamic is None:
            place.dynamic = SensedValue(late=reading.late)
            self._places += 1
        return place.dynamic

    def _see_number(self, place: SensedValue, number: float) -> None:
        if self._tracking.field_statistics:
            place.minimum = _of_both(min, place.minimum, number)
            place.maximum = _of_both(max, place.maximum, number)

    def _see_text(self, place: SensedValue, text: str) -> None:
        if self._tracking.field_statistics:
            place.shortest = _of_both(min, place.shortest, len(text))
            place.longest = _of_both(max, place.longest, len(text))
        values = place.values
        if values is None or not self._tracking.enum_detection:
            return
        if text in values:
            values[text] += 1
            return
        is_full = len(values) >= self._tracking.enum_max_cardinality or self._values >= _VALUES_MAX
        if is_full or len(text) > _VALUE_CHARS_MAX:
            self._values -= len(values)
            place.values = None
        else:
            values[text] = 1
            self._values += 1

    def _looks_into(self, path: Path) -> bool:
        return len(path) <= self.depth and not (len(path) == 1 and path[0] in self.opaque)


def _kind_of(value: Any) -> str:
    """Return which of ``JSON_TYPES`` a parsed value is."""
    kind = _KINDS.get(type(value))
    if kind is not None:
        return kind
    is_bytes = len(value) == 1 and isinstance(value.get("_base64"), str)
    return "bytes" if is_bytes else "object"


def _is_stable(keys: KeyClassifier | None, name: str) -> bool:
    return keys is not None and name in keys.stable


def _add_type(here: _Here, kind: str, reading: Reading) -> None:
    place = here.place
    if place.types:
        if not here.pending:
            reading.changed.append(here.path)
        if reading.late:
            place.late_types.append(kind)
    place.types.append(kind)
    place.types.sort(key=JSON_TYPES.index)


def _at(root: SensedValue, path: Path) -> SensedValue | None:
    """Return the place at a path, if it is there."""
    place: SensedValue | None = root
    for key in path:
        if place is None:
            return None
        if key == DYNAMIC_KEY:
            place = place.dynamic
        else:
            place = place.elements if key == ELEMENT_KEY else place.fields.get(key)
    return place


def _merge(into: SensedValue, other: SensedValue) -> SensedValue:
    """Add what was seen at one place to another one, which nobody counts."""
    had_objects = "object" in into.types
    into.types = sorted({*into.types, *other.types}, key=JSON_TYPES.index)
    into.late &= other.late
    into.late_types = sorted({*into.late_types, *other.late_types}, key=JSON_TYPES.index)
    into.is_cut |= other.is_cut
    into.minimum = _of_both(min, into.minimum, other.minimum)
    into.maximum = _of_both(max, into.maximum, other.maximum)
    into.shortest = _of_both(min, into.shortest, other.shortest)
    into.longest = _of_both(max, into.longest, other.longest)
    into.values = None
    if "object" in other.types:
        for name, inner in into.fields.items():
            inner.optional |= name not in other.fields
        for name, inner in other.fields.items():
            if name in into.fields:
                optional = into.fields[name].optional or inner.optional
                _merge(into.fields[name], inner).optional = optional
            elif len(into.fields) < _FIELDS_MAX:
                into.fields[name] = inner
                inner.optional |= had_objects
    into.dynamic = _of_both(_merged, into.dynamic, other.dynamic)
    into.elements = _of_both(_merged, into.elements, other.elements)
    return into


def _merged(both: list[SensedValue]) -> SensedValue:
    return _merge(*both) if len(both) > 1 else both[0]


def _of_both(choose: Callable[[list[Any]], Any], left: Any, right: Any) -> Any:
    known = [value for value in (left, right) if value is not None]
    return choose(known) if known else None


def _forget_counts(place: SensedValue) -> None:
    """Forget how often places were seen that nobody counts any more."""
    place.seen = place.nulls = 0
    for inner in _inside(place):
        _forget_counts(inner)


def _inside(place: SensedValue) -> list[SensedValue]:
    others = [inner for inner in (place.dynamic, place.elements) if inner is not None]
    return [*place.fields.values(), *others]


def _sizes(place: SensedValue) -> tuple[int, int]:
    """Return how many places there are, long names counted more, and values of enumerations."""
    inside = [_sizes(inner) for inner in _inside(place)]
    places, values = (sum(size[which] for size in inside) for which in (0, 1))
    names = sum(_weight(name) - 1 for name in place.fields)
    return 1 + names + places, len(place.values or ()) + values


def _weight(name: str) -> int:
    return 1 + len(name) // _NAME_CHARS
