"""The gates of a filter at work: cheap ones first, and whole columns at a time."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_compare_kernel, json_fields
from airflow_provider_deltaforge.columns.binary_columns import parts_of
from airflow_provider_deltaforge.columns.json_compare_kernel import (
    DEEP,
    EQUAL,
    GREATER,
    LESS,
    OTHER,
)
from airflow_provider_deltaforge.columns.json_fields import ARRAY, NULL, OBJECT, STRING, Spans
from airflow_provider_deltaforge.columns.json_scan_kernel import stack_for
from airflow_provider_deltaforge.columns.value_codes import codes
from airflow_provider_deltaforge.processors.contract import Processed, rejected
from airflow_provider_deltaforge.processors.event_tables import Table, TablePatterns, belonging
from airflow_provider_deltaforge.processors.filter.settings import Condition, Filter, TableFilter

_OPS = {"create": "c", "update": "u", "delete": "d", "read": "r", "truncate": "t"}
_DDL = "ddl"
_TOO_DEEP = (
    "filter: a condition needs a value that is nested too deep to be compared; name a field inside "
    "it, or compare another column"
)

_NUMBERS_ONE_BY_ONE = 8


class RowImages:
    """The row images of a batch, and where the fields that conditions name lie in them."""

    def __init__(
        self, before: pa.BinaryArray, after: pa.BinaryArray, tests: Sequence["Test"]
    ) -> None:
        self.before = before
        self.after = after
        self.unread = np.zeros(len(after), np.bool_)
        """Rows whose value for the test at work is nested deeper than can be compared."""
        paths = [test.names for test in tests]
        self._found = dict(
            zip(map(tuple, paths), json_fields.locate_each(after, paths), strict=True)
        )

    def field(self, names: Sequence[str]) -> "TextColumn":
        """Return one field of the new images."""
        return TextColumn(self.after, self._found[tuple(names)], self.unread)


@dataclass(frozen=True)
class TextColumn:
    """One value per row, somewhere in a column of texts."""

    texts: pa.BinaryArray
    places: Spans
    unread: Any = None
    """Where ``parsed`` notes the rows that it cannot read."""

    @cached_property
    def data(self) -> Any:
        """The bytes the places count in."""
        return parts_of(self.texts).data

    @cached_property
    def unchanged(self) -> Any:
        """Whether the server did not send the value, because the change did not touch it."""
        out = np.empty(len(self.texts), np.bool_)
        json_compare_kernel.find_unchanged(self.data, *self.places, out)
        return out

    @cached_property
    def kinds(self) -> Any:
        """What each value is; a value that was not sent is absent."""
        return np.where(self.unchanged, 0, json_fields.kinds(self.texts, self.places))

    def only(self, rows: Any) -> "TextColumn":
        """Return the column with the values of the given rows (bool) only."""
        return TextColumn(self.texts, Spans(*(np.where(rows, place, -1) for place in self.places)))

    def order(self, constant: bytes) -> Any:
        """Compare each value with a constant's JSON text."""
        out = np.empty(len(self.texts), np.int8)
        wanted = np.frombuffer(constant, np.uint8)
        json_compare_kernel.compare_to(self.data, *self.places, wanted, out)
        return out

    def strings(self) -> pa.StringArray:
        """Return the values that are strings, decoded; null for the others."""
        return json_fields.text_values(self.texts, self.only(self.kinds == STRING).places)

    def parsed(self, rows: Any, verdict: Callable[[Any], bool]) -> Any:
        """Ask for a verdict on the parsed value of the given rows, once per distinct text."""
        if not rows.any():
            return rows
        distinct = self._values(rows).dictionary_encode()
        found = [_shallow(verdict, text) for text in distinct.dictionary.to_pylist()]
        codes = distinct.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)
        if None in found:
            self.unread[:] |= np.array([*(answer is None for answer in found), False])[codes]
        return np.array([*found, False], np.bool_)[codes]

    def _values(self, rows: Any) -> pa.BinaryArray:
        return json_fields.values(self.texts, self.only(rows).places)


@dataclass(frozen=True)
class Test:
    """One condition, ready to be asked.

    Attributes:
        names: the keys on the way to the field.
        verdict: gets the field and all images, returns a bool per row.
    """

    names: Sequence[str]
    verdict: Callable[[TextColumn, RowImages], Any]

    def holds(self, images: RowImages) -> tuple[Any, Any]:
        """Return a bool per row, and a bool per row: it is not known."""
        images.unread[:] = False
        found = self.verdict(images.field(self.names), images)
        return found, images.unread.copy()


def test_of(condition: Condition) -> Test:
    """Prepare one condition of the document."""
    names, value = condition.names, condition.value
    if condition.op == "changed":
        return Test(names, lambda field, images: _changed(field, images, names))
    made: Mapping[str, Callable[[], Callable[[TextColumn], Any]]] = {
        "exists": lambda: lambda field: (field.kinds > NULL) | field.unchanged,
        "not_exists": lambda: lambda field: (field.kinds <= NULL) & ~field.unchanged,
        "eq": lambda: _among([value]),
        "ne": lambda: _known_but(_among([value])),
        "in": lambda: _among(value),
        "not_in": lambda: _not(_among(value)),
        "gt": lambda: _ordered(value, GREATER),
        "gte": lambda: _ordered(value, GREATER, EQUAL),
        "lt": lambda: _ordered(value, LESS),
        "lte": lambda: _ordered(value, LESS, EQUAL),
        "contains": lambda: _containing(value),
        "regex": lambda: _matching(value),
    }
    verdict = made[condition.op]()
    return Test(names, lambda field, _images: verdict(field))


def _ordered(value: Any, *wanted: int) -> Callable[[TextColumn], Any]:
    constant = _text(value)
    passing = np.array([order in wanted for order in (EQUAL, GREATER, OTHER, DEEP, LESS)], np.bool_)
    # LESS, which is negative, stands at the end, where it is counted from.
    return lambda field: passing[field.order(constant)]


def _not(verdict: Callable[[TextColumn], Any]) -> Callable[[TextColumn], Any]:
    return lambda field: ~verdict(field)


def _known_but(verdict: Callable[[TextColumn], Any]) -> Callable[[TextColumn], Any]:
    return lambda field: (field.kinds >= NULL) & ~verdict(field)


def _among(constants: Sequence[Any]) -> Callable[[TextColumn], Any]:
    """Return what says whether a value equals one of several constants."""
    strings = [value for value in constants if isinstance(value, str)]
    deep = [value for value in constants if isinstance(value, list | dict)]
    scalars = [value for value in constants if not isinstance(value, str | list | dict)]
    texts = [_text(value) for value in scalars]
    if len(strings) == 1:
        texts.append(_text(strings.pop()))
    parsed = {_frozen(value) for value in deep}
    lowest = OBJECT
    if len(texts) > _NUMBERS_ONE_BY_ONE:
        parsed |= {_frozen(json.loads(text, parse_float=Decimal)) for text in texts}
        lowest, texts = NULL, []
    lookup = pa.array(strings, pa.utf8())

    def verdict(field: TextColumn) -> Any:
        found = np.zeros(len(field.texts), np.bool_)
        for text in texts:
            found |= field.order(text) == EQUAL
        if strings:
            found |= _flags(pc.is_in(field.strings(), lookup))
        if parsed:
            kinds = field.kinds
            asked = (kinds >= lowest) & (kinds != STRING)
            found |= field.parsed(asked, parsed.__contains__)
        return found

    return verdict


def _containing(value: Any) -> Callable[[TextColumn], Any]:
    """Return what looks for text in text, and for elements in arrays."""
    if isinstance(value, list | dict):
        wanted = _frozen(value)
        return lambda field: field.parsed(
            field.kinds == ARRAY, lambda array: array[0] == "array" and wanted in array[1]
        )
    constant = np.frombuffer(_text(value), np.uint8)

    def verdict(field: TextColumn) -> Any:
        found = np.empty(len(field.texts), np.bool_)
        stack = stack_for(*field.places)
        json_compare_kernel.any_element(field.data, *field.places, constant, stack, found)
        if isinstance(value, str):
            found |= _flags(pc.match_substring(field.strings(), value))
        return found

    return verdict


def _matching(pattern: str) -> Callable[[TextColumn], Any]:
    return lambda field: _flags(pc.match_substring_regex(field.strings(), pattern))


def _changed(field: TextColumn, images: RowImages, names: Sequence[str]) -> Any:
    earlier = TextColumn(images.before, json_fields.locate(images.before, names))
    order = np.empty(len(images.after), np.int8)
    json_compare_kernel.compare_both(
        field.data, *field.places, earlier.data, *earlier.places, order
    )
    missing = ~(_flags(images.before.is_valid()) & _flags(images.after.is_valid()))
    differs = (order != EQUAL) & ~field.unchanged
    closer = np.flatnonzero((order == DEEP) & differs)
    if len(closer):
        rows = order == DEEP
        pairs = zip(*(_texts(column, rows, closer) for column in (field, earlier)), strict=True)
        found = [_shallow(lambda new, old: new != old, *pair) for pair in pairs]
        differs[closer] = [bool(verdict) for verdict in found]
        images.unread[closer] = [verdict is None for verdict in found]
    return differs | missing


def _texts(column: TextColumn, rows: Any, chosen: Any) -> Iterable[bytes]:
    places = column.only(rows).places
    texts: list[bytes] = json_fields.values(column.texts, places).take(pa.array(chosen)).to_pylist()
    return texts


def _flags(column: pa.BooleanArray) -> Any:
    if column.null_count:
        column = column.fill_null(False)  # noqa: FBT003 - pyarrow takes it by position
    return column.to_numpy(zero_copy_only=False)


def _text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _shallow(verdict: Callable[..., Any], *texts: bytes | None) -> bool | None:
    """Return a verdict on parsed values; None if they are nested deeper than Python reads."""
    try:
        return bool(verdict(*map(_parsed, texts)))
    except RecursionError:
        return None


def _parsed(text: bytes | None) -> Any:
    if text is None:
        return None
    try:
        return _frozen(json.loads(text, parse_int=_number, parse_float=_number))
    except ValueError:  # Not UTF-8: equal to nothing but the same bytes.
        return ("text", text)


def _number(text: str) -> Decimal | str:
    try:
        return Decimal(text)
    except InvalidOperation:
        return text


def _frozen(value: Any) -> Any:
    """Return something that equals the same of another value only if both are the same JSON."""
    if isinstance(value, dict):
        return ("object", frozenset((key, _frozen(inner)) for key, inner in value.items()))
    if isinstance(value, list):
        return ("array", tuple(_frozen(inner) for inner in value))
    if isinstance(value, bool) or value is None:
        return ("constant", value)
    if isinstance(value, float):
        return ("number", Decimal(repr(value)))
    return ("text", value) if isinstance(value, str) else ("number", Decimal(value))


class FilterWorker:
    """Keeps the events that pass every gate. Events about schemas always do."""

    def __init__(self, settings: Filter) -> None:
        self._ops = {_OPS[op] for op in settings.ops} | {_DDL} if settings.ops else None
        self._tables = _Gate(settings.tables) if _names_tables(settings.tables) else None
        self._tests = [test_of(condition) for condition in settings.fields]
        self._join = np.logical_and if settings.match == "all" else np.logical_or
        json_fields.precompile()
        json_compare_kernel.precompile()

    def process(self, rows: pa.RecordBatch) -> Processed:
        """Drop the events that do not pass."""
        passing = np.ones(rows.num_rows, np.bool_)
        if self._ops is not None:
            passing &= _spread(rows["op"], lambda op: op in self._ops)
        if self._tables is not None:
            passing &= self._tables.passing(rows)
        unknown = passing & False
        if self._tests and passing.any():
            self._test(rows, passing, unknown)
        if passing.all():
            return Processed(rows)
        rejections = [rejected(row, _TOO_DEEP) for row in np.flatnonzero(unknown).tolist()]
        kept = np.flatnonzero(passing).astype(np.int32)
        origins = pa.array(kept, pa.int32())
        dropped = len(passing) - len(kept) - len(rejections)
        counts = {"dropped": dropped} if dropped else {}
        return Processed(rows.take(origins), origins, rejections=rejections, counts=counts)

    def close(self) -> None:
        """Nothing is open."""

    def _test(self, rows: pa.RecordBatch, passing: Any, unknown: Any) -> None:
        """Ask the conditions about the rows that pass so far; fill in what cannot be known."""
        before, after, op = rows["before"], rows["after"], rows["op"]
        some = not passing.all()
        if some:
            chosen = pa.array(np.flatnonzero(passing).astype(np.int32), pa.int32())
            before, after, op = (column.take(chosen) for column in (before, after, op))
        images = RowImages(before, after, self._tests)
        found = [test.holds(images) for test in self._tests]
        is_ddl = _spread(op, lambda name: name == _DDL)
        # A value that nobody can read matters only where the other conditions leave it open.
        surely = self._join.reduce([holds & ~unread for holds, unread in found]) | is_ddl
        maybe = self._join.reduce([holds | unread for holds, unread in found]) | is_ddl
        unknown[passing] = maybe & ~surely
        passing[passing] = surely


class _Gate:
    """The tables that pass."""

    def __init__(self, tables: TableFilter) -> None:
        self._include = TablePatterns(tables.include)
        self._exclude = TablePatterns(tables.exclude) if tables.exclude else None

    def passing(self, rows: pa.RecordBatch) -> Any:
        """Return a bool per row."""
        return belonging(rows, self._passes) | _spread(rows["op"], lambda op: op == _DDL)

    def _passes(self, table: Table) -> bool:
        excluded = self._exclude is not None and self._exclude.take(table)
        return self._include.take(table) and not excluded


def _names_tables(tables: TableFilter) -> bool:
    return bool(tables.include or tables.exclude)


def _spread(column: pa.DictionaryArray, verdict: Any) -> Any:
    """Return a verdict per row, asked for once per distinct value."""
    verdicts = [bool(verdict(value)) for value in column.dictionary.to_pylist()]
    return np.array([*verdicts, False], np.bool_)[codes(column)]
