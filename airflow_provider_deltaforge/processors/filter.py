"""Dropping events by condition: described so that documents can be checked, not built yet."""

import re
from typing import Any, Literal

from pydantic import Field, model_validator

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.processors.contract import Processor, Worker
from airflow_provider_deltaforge.spec.settings import Settings

_UNBUILT = "processor type 'filter'"
_WITHOUT_VALUE = frozenset({"exists", "not_exists", "changed"})

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


class Tables(Settings):
    """Which tables pass; exclusion wins."""

    include: tuple[str, ...] = ()
    """Patterns of the tables that pass; empty lets every table pass."""
    exclude: tuple[str, ...] = ()
    """Patterns of the tables that do not pass."""


class Condition(Settings):
    """One condition on a field of the row's new image."""

    path: str = Field(min_length=1)
    """The field, dotted into nested objects."""
    op: Comparison
    """How to compare."""
    value: Any = None
    """What to compare with; not used by ``exists``, ``not_exists`` and ``changed``."""

    @model_validator(mode="after")
    def _check_value(self) -> "Condition":
        if self.op not in _WITHOUT_VALUE and "value" not in self.model_fields_set:
            raise ValueError(f"comparison {self.op!r} needs a 'value'")
        if self.op in {"in", "not_in"} and not isinstance(self.value, list):
            raise ValueError(f"comparison {self.op!r} needs a list as its 'value'")
        if self.op == "regex":
            _compile(self.value)
        return self


class Filter(Processor):
    """Keep the events that pass every gate."""

    id: str = "filter"
    ops: tuple[Literal["create", "update", "delete", "read", "truncate"], ...] = ()
    """Operations that pass; empty lets every operation pass."""
    tables: Tables = Tables()
    """Tables that pass."""
    fields: tuple[Condition, ...] = ()
    """Conditions on the row."""
    match: Literal["all", "any"] = "all"
    """Whether all conditions must hold, or one is enough."""

    def unbuilt(self) -> list[str]:
        """Name the whole processor."""
        return [_UNBUILT]

    def open(self) -> Worker:
        """Refuse.

        Raises:
            SpecError: always.
        """
        raise SpecError(f"{_UNBUILT} is not part of this release; remove it from the document")


def _compile(pattern: Any) -> None:
    if not isinstance(pattern, str):
        raise ValueError("comparison 'regex' needs text as its 'value'")  # noqa: TRY004
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error.msg}") from error
