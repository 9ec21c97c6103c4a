"""What a consumer sees: JSON lines of a file, in native envelopes, as the oracle's events."""

import json
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any

from tests.oracle.verdict import Seen

NameOf = Callable[[dict[str, Any]], Hashable]


def seen_in(lines: Iterable[str | bytes], name_of: NameOf) -> list[Seen]:
    """Read native envelopes; ``name_of`` says where a streamed event stands in the log."""
    events = []
    for line in lines:
        event = json.loads(line)
        image = event["after"] if event["after"] is not None else event["before"]
        if image is None:
            continue  # A change of a schema moves no row.
        table = f"{event['source']['db']}.{event['source']['table']}"
        events.append(
            Seen(
                name=None if event["op"] == "r" else name_of(event),
                key=(table, image["id"]),
                state=event["after"],
                event_id=event["event_id"],
            )
        )
    return events


def seen_in_file(path: Path, name_of: NameOf) -> list[Seen]:
    """Read a file of JSON lines; a line that is not finished was not written."""
    if not path.exists():
        return []
    text = path.read_bytes()
    return seen_in(text[: text.rfind(b"\n") + 1].splitlines(), name_of)
