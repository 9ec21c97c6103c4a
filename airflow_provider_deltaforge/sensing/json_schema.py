"""A sensed schema as a JSON Schema: what was seen validates, and nothing is closed but types."""

from collections.abc import Mapping
from typing import Any, Literal

from airflow_provider_deltaforge.storage.records.sensing import SensedValue

Dialect = Literal["draft-07", "2020-12"]

DIALECTS: Mapping[Dialect, str] = {
    "draft-07": "http://json-schema.org/draft-07/schema#",
    "2020-12": "https://json-schema.org/draft/2020-12/schema",
}

_BASE64 = {
    "type": "object",
    "properties": {"_base64": {"type": "string", "format": "byte"}},
    "required": ["_base64"],
}


def json_schema(
    root: SensedValue,
    title: str,
    dialect: Dialect,
    columns: Mapping[str, SensedValue] | None = None,
) -> dict[str, Any]:
    """Return the JSON Schema of a table's rows, or of a JSON column's values.

    Args:
        root: what was sensed of them.
        title: names them.
        dialect: of JSON Schema.
        columns: what was sensed of the rows' JSON columns, by name.
    """
    schema = _of_value(root, dialect)
    for name, column in (columns or {}).items():
        if name in root.fields:
            schema["properties"][name] = _of_column(root.fields[name], column, dialect)
    return {"$schema": DIALECTS[dialect], "title": title, **schema}


def _of_column(outer: SensedValue, inner: SensedValue, dialect: Dialect) -> dict[str, Any]:
    if "string" not in outer.types:
        # Each sees events that the other does not: null in the row is no value of the column.
        both = [name for name in outer.types if name not in inner.types]
        return _of_value(inner, dialect, also=both)
    schema = {**_of_value(outer, dialect), "contentMediaType": "application/json"}
    if dialect != "draft-07":
        schema["contentSchema"] = _of_value(inner, dialect)
    return schema


def _of_value(
    value: SensedValue, dialect: Dialect, also: list[str] | None = None
) -> dict[str, Any]:
    """Return what a value may be; a ``bytes`` value beside others is one of several schemas."""
    types = [*value.types, *(also or [])]
    plain = [name for name in types if name != "bytes"]
    if "bytes" not in types:
        return _of_types(value, plain, dialect)
    if not plain:
        return dict(_BASE64)
    return {"anyOf": [_of_types(value, plain, dialect), dict(_BASE64)]}


def _of_types(value: SensedValue, types: list[str], dialect: Dialect) -> dict[str, Any]:
    # An integer is a number: named beside it, it says nothing.
    named = [name for name in types if name != "integer" or "number" not in types]
    named.sort(key=lambda name: name == "null")
    schema: dict[str, Any] = {}
    if named:
        schema["type"] = named[0] if len(named) == 1 else named
    if value.shortest is not None and value.shortest == value.longest:
        schema["description"] = f"Fixed length: {value.shortest}"
    if "object" in types:
        fields = {name: _of_value(inner, dialect) for name, inner in value.fields.items()}
        if fields:
            schema["properties"] = fields
        if value.dynamic is not None:
            schema["additionalProperties"] = _of_value(value.dynamic, dialect)
        required = [name for name, inner in value.fields.items() if not inner.optional]
        if required:
            schema["required"] = required
    if "array" in types and value.elements is not None:
        schema["items"] = _of_value(value.elements, dialect)
    return schema
