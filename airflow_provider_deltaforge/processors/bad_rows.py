"""Which events of a batch are bad, when all that is known is that some are.

What somebody else's code says about a bad event is shown without the values of its row.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa

from airflow_provider_deltaforge.errors import EventError
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.processors.contract import rejected
from airflow_provider_deltaforge.telemetry.redaction import redacted

Result = TypeVar("Result")

_FEW = 20
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


class RowsError(Exception):
    """Some events of those given cannot be processed; the text may quote their values.

    Args:
        text: why.
        place: added to the text; it quotes no values.
    """

    def __init__(self, text: str, place: str = "") -> None:
        super().__init__(text)
        self.place = place

    def about(self, row: int, event: pa.RecordBatch) -> Rejection:
        """Return the rejection of one event, without its values.

        Args:
            row: its row in the batch.
            event: the event alone.
        """
        return rejected(row, without_values(str(self), event) + self.place)


def apart(
    rows: pa.RecordBatch, attempt: Callable[[pa.RecordBatch], Result]
) -> tuple[list[tuple[int, Result]], list[Rejection]]:
    """Process a batch in one piece, or else in halves until the bad events stand alone.

    Args:
        rows: the batch.
        attempt: processes a part of it, and raises ``RowsError``. A part may be given again.

    Returns:
        What was made of each part that could be processed, with the row it begins at, in order;
        and a rejection for each event that could not.

    Raises:
        EventError: more than half of the events (and more than twenty) are bad: then it is
            rather the function or query than the events.
    """
    most = max(_FEW, rows.num_rows // 2)
    done: list[tuple[int, Result]] = []
    rejections: list[Rejection] = []
    waiting = [(0, rows.num_rows)]
    while waiting:
        start, stop = waiting.pop()
        part = rows.slice(start, stop - start)
        try:
            done.append((start, attempt(part)))
        except RowsError as error:
            if stop - start > 1:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
                continue
            rejections.append(error.about(start, part))
            if len(rejections) > most:
                raise EventError(
                    f"more than {most} of {rows.num_rows} events cannot be processed; the first: "
                    f"{rejections[0].reason}"
                ) from None
    return done, rejections


def without_values(text: str, row: pa.RecordBatch) -> str:
    """Return an error's text with every word hidden that may come from the row it is about.

    Hidden are all words and parts in quotes that occur in the row's values, whatever their case,
    and all numbers. Names of columns and of types stay: they are no secret.

    Args:
        text: the error's own text.
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
