"""Ids that a document leaves out.

A processor gets its type, and an ordinal when there are several. A source or sink gets its type
and nothing more: its checkpoints are filed under the id, and an ordinal would hand one sink's
checkpoint to another as soon as somebody reorders the list. Two sinks of one type need ids.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_deltaforge.spec.yaml_text import Key


def fill_ids(data: Mapping[str, Any]) -> list[tuple[Key, str]]:
    """Put the missing ids into a document.

    Returns:
        Where, and which; except processors that got their type alone, which is what they expect.
    """
    spec = data.get("spec")
    if not isinstance(spec, dict):
        return []
    return [*_source(spec), *_sinks(spec), *_processors(spec)]


def _source(spec: dict[str, Any]) -> Iterator[tuple[Key, str]]:
    entry: Any = spec.get("source")
    if _lacks_id(entry):
        entry["config"]["id"] = entry["type"]
        yield ("spec", "source", "config", "id"), entry["type"]


def _sinks(spec: dict[str, Any]) -> Iterator[tuple[Key, str]]:
    entries = spec.get("sinks")
    if not isinstance(entries, list):
        return
    kinds = Counter(str(entry.get("type")) for entry in entries if isinstance(entry, dict))
    for index, entry in enumerate(entries):
        if _lacks_id(entry) and kinds[entry["type"]] == 1:
            entry["config"]["id"] = entry["type"]
            yield ("spec", "sinks", index, "config", "id"), entry["type"]


def _processors(spec: dict[str, Any]) -> Iterator[tuple[Key, str]]:
    entries = spec.get("processors")
    if not isinstance(entries, list):
        return
    taken = {str(entry["id"]) for entry in entries if isinstance(entry, dict) and "id" in entry}
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict) or "id" in entry or not isinstance(entry.get("type"), str):
            continue
        name, ordinal = entry["type"], 1
        while name in taken:
            ordinal += 1
            name = f"{entry['type']}-{ordinal}"
        entry["id"] = name
        taken.add(name)
        if ordinal > 1:
            yield ("spec", "processors", index, "id"), name


def _lacks_id(entry: Any) -> bool:
    """Return whether an entry could use its type as its id."""
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("type"), str)
        and isinstance(entry.get("config"), dict)
        and "id" not in entry["config"]
    )
