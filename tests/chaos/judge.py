"""Judges what a consumer holds against the writer's own ledger and the table; knows no oracle."""

import json
from collections import Counter
from collections.abc import Sequence

from tests.chaos.ledger import Entry

_SHOWN = 5


def judge(
    lines: Sequence[bytes | str],
    entries: Sequence[Entry],
    table: dict[int, int],
    *,
    exactly_once: bool,
) -> list[str]:
    """Return what is wrong, in words.

    Args:
        lines: what the consumer got, native envelopes in its order.
        entries: what was committed after the pipeline had said that it runs, in order.
        table: each row's number by its id, now.
        exactly_once: no change of the log may arrive twice.
    """
    read = map(json.loads, lines)
    # What tells of a changed schema moves no row.
    events = [_read(event) for event in read if event["before"] or event["after"]]
    streamed = [event for event in events if event.op != "r"]
    counted = Counter(streamed)
    missing = [entry for entry in entries if entry not in counted]
    twice = [entry for entry, count in counted.items() if count > 1]
    held: dict[int, int] = {}
    for event in events:
        if event.op == "d":
            held.pop(event.id, None)
        else:
            held[event.id] = event.number
    differing = [
        (key, held.get(key), table.get(key))
        for key in sorted(held.keys() | table.keys())
        if held.get(key) != table.get(key)
    ]
    return [
        *_words("never arrived", missing),
        *_words("of the consumer's rows differ from the table (id, seen, true)", differing),
        *_words("arrived first after a later change of its row", _late(streamed, entries)),
        *(_words("arrived more than once", twice) if exactly_once else []),
    ]


def _read(event: dict) -> Entry:
    row = event["before"] if event["op"] == "d" else event["after"]
    return Entry(event["op"], row["id"], row["n"])


def _late(streamed: Sequence[Entry], entries: Sequence[Entry]) -> list[Entry]:
    place = {entry: index for index, entry in enumerate(entries)}
    latest: dict[int, int] = {}
    late = []
    for event in dict.fromkeys(streamed):
        at = place.get(event)
        if at is None:
            continue
        if at < latest.get(event.id, -1):
            late.append(event)
        latest[event.id] = max(at, latest.get(event.id, -1))
    return late


def _words(what: str, found: Sequence[object]) -> list[str]:
    shown = ", ".join(map(str, found[:_SHOWN]))
    return [f"{len(found)} {what}: {shown}"] if found else []
