"""Dropping events by operation, table, or the contents of the row."""

import json
import math
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator, model_validator

from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.plugins import load_object
from airflow_provider_deltaforge.processors.contract import Processor, Worker
from airflow_provider_deltaforge.spec.patterns import TableMatcher, check_patterns
from airflow_provider_deltaforge.spec.settings import Settings

_WORKER = "airflow_provider_deltaforge.processors.filter.worker:FilterWorker"

_WITHOUT_VALUE = frozenset({"exists", "not_exists", "changed"})
_ORDERS = frozenset({"gt", "gte", "lt", "lte"})

Comparison = Literal[
    "eq",
    "ne",
    "exists",
    "not_exists",
    "gt",
    "gte",
    "lt",
    "lte",
    "in",
    "not_in",
    "contains",
    "changed",
    "regex",
]


class TableFilter(Settings):
    """Which tables pass; exclusion wins."""

    include: tuple[str, ...] = ()
    """Patterns of the tables that pass; empty lets every table pass."""
    exclude: tuple[str, ...] = ()
    """Patterns of the tables that do not pass."""

    @field_validator("include", "exclude")
    @classmethod
    def _check_patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        check_patterns(value, "tables")
        return value


class Condition(Settings):
    """One condition on a field of the row's new image."""

    path: str = Field(min_length=1)
    """The field, dotted into nested objects."""
    op: Comparison
    """How to compare."""
    value: Any = None
    """What to compare with; not used by ``exists``, ``not_exists`` and ``changed``."""

    @property
    def names(self) -> list[str]:
        """The keys on the way to the field."""
        return self.path.split(".")

    @model_validator(mode="after")
    def _check(self) -> "Condition":
        if not all(self.names):
            raise ValueError(f"path {self.path!r} has an empty part")
        if self.op in _WITHOUT_VALUE:
            if "value" in self.model_fields_set:
                raise ValueError(f"comparison {self.op!r} takes no 'value'; remove it")
            return self
        if "value" not in self.model_fields_set:
            raise ValueError(f"comparison {self.op!r} needs a 'value'")
        _check_json(self.value)
        if self.op in {"in", "not_in"} and not isinstance(self.value, list):
            raise ValueError(f"comparison {self.op!r} needs a list as its 'value'")
        if self.op in {"in", "not_in"} and not self.value:
            what = "never" if self.op == "in" else "always"
            raise ValueError(f"comparison {self.op!r} {what} holds with an empty list; name values")
        if self.op in _ORDERS and (
            isinstance(self.value, bool) or not isinstance(self.value, int | float | str)
        ):
            raise ValueError(f"comparison {self.op!r} needs a number or text as its 'value'")
        if self.op == "regex":
            _compile(self.value)
        return self


class Filter(Processor):
    """Keep the events that pass every gate."""

    keeps_tables: ClassVar[bool] = True
    keeps_columns: ClassVar[bool] = True

    id: str = "filter"
    ops: tuple[Literal["create", "update", "delete", "read", "truncate"], ...] = ()
    """Operations that pass; empty lets every operation pass."""
    tables: TableFilter = TableFilter()
    """Tables that pass."""
    fields: tuple[Condition, ...] = ()
    """Conditions on the row."""
    match: Literal["all", "any"] = "all"
    """Whether all conditions must hold, or one is enough."""

    def lets_pass(self, table: TableSchema) -> bool:
        """Return whether the patterns of tables let it pass."""
        qualifier = table.schema or table.db
        include, exclude = (
            TableMatcher(names) for names in (self.tables.include, self.tables.exclude)
        )
        is_excluded = bool(exclude.patterns) and exclude.matches(qualifier, table.table)
        return include.matches(qualifier, table.table) and not is_excluded

    def open(self) -> Worker:
        """Prepare the comparisons and load the kernels."""
        worker: Worker = load_object(_WORKER)(self)
        return worker


def _check_json(value: Any) -> None:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        raise ValueError("'value' is not text, a number, a list or a mapping; quote it") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("'value' must be a finite number")


def _compile(pattern: Any) -> None:
    if not isinstance(pattern, str):
        raise ValueError("comparison 'regex' needs text as its 'value'")  # noqa: TRY004
    try:
        pc.match_substring_regex(pa.array([""], pa.utf8()), pattern)
    except pa.ArrowInvalid as error:
        raise ValueError(f"not a regular expression in RE2's syntax: {error}") from error
