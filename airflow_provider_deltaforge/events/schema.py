"""One table's schema, the same shape for every source."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from airflow_provider_deltaforge.events.table_names import qualified_name

TypeSystem: TypeAlias = Literal["mysql", "postgresql", "turso"]
"""Whose names ``Column.data_type`` and ``column_type`` are."""


@dataclass(frozen=True)
class Column:
    """One column, in the words of the source's own catalog."""

    name: str
    data_type: str
    """Base type in lower case, without length or attributes: ``int``, ``varchar``, ``enum``."""
    column_type: str
    """The full type as the catalog prints it: ``int(10) unsigned``, ``enum('a','b')``."""
    nullable: bool = True
    ordinal_position: int = 0
    unsigned: bool = False
    charset: str | None = None
    collation: str | None = None
    labels: tuple[str, ...] = ()
    """Of an enum or set, in order."""
    default_value: str | None = None
    extra: str | None = None
    comment: str | None = None
    char_max_length: int | None = None
    numeric_precision: int | None = None
    numeric_scale: int | None = None
    datetime_precision: int | None = None
    type_oid: int | None = None
    """PostgreSQL's; the fields below are its alone."""
    is_array: bool = False
    element_type: str | None = None
    is_identity: bool = False
    identity_generation: str | None = None
    is_generated: bool = False
    udt_name: str | None = None


_FINGERPRINTED = (
    "name",
    "column_type",
    "data_type",
    "nullable",
    "ordinal_position",
    "default_value",
    "extra",
    "comment",
    "char_max_length",
    "numeric_precision",
    "numeric_scale",
)
_FINGERPRINTED_POSTGRES = (
    "name",
    "data_type",
    "type_oid",
    "nullable",
    "ordinal_position",
    "default_value",
    "is_array",
    "element_type",
    "char_max_length",
    "numeric_precision",
    "numeric_scale",
    "is_identity",
    "identity_generation",
    "is_generated",
    "udt_name",
)


@dataclass(frozen=True)
class TableSchema:
    """A table's columns in order, and its key."""

    db: str
    schema: str | None
    table: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()
    """The PRIMARY KEY; see ``implicit_key``."""
    implicit_key: bool = False
    """MySQL and MariaDB: there is no PRIMARY KEY, and the first UNIQUE index over whole NOT NULL
    columns, which the server uses in its place, is the key."""
    unique_indexes: bool = False
    """MySQL and MariaDB: there are UNIQUE indexes, so another key may take the key's place."""
    hash_columns: int = 0
    """MariaDB keeps as many unlisted columns behind the others, for UNIQUE keys of long values."""
    system_versioned: bool = False
    """MariaDB keeps the table's rows of the past, by times in columns that it does not list."""

    @property
    def full_name(self) -> str:
        """``schema.table`` where the source has schemas, else ``db.table``; see ``table_names``."""
        return qualified_name(self.schema or self.db, self.table)

    @cached_property
    def fingerprint(self) -> str:
        """``sha256:`` and 64 hex digits over columns and primary key; charset does not count."""
        columns = [
            {k: value for k in _fingerprinted(c) if (value := getattr(c, k)) is not None}
            for c in self.columns
        ]
        shape: dict[str, Any] = {"columns": columns, "primary_key": list(self.primary_key)}
        if self.implicit_key:
            shape["implicit_key"] = True
        if self.system_versioned:
            shape["system_versioned"] = True
        text = json.dumps(shape, separators=(",", ":"), ensure_ascii=False)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _fingerprinted(column: Column) -> tuple[str, ...]:
    return _FINGERPRINTED if column.type_oid is None else _FINGERPRINTED_POSTGRES
