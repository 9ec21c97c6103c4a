"""The document as JSON Schema 2020-12, for editors and for checks before a deployment.

It describes the document as written: where a number, a choice or a patterned text may stand,
``${VAR}`` may stand as well. The loader checks more, for example that ids are unique.
"""

from collections.abc import Iterator
from typing import Any

from pydantic.json_schema import models_json_schema

from airflow_provider_deltaforge.plugins import (
    ENCODINGS,
    ENVELOPES,
    PROCESSORS,
    SINKS,
    SOURCES,
    STORES,
    PluginRegistry,
)
from airflow_provider_deltaforge.spec.document import Pipeline, Spec
from airflow_provider_deltaforge.spec.policies import StorageSettings

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_REFERENCE = {"type": "string", "pattern": r"^\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^{}]*)?\}$"}
_REPLACEABLE = frozenset({"integer", "number", "boolean"})
_ANNOTATIONS = frozenset({"title", "description", "default"})
_FIXED_KEYS = frozenset({"apiVersion", "kind", "name", "tenant", "id"})
"""These cannot hold a variable."""


def json_schema() -> dict[str, Any]:
    """Return the schema, with every plug-in that is installed.

    Raises:
        SpecError: a plug-in that is named cannot be found.
    """
    return _Export().document()


class _Export:
    """Collects the models of all plug-ins, so that their names are unique in ``$defs``."""

    def __init__(self) -> None:
        self._plugins = {
            room.kind: {name: room.load(name) for name in room.names()}
            for room in (SOURCES, PROCESSORS, SINKS, ENVELOPES, ENCODINGS)
        }
        models = [Pipeline, *(model for room in self._plugins.values() for model in room.values())]
        unique = list(dict.fromkeys(models))
        references, schema = models_json_schema([(model, "validation") for model in unique])
        self._defs: dict[str, Any] = schema["$defs"]
        self._names = {
            model: references[model, "validation"]["$ref"].rpartition("/")[2] for model in unique
        }

    def document(self) -> dict[str, Any]:
        for plugins in self._plugins.values():
            for model in plugins.values():
                _without_default_id(self._defs[self._names[model]])
        for model in self._plugins[SINKS.kind].values():
            properties = self._defs[self._names[model]]["properties"]
            properties["envelope"] = self._choice(ENVELOPES, properties["envelope"])
            properties["encoding"] = self._choice(ENCODINGS, properties["encoding"])
        spec = self._defs[Spec.__name__]["properties"]
        spec["source"].update(oneOf=list(self._entries(SOURCES)))
        spec["sinks"]["items"] = {"oneOf": list(self._entries(SINKS))}
        spec["processors"]["items"] = {"oneOf": list(self._flat(PROCESSORS))}
        backend = self._defs[StorageSettings.__name__]["properties"]["backend"]
        backend["enum"] = STORES.names()
        root = self._defs.pop(self._names[Pipeline])
        for schema in (root, *self._defs.values()):
            _allow_references(schema)
        return {"$schema": DIALECT, **root, "$defs": self._defs}

    def _entries(self, room: PluginRegistry) -> Iterator[dict[str, Any]]:
        """Yield ``{type: …, config: {…}}`` for each plug-in."""
        for name, model in self._plugins[room.kind].items():
            needs_config = bool(self._defs[self._names[model]].get("required"))
            config = {"$ref": f"#/$defs/{self._names[model]}"}
            yield {
                "type": "object",
                "additionalProperties": False,
                "required": ["type", "config"] if needs_config else ["type"],
                "properties": {
                    "type": {"const": name},
                    "config": config if needs_config else {"anyOf": [config, {"type": "null"}]},
                },
            }

    def _flat(self, room: PluginRegistry) -> Iterator[dict[str, Any]]:
        """Yield ``{type: …, …}`` for each plug-in."""
        for name, model in self._plugins[room.kind].items():
            schema = dict(self._defs[self._names[model]])
            schema["properties"] = {"type": {"const": name}, **schema.get("properties", {})}
            schema["required"] = ["type", *schema.get("required", [])]
            yield schema

    def _choice(self, room: PluginRegistry, was: dict[str, Any]) -> dict[str, Any]:
        """Return a bare name, or ``{type: …, …}``."""
        bare = [
            name
            for name, model in self._plugins[room.kind].items()
            if not self._defs[self._names[model]].get("required")
        ]
        return {
            "anyOf": [{"enum": bare}, *self._flat(room), {"type": "null"}],
            "description": was.get("description", ""),
        }


def _without_default_id(schema: dict[str, Any]) -> None:
    required = [key for key in schema.get("required", []) if key != "id"]
    schema["required"] = required
    if not required:
        del schema["required"]


def _allow_references(schema: dict[str, Any]) -> None:
    """Allow ``${VAR}`` in place of every value below a schema that is no text."""
    for key, value in schema.get("properties", {}).items():
        if key not in _FIXED_KEYS:
            schema["properties"][key] = _or_reference(value)
        _allow_references(schema["properties"][key])
    for word in ("oneOf", "anyOf", "prefixItems"):
        for part in schema.get(word, []):
            _allow_references(part)
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            _allow_references(schema[word])


def _or_reference(schema: dict[str, Any]) -> dict[str, Any]:
    plain = schema.get("type") in _REPLACEABLE or "pattern" in schema
    if not (plain or "enum" in schema):
        return schema
    outside = {word: value for word, value in schema.items() if word in _ANNOTATIONS}
    inside = {word: value for word, value in schema.items() if word not in _ANNOTATIONS}
    return {**outside, "anyOf": [inside, dict(_REFERENCE)]}
