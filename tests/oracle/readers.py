"""What a consumer sees: JSON lines of a file, in native envelopes, as the oracle's events."""

import json
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any

from tests.oracle.verdict import AllRows, Seen

NameOf = Callable[[dict[str, Any]], Hashable]


def seen_in(lines: Iterable[str | bytes], name_of: NameOf) -> list[Seen]:
    """Read native envelopes; ``name_of`` says where a streamed event stands in the log."""
    return [seen for line in lines if (seen := _seen(json.loads(line), name_of)) is not None]


def _seen(event: dict[str, Any], name_of: NameOf) -> Seen | None:
    source, before, after = event["source"], event["before"], event["after"]
    names = (source["db"], source.get("schema"), source["table"])
    table = ".".join(name for name in names if name)
    name = None if event["op"] == "r" else name_of(event)
    if event["op"] == "t":
        return Seen(name, AllRows(table), None, event["event_id"])
    image = after if after is not None else before
    if image is None:
        return None  # A change of a schema moves no row.
    former = before["id"] if before and after and "id" in before else image["id"]
    moved_from = (table, former) if former != image["id"] else None
    return Seen(name, (table, image["id"]), after, event["event_id"], moved_from)


def seen_in_file(path: Path, name_of: NameOf) -> list[Seen]:
    """Read a file of JSON lines."""
    return seen_in(whole_lines(path), name_of)


def whole_lines(path: Path) -> list[bytes]:
    """Return the lines of a file; one that is not finished was not written."""
    if not path.exists():
        return []
    text = path.read_bytes()
    return text[: text.rfind(b"\n") + 1].splitlines()
