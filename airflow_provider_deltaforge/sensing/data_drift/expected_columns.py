"""What the catalog says of a table's columns, as the kernel asks for it."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from airflow_provider_deltaforge.events.schema import Column, TableSchema, TypeSystem
from airflow_provider_deltaforge.sensing.data_drift import row_check_kernel as k

_NUMBERS = k.INTEGER | k.NUMBER
_LENGTH = re.compile(r"\((\d+)")
_BUILT_IN_END = 16384
"""Object ids of PostgreSQL's own types lie below."""
_LIMBS = 1 << 64


class Rule(NamedTuple):
    """What one column allows; the numbers are those of ``row_check_kernel``.

    Attributes:
        allowed: which kinds of JSON values.
        range: which of them are in range.
        low: its lower bound.
        high: its upper bound.
    """

    allowed: int
    range: int = k.ANY_VALUE
    low: int = 0
    high: int = 0


ANYTHING = Rule(k.ANYTHING)


@dataclass(frozen=True, slots=True)
class ExpectedColumns:
    """A table's columns, ready for the kernel.

    Attributes:
        schema: the table.
        names: uint8, names of the columns as JSON texts have them, one behind the other.
        name_ends: int64, where each ends.
        rules: int64 (columns, ``RULE``).
        labels: uint64, hashes of the labels of enums and sets.
        hidden: columns whose values are not shown.
    """

    schema: TableSchema
    names: Any
    name_ends: Any
    rules: Any
    labels: Any
    hidden: frozenset[str]

    @classmethod
    def of(
        cls, schema: TableSchema, type_system: TypeSystem, hidden: Collection[str] = ()
    ) -> "ExpectedColumns":
        """Return what is expected where events leave the processors.

        Args:
            schema: the table.
            type_system: whose names the types of its columns have.
            hidden: columns that a processor masks: what it puts in their place has no type.
        """
        names = {column.name for column in schema.columns}.difference(hidden)
        return cls._made(schema, type_system, frozenset(hidden), names, every_null=False)

    @classmethod
    def of_source(
        cls, schema: TableSchema, type_system: TypeSystem, hidden: Collection[str] = ()
    ) -> "ExpectedColumns":
        """Return what is left to expect of rows as the source has them.

        Their columns and types are those of the catalog, since they were decoded by it; what is
        left are NULLs, and the values of columns that nobody sees behind the processors.
        """
        return cls._made(schema, type_system, frozenset(hidden), hidden, every_null=True)

    @classmethod
    def _made(
        cls,
        schema: TableSchema,
        type_system: TypeSystem,
        hidden: frozenset[str],
        checked: Collection[str],
        *,
        every_null: bool,
    ) -> "ExpectedColumns":
        rule_of = _TYPE_SYSTEMS[type_system]
        rules = np.zeros((len(schema.columns), k.RULE), np.int64)
        labels: list[int] = []
        for at, column in enumerate(schema.columns):
            is_checked = column.name in checked
            rule = rule_of(column) if is_checked else ANYTHING
            if rule.range in (k.LABEL, k.MEMBERS):
                hashes = sorted({_hash(label) for label in column.labels})
                rule = rule._replace(low=len(labels), high=len(labels) + len(hashes))
                labels += hashes
            nullable = column.nullable or not (is_checked or every_null)
            rules[at] = (rule.allowed, nullable, rule.range, _signed(rule.low), _signed(rule.high))
        names = [column.name.encode() for column in schema.columns]
        arrays = (
            np.frombuffer(b"".join(names) or b"\0", np.uint8),
            np.cumsum([len(name) for name in names] or [0], dtype=np.int64)[: len(names)],
            rules,
            np.array(labels or [0], np.uint64),
        )
        for array in arrays:
            array.setflags(write=False)
        return cls(schema, *arrays, hidden)


def _signed(number: int) -> int:
    """Return what 64 bits without a sign are with one."""
    return number - _LIMBS if number >= _LIMBS >> 1 else number


def _hash(text: str) -> int:
    """Return what the kernel makes of a text."""
    mixed = k.SEED
    for letter in text:
        code = ord(letter) if ord(letter) < k.BEYOND_FIRST_PLANE else ord("?")
        mixed = (mixed ^ code) * k.MIX % _LIMBS
    return mixed


def _integer(size: int, *, unsigned: bool = False, also: int = 0) -> Rule:
    """Return the rule of an integer of so many bytes."""
    if unsigned:
        return Rule(k.INTEGER | also, k.UNSIGNED, 0, (1 << 8 * size) - 1)
    return Rule(k.INTEGER | also, k.SIGNED, -(1 << 8 * size - 1), (1 << 8 * size - 1) - 1)


def _text(column: Column) -> Rule:
    length = column.char_max_length
    return Rule(k.STRING) if length is None else Rule(k.STRING, k.LENGTH, 0, length)


def _decimal(column: Column) -> Rule:
    allowed = _NUMBERS | k.DECIMAL | k.SPECIAL
    precision, scale = column.numeric_precision, column.numeric_scale
    if precision is None or scale is None:
        return Rule(allowed)
    return Rule(allowed, k.DIGITS, precision - scale, scale)


def _bits(column: Column) -> Rule:
    length = _length(column)
    if length > 64:
        return Rule(k.STRING)
    return Rule(k.INTEGER | (k.BOOL if length == 1 else 0), k.UNSIGNED, 0, (1 << length) - 1)


def _length(column: Column) -> int:
    found = _LENGTH.search(column.column_type)
    return int(found[1]) if found else 1


_FLOAT = Rule(_NUMBERS | k.SPECIAL)
_STRING = Rule(k.STRING)
_BYTES = Rule(k.STRING | k.WRAPPED)
_OBJECT = Rule(k.STRING | k.OBJECT)

_MYSQL: dict[str, Callable[[Column], Rule]] = {
    **{
        name: lambda column, size=size, also=also: _integer(  # type: ignore[misc]
            size, unsigned=column.unsigned, also=also
        )
        for name, size, also in (
            *(("tinyint", 1, k.BOOL), ("smallint", 2, 0), ("mediumint", 3, 0)),
            *(("int", 4, 0), ("bigint", 8, 0)),
        )
    },
    "year": lambda _: Rule(k.INTEGER, k.SIGNED, 0, 2155),
    **dict.fromkeys(("float", "double"), lambda _: _FLOAT),
    "decimal": _decimal,
    "bit": _bits,
    **dict.fromkeys(("char", "varchar"), _text),
    **dict.fromkeys(
        (
            *("tinytext", "text", "mediumtext", "longtext", "date", "time", "datetime"),
            *("timestamp", "uuid", "inet6", "inet4", "xmltype"),
        ),
        lambda _: _STRING,
    ),
    "enum": lambda column: Rule(k.STRING, k.LABEL) if column.labels else _STRING,
    "set": lambda column: Rule(k.STRING, k.MEMBERS) if column.labels else _STRING,
    **dict.fromkeys(
        (
            *("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector"),
            *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"),
            *("multipolygon", "geometrycollection", "geomcollection"),
        ),
        lambda _: _BYTES,
    ),
}

_POSTGRES: dict[str, Callable[[Column], Rule]] = {
    "bool": lambda _: Rule(k.BOOL),
    "int2": lambda _: _integer(2),
    "int4": lambda _: _integer(4),
    "int8": lambda _: _integer(8),
    "oid": lambda _: _integer(4, unsigned=True),
    **dict.fromkeys(("float4", "float8"), lambda _: _FLOAT),
    "numeric": _decimal,
    "bit": _bits,
    **dict.fromkeys(("varchar", "bpchar"), _text),
    **dict.fromkeys(
        (
            *("text", "name", "char", "uuid", "xml", "date", "time", "timetz", "timestamp"),
            *("timestamptz", "interval", "money", "varbit", "inet", "cidr", "macaddr"),
            *("macaddr8", "int4range", "int8range", "numrange", "tsrange", "tstzrange"),
            *("daterange", "point", "line", "lseg", "box", "path", "polygon", "circle"),
            *("tsvector", "tsquery", "pg_lsn", "jsonpath"),
        ),
        lambda _: _STRING,
    ),
    "bytea": lambda _: _BYTES,
}


def _of_mysql(column: Column) -> Rule:
    rule = _MYSQL.get(column.data_type)
    return rule(column) if rule is not None else ANYTHING


def _of_postgres(column: Column) -> Rule:
    if (column.type_oid or _BUILT_IN_END) >= _BUILT_IN_END:
        return ANYTHING  # Domains, enums, and types of extensions.
    if column.is_array:
        return Rule(k.ARRAY)
    rule = _POSTGRES.get(column.udt_name or "")
    return rule(column) if rule is not None else ANYTHING


_TURSO = {
    "integer": _integer(8, also=k.BOOL),
    "real": _FLOAT,
    "text": _STRING,
}
"""By affinity; columns of the others hold what they like."""


def _of_turso(column: Column) -> Rule:
    return _TURSO.get(column.data_type, ANYTHING)


_TYPE_SYSTEMS: dict[TypeSystem, Callable[[Column], Rule]] = {
    "mysql": _of_mysql,
    "postgresql": _of_postgres,
    "turso": _of_turso,
}
