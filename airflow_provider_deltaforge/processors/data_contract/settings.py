"""Data contracts: what rows must look like, per table, and what becomes of those that do not."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import (
    Field,
    FiniteFloat,
    NonNegativeInt,
    StrictBool,
    StrictInt,
    StrictStr,
    model_validator,
)

from airflow_provider_deltaforge.plugins import load_object
from airflow_provider_deltaforge.processors.contract import Processor, Worker
from airflow_provider_deltaforge.spec.patterns import check_patterns
from airflow_provider_deltaforge.spec.settings import Settings

_WORKER = "airflow_provider_deltaforge.processors.data_contract.worker:ContractWorker"

Action = Literal["quarantine", "block", "count"]

_NUMBERS = frozenset({"integer", "number", "decimal"})
_KINDS: Mapping[str | None, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int,),
    "decimal": (str,),
    "boolean": (bool,),
    None: (str, int, bool),
}
_DRAFTS = ("draft-04", "draft-06", "draft-07")


class ColumnRule(Settings):
    """What one column must hold. Checks look at values that are there and of the type."""

    type: Literal["string", "integer", "number", "decimal", "boolean", "object", "array"] | None = (
        None
    )
    """Kind of value; ``decimal`` is a number, or text that is one, as sources write decimals."""
    nullable: bool = True
    """Whether it may be null, or not be there."""
    min: StrictInt | FiniteFloat | None = None
    """Smallest value; needs a type that is a number."""
    max: StrictInt | FiniteFloat | None = None
    """Largest value; needs a type that is a number."""
    enum: tuple[StrictBool | StrictInt | StrictStr, ...] = ()
    """The values it may have; empty allows all."""
    regex: str | None = None
    """Pattern (RE2) that some part of the text must match; needs the type ``string``."""
    min_length: NonNegativeInt | None = None
    """Fewest characters; needs the type ``string``."""
    max_length: NonNegativeInt | None = None
    """Most characters; needs the type ``string``."""

    @model_validator(mode="after")
    def _check(self) -> "ColumnRule":
        for name in ("min", "max"):
            if getattr(self, name) is not None and self.type not in _NUMBERS:
                raise ValueError(f"'{name}' needs the type integer, number or decimal")
        for name in ("regex", "min_length", "max_length"):
            if getattr(self, name) is not None and self.type != "string":
                raise ValueError(f"'{name}' needs the type string")
        for value in self.enum:
            if type(value) not in _KINDS.get(self.type, ()):
                raise ValueError(f"'enum' holds a {type(value).__name__}, which no {self.type} is")
        if self.regex is not None:
            try:
                pc.match_substring_regex(pa.array(["", None]), self.regex)
            except pa.ArrowInvalid as error:
                raise ValueError(f"'regex' is no RE2 pattern: {error}") from error
        return self


class TableRule(Settings):
    """What the rows of some tables must look like."""

    table: str
    """Pattern of the tables."""
    columns: Mapping[str, ColumnRule] = {}
    """Rules by column."""
    json_schema: Mapping[str, Any] | None = Field(default=None, alias="schema")
    """JSON Schema (draft 4, 6 or 7) of the row; references within itself only."""
    on_violation: Action | None = None
    """What becomes of a row that breaks these rules, if not what the contract says."""

    @model_validator(mode="after")
    def _check(self) -> "TableRule":
        check_patterns([self.table], "table")
        if not self.columns and self.json_schema is None:
            raise ValueError("needs 'columns' or a 'schema'")
        if self.json_schema is not None:
            _check_schema(self.json_schema)
        return self


class DataContract(Processor):
    """Hold rows to rules per table, and set aside, stop at, or count those that break them."""

    keeps_tables: ClassVar[bool] = True
    keeps_columns: ClassVar[bool] = True

    id: str = "contract"
    tables: tuple[TableRule, ...] = Field(min_length=1)
    """Rules; where several patterns match a table all of them hold, where none does it passes."""
    on_violation: Action = "quarantine"
    """``quarantine`` hands the event to the dead-letter queue, ``block`` stops the pipeline,
    ``count`` lets it pass; each is counted by rule."""

    @model_validator(mode="after")
    def _check(self) -> "DataContract":
        patterns = [rule.table for rule in self.tables]
        twice = [pattern for pattern in patterns if patterns.count(pattern) > 1]
        if twice:
            raise ValueError(f"'tables' names {twice[0]!r} twice; put its rules together")
        return self

    def check(self) -> None:
        """Compile the schemas once, where fastjsonschema is installed."""
        from airflow_provider_deltaforge.processors.data_contract.schema import RowSchema

        for rule in self.tables:
            if rule.json_schema is not None and find_spec("fastjsonschema") is not None:
                RowSchema(rule.json_schema, rule.table)

    def open(self) -> Worker:
        """Compile the rules.

        Raises:
            SpecError: a schema is wrong, or what checks schemas is not installed.
        """
        worker: Worker = load_object(_WORKER)(self)
        return worker


def _check_schema(schema: Any) -> None:
    """Refuse what would be read from elsewhere, or be checked by other rules than it says."""
    dialect = schema.get("$schema", "draft-07")
    if not any(draft in str(dialect) for draft in _DRAFTS):
        raise ValueError(f"'schema' is of another draft than 4, 6 and 7: {dialect}")
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            reference = part.get("$ref")
            if isinstance(reference, str) and not reference.startswith("#"):
                raise ValueError(
                    f"'schema' refers to {reference!r}; only references within it ('#/…') are read"
                )
            waiting += part.values()
        elif isinstance(part, (list, tuple)):
            waiting += part
