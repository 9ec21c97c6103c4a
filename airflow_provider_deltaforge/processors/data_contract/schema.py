"""JSON Schemas of rows, compiled once."""

from collections.abc import Callable, Mapping, Set
from copy import deepcopy
from typing import Any
from urllib.parse import unquote

import orjson

from airflow_provider_deltaforge.columns.marks import UNCHANGED
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.processors.json_objects import DepthError, parsed

_MARK = {"_unchanged": True}
_UNCHECKED = "schema (cannot be checked)"
_IN_PLACE = ("not", "if", "then", "else")
_LISTS_IN_PLACE = ("allOf", "anyOf", "oneOf")
_DEPENDENCIES = ("dependencies", "dependentRequired")
_OF_ALL_VALUES = frozenset(
    {"additionalProperties", "const", "enum", "patternProperties", "propertyNames"}
)


class RowSchema:
    """Checks row images, one by one.

    Args:
        schema: the JSON Schema.
        table: the pattern of its tables, for errors.

    Raises:
        SpecError: the schema is wrong, or fastjsonschema is not installed.
    """

    def __init__(self, schema: Mapping[str, Any], table: str) -> None:
        try:
            import fastjsonschema
        except ImportError as error:
            raise SpecError(
                "a 'schema' in the processor 'contract' needs fastjsonschema: pip install "
                "'airflow-provider-deltaforge[contract]'"
            ) from error
        self._library = fastjsonschema
        self._schema = {**schema}
        self._validators: dict[frozenset[str], Callable[[Any], object]] = {}
        try:
            self._validator(frozenset())
            _without_values(self._schema, frozenset())
        except Exception as error:
            raise SpecError(f"tables: the schema of {table!r} is wrong: {error}") from error

    def broken(self, image: bytes, *, wide: bool) -> str | None:
        """Return the column with the first value that breaks the schema, and how; None: none does.

        A column whose value the log did not repeat is there, with a value that breaks nothing.

        Args:
            image: a row's image.
            wide: whether it may hold integers beyond 64 bits.
        """
        try:
            row = parsed(image, wide=wide)
        except DepthError:
            return _UNCHECKED
        except ValueError:
            return "schema (no JSON)"
        unknown: frozenset[str] = frozenset()
        if isinstance(row, dict):
            unknown = frozenset(
                name
                for name, value in row.items()
                # A value of the source may be equal, and is never written with the same bytes.
                if value == _MARK and orjson.dumps(name) + b":" + UNCHANGED in image
            )
            row = {name: value for name, value in row.items() if name not in unknown}
        try:
            self._validator(unknown)(row)
        except self._library.JsonSchemaValueException as error:
            return _violation(error, row)
        except (ArithmeticError, RecursionError):
            # A number that is none as a float, or values nested deeper than Python goes.
            return _UNCHECKED
        return None

    def _validator(self, unknown: frozenset[str]) -> Callable[[Any], object]:
        """Return what checks rows some of whose columns are unknown."""
        if unknown not in self._validators:
            schema = _without_values(self._schema, unknown) if unknown else self._schema
            self._validators[unknown] = self._library.compile(
                schema, handlers=_Closed(), use_default=False
            )
        return self._validators[unknown]


class _Closed(dict[str, Any]):
    """Handlers of references to elsewhere, for every scheme: none is read."""

    def __contains__(self, scheme: object) -> bool:
        return True

    def __getitem__(self, scheme: str) -> Any:
        raise ValueError("references to elsewhere are not read")


def _without_values(schema: dict[str, Any], unknown: Set[str]) -> dict[str, Any]:
    """Return a schema for rows in which columns were left out that are there.

    Args:
        schema: of whole rows.
        unknown: the columns whose values nobody knows.
    """
    schema = deepcopy(schema)
    parts = _parts_of_row(schema, schema)
    undecided = [
        [key for key in ("if", "not", "oneOf") if _depends(schema, part.get(key), unknown)]
        for part in parts
    ]
    for part, keys in zip(parts, undecided, strict=True):
        _leave_undecided(part, keys)
        _count_as_there(part, unknown)
    return schema


def _parts_of_row(schema: dict[str, Any], start: Any) -> list[dict[str, Any]]:
    """Return a schema and those in it that hold for the same value, not for one inside of it."""
    found: dict[int, dict[str, Any]] = {}
    rest = [start]
    while rest:
        part = rest.pop()
        if isinstance(part, list):
            rest += part
        elif isinstance(part, dict) and id(part) not in found:
            found[id(part)] = part
            if "$ref" in part:
                rest.append(_referred(schema, part["$ref"]))
            rest += [part.get(key) for key in (*_IN_PLACE, *_LISTS_IN_PLACE)]
            rest += part.get("dependencies", {}).values()
    return list(found.values())


def _referred(schema: Any, reference: str) -> Any:
    """Return what a reference within a schema means: a path, or a name given by ``$id``."""
    path = unquote(reference.partition("#")[2])
    if path and not path.startswith("/"):
        rest = [schema]
        while rest:
            part = rest.pop()
            if isinstance(part, dict) and f"#{path}" in (part.get("$id"), part.get("id")):
                return part
            rest += part.values() if isinstance(part, dict) else part
            rest = [item for item in rest if isinstance(item, dict | list)]
        return None
    for step in path.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        schema = schema[int(key) if isinstance(schema, list) else key]
    return schema


def _depends(schema: dict[str, Any], start: Any, unknown: Set[str]) -> bool:
    """Return whether what a condition says of a row may depend on unknown values."""
    return any(
        not unknown.isdisjoint(part.get("properties", ())) or not _OF_ALL_VALUES.isdisjoint(part)
        for part in _parts_of_row(schema, start)
    )


def _leave_undecided(part: dict[str, Any], keys: list[str]) -> None:
    """Demand only what a row must fit, however its unknown values decide some conditions."""
    either = []
    if "oneOf" in keys:
        either.append(part.pop("oneOf"))
    if "if" in keys:
        del part["if"]
        either.append([part.get("then", {}), part.get("else", {})])
    if "not" in keys:
        del part["not"]
    if either:
        part["allOf"] = [*part.get("allOf", ()), *({"anyOf": choices} for choices in either)]


def _count_as_there(part: dict[str, Any], unknown: Set[str]) -> None:
    """Remove from a schema what it demands of the unknown columns."""
    part.pop("const", None)
    part.pop("enum", None)
    required = list(part.get("required", ()))
    for key in _DEPENDENCIES:
        for name, needed in part.get(key, {}).items():
            if isinstance(needed, list):
                part[key][name] = [column for column in needed if column not in unknown]
                required += part[key][name] if name in unknown else ()
            elif name in unknown:
                part["allOf"] = [*part.get("allOf", ()), needed]
    part["required"] = [name for name in required if name not in unknown]
    if not part["required"]:  # Draft 4 has no empty list there.
        del part["required"]
    for key in ("minProperties", "maxProperties"):
        if key in part:
            part[key] = max(0, part[key] - len(unknown))


def _violation(error: Any, row: Any) -> str:
    """Return what is wrong, without values: they may be keys below the first level as well."""
    path = list(error.path)[1:]
    columns = [str(path[0])] if path else []
    if not path and error.rule == "required" and isinstance(row, dict):
        columns = [name for name in error.rule_definition if name not in row]
    named = ", ".join(repr(name) for name in columns)
    return f"column {named}: schema ({error.rule})" if named else f"schema ({error.rule})"
