"""Masking: columns that nobody behind this processor may read as they are."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt, SecretStr, field_validator, model_validator

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.plugins import load_object
from airflow_provider_deltaforge.processors.contract import Processor, Worker
from airflow_provider_deltaforge.processors.mask.patterns import fits_column, parts_of
from airflow_provider_deltaforge.spec.settings import Settings

_WORKER = "airflow_provider_deltaforge.processors.mask.worker:MaskWorker"

_PARTS_MIN = 3
_SECRET_MIN = 16
_BYTES = frozenset(
    {
        *("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector"),
        "bytea",
    }
)
"""Types of columns in whose values no path finds anything: they are not JSON, but base64."""


class MaskRule(Settings):
    """Which columns are masked, and how."""

    columns: tuple[str, ...] = Field(min_length=1)
    """Patterns ``db.table.column`` (PostgreSQL: ``schema.table.column``), with ``*`` for any text
    anywhere in a part, upper and lower case alike; further parts lead into JSON columns. ``\\.``,
    ``\\*`` and ``\\\\`` stand for a dot, a star and a backslash in a name."""
    action: Literal["redact", "hash", "truncate", "tokenise"]
    """``redact``: one text for all values; ``hash``: HMAC-SHA-256 in hexadecimal; ``truncate``: the
    first characters; ``tokenise``: another value that looks alike. The same value gives the same
    result in every table and column."""
    replacement: str | None = "***"
    """Text that ``redact`` puts in place of a value; null puts null."""
    length: PositiveInt | None = None
    """Characters that ``truncate`` leaves."""

    @field_validator("columns")
    @classmethod
    def _patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            parts = parts_of(pattern)
            if len(parts) < _PARTS_MIN or not all(parts):
                raise ValueError(
                    f"{pattern!r} is no pattern of columns; write 'db.table.column', with '*' for "
                    "any database, and for a field of a JSON column 'db.table.column.field'"
                )
        return value

    @model_validator(mode="after")
    def _check_settings(self) -> "MaskRule":
        if (self.action == "truncate") != (self.length is not None):
            raise ValueError("'length' belongs to 'truncate', which needs it")
        if self.action != "redact" and "replacement" in self.model_fields_set:
            raise ValueError("'replacement' belongs to 'redact'")
        return self


class Mask(Processor):
    """Replace values of columns, in both row images and in the event's key."""

    masks: ClassVar[bool] = True
    keeps_tables: ClassVar[bool] = True
    keeps_columns: ClassVar[bool] = True

    id: str = "mask"
    rules: tuple[MaskRule, ...] = Field(min_length=1)
    """What is masked; of several rules for one value the first counts."""
    secret: SecretStr | None = None
    """What ``hash`` and ``tokenise`` are made with, from a variable: ``${MASK_SECRET}``. Another
    secret gives other results. With it, ``redact`` and ``truncate`` may name columns of primary
    keys: the event's key then holds a hash of the value."""

    @model_validator(mode="after")
    def _check_secret(self) -> "Mask":
        needy = [rule.action for rule in self.rules if rule.action in ("hash", "tokenise")]
        if needy and self.secret is None:
            raise ValueError(f"{needy[0]!r} needs a 'secret', for example '${{MASK_SECRET}}'")
        return self

    def unmatched(self, tables: Sequence[TableSchema]) -> Sequence[str]:
        """Return the patterns that no column of a captured table fits, or only bytes do."""
        columns = [
            ((_qualifiers(table), table.table, column.name), _holds_bytes(column))
            for table in tables
            for column in table.columns
        ]
        unmatched = []
        for pattern in dict.fromkeys(pattern for rule in self.rules for pattern in rule.columns):
            fitting = [is_bytes for place, is_bytes in columns if fits_column(pattern, *place)]
            if not fitting:
                unmatched.append(pattern)
            elif all(fitting) and len(parts_of(pattern)) > _PARTS_MIN:
                unmatched.append(f"{pattern} (bytes are not looked into: name their column)")
        return unmatched

    def hides(self, table: TableSchema, column: str) -> bool:
        """Return whether a rule names the column, or something in it."""
        return any(
            fits_column(pattern, _qualifiers(table), table.table, column)
            for rule in self.rules
            for pattern in rule.columns
        )

    def open(self) -> Worker:
        """Start the worker.

        Raises:
            SpecError: the secret can be guessed.
        """
        if self.secret is not None and len(self.secret.get_secret_value()) < _SECRET_MIN:
            raise SpecError(
                f"processor {self.id}: the secret is shorter than {_SECRET_MIN} characters, so it "
                "can be guessed; make one with `openssl rand -hex 32`"
            )
        worker: Worker = load_object(_WORKER)(self)
        return worker


def _holds_bytes(column: Column) -> bool:
    """Return whether a column is one of bytes; SQLite's columns without a type hold anything."""
    is_untyped = column.data_type == "blob" and not column.column_type
    return column.data_type in _BYTES and not is_untyped


def _qualifiers(table: TableSchema) -> list[str]:
    """Return what the first part of a pattern may name."""
    return [name for name in (table.db, table.schema) if name]
