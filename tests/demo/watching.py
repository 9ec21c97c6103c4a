"""What arrived, seen from outside: the demo reads the sink as any consumer would."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CAUGHT_UP_MS = 1000.0

Poll = Callable[[], Iterator[bytes]]
"""Returns the values that arrived since the last call."""


@dataclass
class Arrivals:
    """Everything the sink received: counts, last state per key, and how long it took."""

    poll: Poll
    close: Callable[[], None] = lambda: None
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    state: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    latencies_ms: list[tuple[float, float]] = field(default_factory=list)
    """When a row was written (ms since epoch), and how long it took to get here."""
    live_from_ms: float | None = None
    """When the stream had caught up: an event arrived within a second for the first time."""
    examples: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="demo-consumer")

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read what is there, and end."""
        self._stopping.set()
        self._thread.join(10)

    def latencies(self) -> tuple[list[float], list[float]]:
        """Return the milliseconds of what was written after the stream caught up, and before."""
        live_from_ms = self.live_from_ms or float("inf")
        live = [took for written, took in self.latencies_ms if written >= live_from_ms]
        waited = [took for written, took in self.latencies_ms if written < live_from_ms]
        return live, waited

    def _watch(self) -> None:
        while not self._stopping.wait(0.002):
            self._take()
        self._take()
        self.close()

    def _take(self) -> None:
        for value in self.poll():
            self._note(value, time.time() * 1000)

    def _note(self, value: bytes, seen_ms: float) -> None:
        event = json.loads(value)
        table, op = event["source"]["table"], event["op"]
        self.counts[table, op] += 1
        self.examples[op] = event
        rows = self.state.setdefault(table, {})
        image = event["after"] or event["before"]
        if op == "d":
            rows.pop(image["id"], None)
            return
        rows[image["id"]] = image
        # The writer puts the moment just before its statement into the row, so this is the whole
        # way: statement, commit, log, engine, disk of the sink, reader.
        if op in {"c", "u"}:
            written_ms = image["written_us"] / 1000
            self.latencies_ms.append((written_ms, seen_ms - written_ms))
            if self.live_from_ms is None and seen_ms - written_ms < CAUGHT_UP_MS:
                self.live_from_ms = seen_ms


def files(directory: Path) -> Arrivals:
    """Follow every file of JSON lines below a directory."""
    offsets: dict[Path, int] = {}
    rest: dict[Path, bytes] = {}

    def poll() -> Iterator[bytes]:
        for path in sorted(directory.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(offsets.get(path, 0))
                data = file.read()
            offsets[path] = offsets.get(path, 0) + len(data)
            *lines, rest[path] = (rest.get(path, b"") + data).split(b"\n")
            yield from lines

    return Arrivals(poll)


def topics(brokers: str, names: list[str]) -> Arrivals:
    """Follow Kafka topics from their beginning."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "deltaforge-demo",
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": True,
            "topic.metadata.refresh.interval.ms": 1000,
            "log_level": 0,
        }
    )
    consumer.subscribe(names)

    def poll() -> Iterator[bytes]:
        for message in consumer.consume(1000, timeout=0.01):
            if message.error() is None and message.value() is not None:
                yield message.value()

    return Arrivals(poll, consumer.close)
