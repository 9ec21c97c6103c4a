"""Write the reference page of the document from the models.

``python -m airflow_provider_deltaforge.spec.reference > docs/reference/document.md``
"""

import sys
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from airflow_provider_deltaforge.plugins import (
    ENCODINGS,
    ENVELOPES,
    PROCESSORS,
    SINKS,
    SOURCES,
    PluginRegistry,
)
from airflow_provider_deltaforge.spec.document import Metadata, Pipeline, Spec
from airflow_provider_deltaforge.spec.settings import field_descriptions

_INTRODUCTION = """# The pipeline document

Written from the code by `python -m airflow_provider_deltaforge.spec.reference`; change the
descriptions there.

One YAML file describes one pipeline. Unknown keys, keys given twice and keys without a value they
can take are refused, all at once, each with its line. `${VAR}` and `${VAR:-default}` are taken from
the environment of the process that opens the connection; the stored document keeps them as written.
`metadata.name`, `metadata.tenant` and ids cannot hold variables, and scripts (`inline`) are not
touched. `${source.table}`, `${after.id}` and other fields of the event are filled in per event, in
templates only: where a sink writes to, its `key`, the `topic` and `key` of an outbox, and
`sharding.key`. Elsewhere, what follows `${` is one of those two forms, or the document is refused.

What is marked *not in this release* is checked like everything else, and refused when the pipeline
starts. So is, whatever the plug-in, a `delivery.parallelism` above 1 that nothing in the document
could use.

`spec.storage` names the state store of `deltaforge run` and `snapshot`; a `--store`,
`DELTAFORGE_STORE` or Airflow connection that names another one is refused. `status`, `pause` and
the like see no document: give them the store.

An `id` that is left out becomes the plug-in's type. Two sinks of one type need ids: their
checkpoints are filed under them. Further processors of one type become `outbox-2`, `outbox-3`.
The source's id files them, too: a pipeline that has some does not start with another one.
Ids hold what names hold: letters, digits, `.`, `_` and `-`, up to 100.
"""

_WORDS: Mapping[Any, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    SecretStr: "secret text",
    NoneType: "nothing",
    Any: "anything",
}

_PLUGGED = {
    "source": "map",
    "processors": "list of maps",
    "sinks": "list of maps",
    "envelope": "text or map",
    "encoding": "text or map",
}
"""Keys whose values are plug-ins, so that the annotation does not show it."""

_ROOMS: tuple[tuple[PluginRegistry, str, str], ...] = (
    (
        SOURCES,
        "Sources",
        "`spec.source` is `{type: …, config: {…}}`; these are the keys of `config`.",
    ),
    (PROCESSORS, "Processors", "Each item of `spec.processors` is `{type: …, …}`."),
    (SINKS, "Sinks", "Each item of `spec.sinks` is `{type: …, config: {…}}`."),
    (ENVELOPES, "Envelopes", "`envelope` of a sink is a name, or `{type: …, …}`."),
    (ENCODINGS, "Encodings", "`encoding` of a sink is a name, or `{type: …, …}`."),
)


def write() -> str:
    """Return the page as Markdown."""
    return "\n".join([*_page(), ""])


def _page() -> Iterator[str]:
    yield _INTRODUCTION
    yield from _section("Document", Pipeline, 2)
    yield from _section("metadata", Metadata, 2)
    yield from _section("spec", Spec, 2)
    for room, title, text in _ROOMS:
        yield f"## {title}\n"
        yield f"{text}\n"
        for name in sorted(room.shipped):
            yield from _section(name, room.load(name), 3)


def _section(name: str, model: type[BaseModel], level: int) -> Iterator[str]:
    summary = (model.__doc__ or "").strip().partition("\n")[0]
    mark = " *Not in this release.*" if _whole_unbuilt(name, model) else ""
    yield f"{'#' * level} {name}\n"
    yield f"{summary}{mark}\n"
    rows = list(_rows(model, ""))
    if not rows:
        yield "No keys.\n"
        return
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    yield from rows
    yield ""


def _whole_unbuilt(name: str, model: type[BaseModel]) -> bool:
    """Return whether a plug-in is only described: it then names its own type as not built."""
    ask = getattr(model, "unbuilt", None)
    if ask is None or model is Pipeline:
        return False
    return any(text.endswith(f"type {name!r}") for text in model.model_construct().unbuilt())  # type: ignore[attr-defined]


def _rows(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, info in model.model_fields.items():
        key = f"{prefix}{info.alias or name}"
        inner = _model(info.annotation)
        # The blocks of the document have pages of their own only where a plug-in fills them.
        separate = model is Pipeline and inner is not None
        meaning = " ".join(_meaning(model, name).replace("``", "`").replace("|", "\\|").split())
        kind = _PLUGGED.get(name) or _kind(info.annotation)
        default = "its type" if name == "id" else _default(info)
        yield f"| `{key}` | {kind} | {default} | {meaning} |"
        if inner is not None and not separate:
            many = "[]" if get_origin(info.annotation) in {tuple, list} else ""
            yield from _rows(inner, f"{key}{many}.")


def _meaning(model: type[BaseModel], name: str) -> str:
    """Return a key's description, or that of the class that first declared it."""
    for kind in model.__mro__:
        text = field_descriptions(kind).get(name) if issubclass(kind, BaseModel) else None
        if text:
            return text
    return ""


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True, validated_data={})
    if value is None or isinstance(value, BaseModel):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if value in ((), [], {}):
        return "empty"
    return f"`{value}`"


def _model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in {Union, UnionType, tuple, list, Annotated}:
        found = (_model(argument) for argument in get_args(annotation))
        return next((model for model in found if model is not None), None)
    return None


def _kind(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is None:
        return _plain(annotation)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in {Union, UnionType}:
        return " or ".join(_kind(part) for part in arguments if part is not NoneType)
    if issubclass(origin, Mapping):
        return f"map of {_kind(arguments[1])}"
    return f"list of {_kind(arguments[0])}"


def _plain(annotation: Any) -> str:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "map"
    return _WORDS.get(annotation) or str(getattr(annotation, "__name__", annotation)).lower()


if __name__ == "__main__":
    sys.stdout.write(write())
