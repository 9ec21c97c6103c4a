"""Holding batches to a data contract."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation, localcontext
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.columns.marks import UNCHANGED
from airflow_provider_deltaforge.errors import EventError
from airflow_provider_deltaforge.processors.contract import Processed, rejected
from airflow_provider_deltaforge.processors.data_contract.schema import RowSchema
from airflow_provider_deltaforge.processors.data_contract.settings import (
    Action,
    ColumnRule,
    DataContract,
    TableRule,
)
from airflow_provider_deltaforge.processors.event_tables import TablePatterns, full_name, tables_of
from airflow_provider_deltaforge.processors.json_objects import wide_integers

_CHECKED = pa.array(["c", "u", "r"])
_REASONS_MAX = 5

Broken = tuple[str, str, Any]
"""A column, which of its rules, and a bool per row: whether it is broken."""

_KINDS: Mapping[str, tuple[int, ...]] = {
    "string": (json_fields.STRING,),
    "integer": (json_fields.NUMBER,),
    "number": (json_fields.NUMBER,),
    "decimal": (json_fields.NUMBER, json_fields.STRING),
    "boolean": (json_fields.BOOL,),
    "object": (json_fields.OBJECT,),
    "array": (json_fields.ARRAY,),
}
_FORMS = {"integer": r"^-?\d+$", "decimal": r"^-?\d+(\.\d+)?([eE][+-]?\d+)?$"}
_SHORT = r"^-?\d{1,18}(\.\d{1,18})?$"
_EXACT = pa.decimal128(38, 18)


def broken(images: pa.BinaryArray, rules: Mapping[str, ColumnRule]) -> Iterator[Broken]:
    """Yield each rule that some row breaks.

    Args:
        images: row images, none of them null.
        rules: by column.
    """
    places = json_fields.locate_each(images, [[name] for name in rules])
    for (name, rule), place in zip(rules.items(), places, strict=True):
        column = _Column(images, place)
        for what, rows in column.broken(rule):
            if rows.any():
                yield name, what, rows


class _Column:
    """One column of some row images."""

    def __init__(self, images: pa.BinaryArray, place: json_fields.Spans) -> None:
        self._kinds = json_fields.kinds(images, place)
        self._raw = json_fields.values(images, place)
        self._known = np.ones(len(images), np.bool_)
        if (self._kinds == json_fields.OBJECT).any():
            # Nobody knows the value, so nothing is wrong with it.
            self._known = ~_flags(pc.equal(self._raw, UNCHANGED))

    def broken(self, rule: ColumnRule) -> Iterator[tuple[str, Any]]:
        there = (self._kinds != json_fields.ABSENT) & (self._kinds != json_fields.NULL)
        if not rule.nullable:
            yield "nullable", ~there
        there &= self._known
        if rule.type is not None:
            fits = np.isin(self._kinds, _KINDS[rule.type])
            if rule.type in _FORMS:
                fits &= _flags(pc.match_substring_regex(self._texts, _FORMS[rule.type]))
            yield "type", there & ~fits
            there &= fits
        if rule.enum:
            yield "enum", there & ~self._listed(rule.enum)
        if rule.min is not None or rule.max is not None:
            yield from _beyond(self._texts, there, rule)
        if (rule.regex, rule.min_length, rule.max_length) != (None, None, None):
            yield from _textual(self._texts, there, rule)

    @cached_property
    def _texts(self) -> pa.StringArray:
        return json_fields.as_text(self._raw)

    def _listed(self, allowed: tuple[Any, ...]) -> Any:
        """Return which values are among some; a number never equals a text."""
        texts = self._texts
        found = np.zeros(len(texts), np.bool_)
        for kind, python in (
            (json_fields.STRING, str),
            (json_fields.NUMBER, int),
            (json_fields.BOOL, bool),
        ):
            names = [str(value) for value in allowed if type(value) is python]
            names = [name.lower() for name in names] if python is bool else names
            if names:
                is_in = _flags(pc.is_in(texts, value_set=pa.array(names, pa.utf8())))
                found |= is_in & (self._kinds == kind)
        return found


def _textual(texts: pa.StringArray, there: Any, rule: ColumnRule) -> Iterator[tuple[str, Any]]:
    if rule.regex is not None:
        yield "regex", there & ~_flags(pc.match_substring_regex(texts, rule.regex))
    if rule.min_length is not None or rule.max_length is not None:
        lengths = pc.fill_null(pc.utf8_length(texts), 0).to_numpy(zero_copy_only=False)
        if rule.min_length is not None:
            yield "min_length", there & (lengths < rule.min_length)
        if rule.max_length is not None:
            yield "max_length", there & (lengths > rule.max_length)


def _beyond(texts: pa.StringArray, there: Any, rule: ColumnRule) -> Iterator[tuple[str, Any]]:
    """Yield which values lie beyond bounds, compared digit by digit."""
    short = there & _flags(pc.match_substring_regex(texts, _SHORT))
    numbers = pc.if_else(pa.array(short), texts, pa.scalar(None, pa.utf8())).cast(_EXACT)
    long = [(at, _number(texts[at].as_py())) for at in np.nonzero(there & ~short)[0].tolist()]
    for name, limit, of_column in (("min", rule.min, pc.less), ("max", rule.max, pc.greater)):
        if limit is not None:
            bound = Decimal(str(limit))
            rows = _flags(of_column(numbers, _nearby(bound, name)))
            for at, value in long:
                rows[at] = value < bound if name == "min" else value > bound
            yield name, rows


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        # An exponent beyond those that decimals have: as far from all bounds with the last of them.
        digits, _, exponent = text.lower().partition("e")
        return Decimal(f"{digits}e{'-' if exponent.startswith('-') else ''}999999999")


def _nearby(bound: Decimal, side: str) -> pa.Scalar:
    """Return a bound that short numbers compare with as with the bound itself."""
    limit = Decimal(10) ** 18
    if abs(bound) > limit:
        bound = limit.copy_sign(bound)
    with localcontext(Context(prec=60)):
        rounding = ROUND_CEILING if side == "min" else ROUND_FLOOR
        return pa.scalar(bound.quantize(Decimal(1).scaleb(-18), rounding), _EXACT)


def _flags(column: pa.BooleanArray) -> Any:
    """Return a bool per row, null counted as False, that may be written to."""
    return pc.fill_null(column, False).to_numpy(zero_copy_only=False).copy()  # noqa: FBT003


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of one entry, ready to be used."""

    name: str
    tables: TablePatterns
    columns: dict[str, ColumnRule]
    schema: RowSchema | None
    action: Action


class ContractWorker:
    """Checks the new image of each event; deletes and truncates have none."""

    def __init__(self, contract: DataContract) -> None:
        self._rules = [_ready(rule, contract.on_violation) for rule in contract.tables]

    def process(self, rows: pa.RecordBatch) -> Processed:
        """Return the events that keep the contract, and those that break it as it says.

        Raises:
            EventError: one breaks a rule that blocks.
        """
        tables, index = tables_of(rows)
        found = _Found([full_name(table) for table in tables], index)
        has_image = pc.and_(
            rows.column("after").is_valid(), pc.is_in(rows.column("op").cast(pa.utf8()), _CHECKED)
        ).to_numpy(zero_copy_only=False)
        for rule in self._rules:
            mine = np.array([rule.tables.take(table) for table in tables], np.bool_)
            own = np.nonzero(has_image & mine[index])[0]
            if len(own):
                images = rows.column("after")
                whole = len(own) == rows.num_rows
                _check(images if whole else images.take(pa.array(own)), own, rule, found)
        return found.processed(rows)

    def close(self) -> None:
        """Nothing is held."""


class _Found:
    """What breaks the contract in one batch.

    Args:
        tables: names of the batch's tables.
        index: int array per row, its table among them.
    """

    def __init__(self, tables: list[str], index: Any) -> None:
        self._tables = tables
        self._index = index
        self._counts: dict[str, int] = defaultdict(int)
        self._blocked: list[tuple[int, str]] = []
        self._reasons: dict[int, list[str]] = defaultdict(list)

    def add(self, rule: _Rules, rows: Any, name: str, what: str) -> None:
        """Note the rows that break one rule.

        Args:
            rule: the entry it belongs to.
            rows: int array, rows of the batch; at least one.
            name: the rule's name in metrics.
            what: the same for people, without the table.
        """
        self._counts[f"violations:{name}"] += len(rows)
        if rule.action == "count":
            return
        for row in rows.tolist():
            reason = f"table {self._tables[self._index[row]]}, {what}"
            if rule.action == "block":
                self._blocked.append((row, reason))
            else:
                self._reasons[row].append(reason)

    def processed(self, rows: pa.RecordBatch) -> Processed:
        if self._blocked:
            _, reason = min(self._blocked)
            count = len({row for row, _ in self._blocked})
            raise EventError(
                f"{count} of {rows.num_rows} events break the contract, the first: {reason}. "
                "Nothing of the batch was delivered: correct the rows or the contract, then start "
                "again"
            )
        if not self._reasons:
            return Processed(rows, counts=dict(self._counts))
        rejections = [
            rejected(row, "; ".join(reasons[:_REASONS_MAX]))
            for row, reasons in sorted(self._reasons.items())
        ]
        kept = np.ones(rows.num_rows, np.bool_)
        kept[list(self._reasons)] = False
        return Processed(
            rows.filter(pa.array(kept)),
            pa.array(np.nonzero(kept)[0].astype(np.int32)),
            None,
            rejections,
            dict(self._counts),
        )


def _ready(rule: TableRule, action: Action) -> _Rules:
    schema = None if rule.json_schema is None else RowSchema(rule.json_schema, rule.table)
    return _Rules(
        rule.table,
        TablePatterns((rule.table,)),
        dict(rule.columns),
        schema,
        rule.on_violation or action,
    )


def _check(images: pa.BinaryArray, own: Any, rule: _Rules, found: _Found) -> None:
    """Note which rows break one entry's rules.

    Args:
        images: the new images of the rows it is about.
        own: int array, where they stand in the batch.
        rule: the entry.
        found: what is noted so far.
    """
    if rule.columns:
        for column, what, rows in broken(images, rule.columns):
            name = f"{rule.name}.{column}.{what}"
            found.add(rule, own[rows], name, f"column {column!r}: {what}")
    if rule.schema is not None:
        texts = zip(images.to_pylist(), wide_integers(images), strict=True)
        for at, (image, wide) in enumerate(texts):
            reason = rule.schema.broken(image, wide=wide)
            if reason is not None:
                found.add(rule, own[at : at + 1], f"{rule.name}.schema", reason)
