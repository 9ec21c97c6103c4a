"""Whether events are as OpenLineage's specification has them.

The client's classes are generated from the specification's JSON Schema, but take any value: here an
event's JSON is held against their fields and types.
"""

import importlib
import pkgutil
import types
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

import attr
from openlineage.client import generated
from openlineage.client.event_v2 import RunEvent
from openlineage.client.generated.base import BaseFacet


def faults(event: Mapping[str, Any]) -> list[str]:
    """Return what of an event's JSON is not as the specification says."""
    return list(_faults(event, RunEvent, "event"))


@cache
def _facets() -> Mapping[str, type]:
    """Return the classes of facets by the address of their schema."""
    names = [each.name for each in pkgutil.iter_modules(generated.__path__)]
    modules = [importlib.import_module(f"{generated.__name__}.{name}") for name in names]
    kinds = [kind for module in modules for kind in vars(module).values()]
    facets = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseFacet))
    return {kind._get_schema(): kind for kind in facets}


def _faults(told: Any, kind: Any, at: str) -> Iterator[str]:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any or origin is ClassVar:
        return
    if origin in (Union, types.UnionType):
        kinds = [one for one in inner if one is not type(None) or told is None]
        yield from min((list(_faults(told, one, at)) for one in kinds), key=len)
    elif origin in (list, dict):
        yield from _faults_within(told, origin, inner[-1], at)
    elif attr.has(kind):
        yield from _faults_of_object(told, kind, at)
    elif issubclass(kind, Enum):
        if told not in {each.value for each in kind}:
            yield f"{at}: {told!r} is no {kind.__name__}"
    elif not isinstance(told, kind) or (kind is int and isinstance(told, bool)):
        yield f"{at}: {told!r} is no {kind.__name__}"


def _faults_within(told: Any, kind: type, each: Any, at: str) -> Iterator[str]:
    if not isinstance(told, kind):
        yield f"{at}: no {kind.__name__}"
        return
    for key, value in told.items() if kind is dict else enumerate(told):
        yield from _faults(value, each, f"{at}[{key}]")


def _faults_of_object(told: Any, kind: Any, at: str) -> Iterator[str]:
    if not isinstance(told, Mapping):
        yield f"{at}: no object"
        return
    if issubclass(kind, BaseFacet):
        known = _facets().get(str(told.get("_schemaURL")))
        if known is None or not issubclass(known, kind):
            yield f"{at}: {told.get('_schemaURL')} is no {kind.__name__}"
            return
        kind = known
    hints = get_type_hints(kind)
    fields = {field.name: field for field in attr.fields(kind)}
    for name in told.keys() - fields.keys():
        yield f"{at}.{name}: not in the specification"
    for name, field in fields.items():
        if name in told:
            yield from _faults(told[name], hints[name], f"{at}.{name}")
        elif field.default is attr.NOTHING:
            yield f"{at}.{name}: missing"
