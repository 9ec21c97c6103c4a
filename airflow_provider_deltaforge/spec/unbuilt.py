"""What a document asks for that this release does not do.

A setting is obeyed or refused by its key, never read and ignored. Whoever builds one of these
takes its line out.
"""

import re
from collections.abc import Iterator
from typing import Any

Ask = tuple[str, str]
"""A key of the document, and what is asked for there."""

_WORD = re.compile(r"(?:source\.|sink\.)?([a-z_]+)")


def unbuilt(spec: Any) -> list[str]:
    """Return ``key: what``, in the order of the document."""
    asks = [
        *_named("spec.source", spec.source, ".config"),
        *_processors(spec),
        *_sinks(spec),
        *_policies(spec),
        *_hints(spec),
    ]
    return [f"{key}: {what}" for key, what in dict.fromkeys(asks)]


def _named(key: str, plugin: Any, settings: str = "") -> Iterator[Ask]:
    """Yield what a plug-in names; the name of one of its settings becomes part of the key."""
    for what in plugin.unbuilt():
        word = _WORD.match(what)
        if word and word.group(1) in type(plugin).model_fields:
            rest = what[word.end() :].strip(" :(),")
            yield f"{key}{settings}.{word.group(1)}", rest or "set"
        else:
            yield key, what


def _processors(spec: Any) -> Iterator[Ask]:
    for index, processor in enumerate(spec.processors):
        yield from _named(f"spec.processors[{index}]", processor)


def _sinks(spec: Any) -> Iterator[Ask]:
    for index, sink in enumerate(spec.sinks):
        key = f"spec.sinks[{index}]"
        yield from _named(key, sink, ".config")
        yield from _named(f"{key}.config.envelope", sink.envelope)
        yield from _named(f"{key}.config.encoding", sink.encoding)


def _policies(spec: Any) -> Iterator[Ask]:
    if spec.schema_sensing.enabled:
        yield "spec.schema_sensing.enabled", "true"
    if spec.delivery.parallelism > 1:
        yield "spec.delivery.parallelism", f"{spec.delivery.parallelism} lanes"


def _hints(spec: Any) -> Iterator[Ask]:
    if spec.sharding is not None:
        yield "spec.sharding", "spreading the data downstream"
    if spec.connection_policy is not None:
        yield "spec.connection_policy", "choosing how to connect"
