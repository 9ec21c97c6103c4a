"""Takes a row's values out of what somebody else's code says about it."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from airflow_provider_deltaforge.telemetry.redaction import redacted

_HIDDEN = "***"
_TEXT_MAX = 300
_WORD = re.compile(r"\w+")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_PLAIN = frozenset(
    {
        *(
            "int",
            "str",
            "float",
            "bool",
            "bytes",
            "list",
            "dict",
            "tuple",
            "set",
            "nonetype",
            "none",
        ),
        *("object", "decimal", "datetime", "string", "varchar", "json", "double", "boolean"),
    }
)
"""Names of types: they stand in quotes in many errors, and say what is wrong."""


def without_values(text: str, row: pa.RecordBatch) -> str:
    """Return an error's text with every word hidden that may come from the row it is about.

    Hidden are all words and parts in quotes that occur in the row's values, whatever their case,
    and all numbers. Names of columns and of types stay: they are no secret.

    Args:
        text: what was said.
        row: the one event, in CHANGE_SCHEMA.
    """
    names: set[str] = set()
    values: list[str] = []
    for column in ("before", "after", "key", "ddl"):
        image = row.column(column)[0].as_py()
        if image is not None:
            _collect(image, names, values)
    routing = row.column("routing")[0].as_py() or {}
    routed = [
        routing.get("topic"),
        routing.get("key"),
        *dict(routing.get("headers") or ()).values(),
    ]
    values += [value for value in (*routed, *(row.column("tags")[0].as_py() or ())) if value]
    whole = "\n".join(values)
    # Folded one by one: folding may break a word in two.
    words = {word.casefold() for word in _WORD.findall(whole)}
    whole = whole.casefold()

    def hide_word(found: "re.Match[str]") -> str:
        word = found[0].casefold()
        is_known = found[0] in names or word in _PLAIN
        secret = word.isdigit() or (word in words and not is_known)
        return _HIDDEN if secret else found[0]

    def hide_quoted(found: "re.Match[str]") -> str:
        name = found[0][1:-1]
        inside = name.casefold()
        if not inside or name in names or inside in _PLAIN or inside not in whole:
            return found[0]
        return found[0][0] + _HIDDEN + found[0][-1]

    # Cut last: a value cut in two would no longer be known as one.
    shown = _WORD.sub(hide_word, _QUOTED.sub(hide_quoted, " ".join(text.split())))
    return redacted(shown)[:_TEXT_MAX]


class _Members(list[tuple[str, Any]]):
    """The members of an object, with all that have one name."""


def _collect(image: bytes, names: set[str], values: list[str]) -> None:
    try:
        parsed = json.loads(image, object_pairs_hook=_Members, parse_float=str, parse_int=str)
        found = list(_scalars(parsed))
    except (ValueError, RecursionError):
        values.append(image.decode(errors="replace"))
        return
    if b"\\" in image:  # What is quoted may be the image, with its escapes.
        values.append(image.decode(errors="replace"))
    for name, value in found:
        names.add(name)
        values.append(value)


def _scalars(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each value of a JSON text with the name of the column or member that holds it."""
    if isinstance(value, _Members):
        for key, item in value:
            yield from _scalars(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _scalars(item, name)
    elif isinstance(value, str):
        yield name, value
