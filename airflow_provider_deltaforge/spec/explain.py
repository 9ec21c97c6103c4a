"""Validation errors as sentences: key, line, reason, and the key that was probably meant."""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from airflow_provider_deltaforge.plugins import (
    ENCODINGS,
    ENVELOPES,
    PROCESSORS,
    SINKS,
    SOURCES,
    PluginRegistry,
)
from airflow_provider_deltaforge.spec.choice import find
from airflow_provider_deltaforge.spec.document import NAME_PATTERN, NAME_RULE, Pipeline
from airflow_provider_deltaforge.spec.yaml_text import Key, Parsed, Problem

SECRET_MIN = 3
"""Shorter values of variables are not cut out of errors: they would garble every sentence."""

_OWN_WORDS = frozenset({"missing", "extra_forbidden", "too_short"})
"""Errors whose sentence is written here and quotes no value."""
_TOO_SHORT = "needs at least one"
_LOGIN = re.compile(r"(://[^:/@\s]*):[^@\s]*@")


def explain(
    error: ValidationError, parsed: Parsed, data: Any, used: Mapping[str, str]
) -> list[tuple[Key, Problem]]:
    """Return each key that is wrong, and why; the answers of a union are put together.

    Args:
        error: What pydantic found.
        parsed: The document, for its lines.
        data: The document with its variables replaced.
        used: What each reference was replaced by; a plug-in may quote it in its error.
    """
    reasons: dict[Key, list[str]] = {}
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        key = _in_document(detail["loc"], detail["type"], data)
        message = _sentence(detail["type"], detail["msg"], key, data)
        if detail["type"] not in _OWN_WORDS:
            message = _hide(message, used)
        texts = reasons.setdefault(key, [])
        if message not in texts:
            texts.append(message)
    return [
        (key, parsed.problem(key, " or ".join(texts)))
        for key, texts in reasons.items()
        # A list whose items are wrong is not too short as well.
        if texts != [_TOO_SHORT] or not any(key == other[: len(key)] != other for other in reasons)
    ]


def _hide(message: str, used: Mapping[str, str]) -> str:
    """Put the references back in place of the values of variables, and cut passwords out."""
    for reference, value in sorted(used.items(), key=lambda item: -len(item[1])):
        if len(value) >= SECRET_MIN:
            message = message.replace(value, reference)
    return _LOGIN.sub(r"\1:***@", message)


def _in_document(loc: Iterable[str | int], kind: str, data: Any) -> Key:
    """Keep the parts of a location that stand in the document; pydantic adds the union's arms."""
    key: list[str | int] = []
    parts = list(loc)
    for index, part in enumerate(parts):
        if _holds(data, part):
            data = data[part]
        elif not _may_be_absent(part, kind, last=index == len(parts) - 1):
            continue
        key.append(part)
    return tuple(key)


def _may_be_absent(part: str | int, kind: str, *, last: bool) -> bool:
    """Return whether an error may blame a key that is not there."""
    return kind in {"missing", "deltaforge"} if last else part == "config"


def _holds(data: Any, part: str | int) -> bool:
    if isinstance(part, int):
        return isinstance(data, list) and part < len(data)
    return isinstance(data, dict) and part in data


def _sentence(kind: str, message: str, key: Key, data: Any) -> str:
    if kind == "missing":
        return "required, but not there"
    if kind == "extra_forbidden":
        known = _known_keys(key[:-1], data)
        close = get_close_matches(str(key[-1]), known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return f"unknown key{hint or _known_hint(known)}"
    if kind == "too_short":
        return _TOO_SHORT
    if kind == "string_pattern_mismatch":
        if NAME_PATTERN in message:
            return NAME_RULE
        return message.replace("String should match pattern", "must match the pattern")
    return message.removeprefix("Value error, ").removeprefix("Assertion failed, ")


def _known_hint(known: Iterable[str]) -> str:
    names = ", ".join(sorted(known))
    return f" (known: {names})" if names else ""


def _known_keys(key: Key, data: Any) -> list[str]:
    """Return the keys that may stand in the map at ``key``."""
    if key == ("spec", "source") or (key[:2] == ("spec", "sinks") and len(key) == 3):
        return ["type", "config"]
    model, rest, values = _plugin_model(key, data)
    for part in rest:
        values = values[part] if part in values or isinstance(part, int) else {}
        model = _step(model, part)
    known = [info.alias or name for name, info in _fields(model).items()]
    return [*known, "type"] if "type" in values else known


def _plugin_model(key: Key, data: Any) -> tuple[Any, Key, Any]:
    """Return the model of the innermost plug-in around a key, and the way on from there."""
    for length in range(len(key), 1, -1):
        room = _room(key[:length])
        values = _at(data, key[:length])
        if room is None or not isinstance(values, dict):
            continue
        entry = _at(data, key[: length - 1]) if key[length - 1] == "config" else values
        try:
            return find(room, entry.get("type")), key[length:], values
        except ValueError:
            return None, key[length:], values
    return Pipeline, key, data


def _room(key: Key) -> PluginRegistry | None:
    if key == ("spec", "source", "config"):
        return SOURCES
    match key:
        case ("spec", "processors", int()):
            return PROCESSORS
        case ("spec", "sinks", int(), "config"):
            return SINKS
        case ("spec", "sinks", int(), "config", "envelope"):
            return ENVELOPES
        case ("spec", "sinks", int(), "config", "encoding"):
            return ENCODINGS
    return None


def _at(data: Any, key: Key) -> Any:
    for part in key:
        data = data[part]
    return data


def _fields(model: Any) -> Mapping[str, Any]:
    return model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else {}


def _step(model: Any, part: str | int) -> Any:
    """Return the model behind one key of a model, or behind one index of a list of models."""
    if isinstance(part, int):
        return model
    for name, info in _fields(model).items():
        if part in {name, info.alias}:
            return _model_in(info.annotation)
    return None


def _model_in(annotation: Any) -> Any:
    """Return the first model in an annotation such as ``tuple[Condition, ...] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in {Union, UnionType, tuple, list, Annotated}:
        found = (_model_in(argument) for argument in get_args(annotation))
        return next((model for model in found if model is not None), None)
    return None
