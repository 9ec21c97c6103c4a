"""A scripted pipeline whose sink delivers exactly once, for every sink that can.

A new kind of sink is one function and one entry of ``PLACES``.
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import redis
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.sinks.kafka.positions import topic_of
from airflow_provider_deltaforge.sinks.redis.slots import cursor_key
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from tests.engine.scripted_run import NAME, ScriptedRun
from tests.oracle.readers import seen_in
from tests.oracle.verdict import Seen, judge
from tests.sinks import nats_reader
from tests.sinks.kafka_reader import read_topic


@dataclass(frozen=True)
class Place:
    """Somewhere new to deliver to: the sink, and what a consumer reads there."""

    name: str
    sink: str
    read: Callable[[], list[bytes]]
    clear: Callable[[], object] = lambda: None
    """Gives back the memory of a server that many runs share, one after the other."""


def _kafka(dsn: str, name: str, sink_id: str) -> Place:
    settings = f"{{id: {sink_id}, brokers: '{dsn}', topic: '{name}', exactly_once: true}}"
    positions = topic_of(NAME)
    if positions in AdminClient({"bootstrap.servers": dsn}).list_topics().topics:
        producer = Producer({"bootstrap.servers": dsn})
        producer.produce(positions, key=f"{NAME}/{sink_id}")  # A former run had another store.
        producer.flush()
    # The reader's level is read_committed.
    return Place(
        name,
        f"{{type: kafka, config: {settings}}}",
        lambda: [message.value or b"" for message in read_topic(dsn, name)],
    )


def _redis(dsn: str, name: str, sink_id: str) -> Place:
    with redis.Redis.from_url(dsn) as client:  # A former run had another store.
        client.delete(cursor_key(NAME, sink_id, None))
    settings = f"{{id: {sink_id}, uri: '{dsn}', stream: '{name}', exactly_once: true}}"

    def read() -> list[bytes]:
        with redis.Redis.from_url(dsn) as client:
            return [fields[b"event"] for _, fields in client.xrange(name)]

    def clear() -> None:
        with redis.Redis.from_url(dsn) as client:
            client.delete(name)

    return Place(name, f"{{type: redis, config: {settings}}}", read, clear)


def _nats(dsn: str, name: str, sink_id: str) -> Place:
    nats_reader.add_stream(dsn, name, f"{name}.>")
    settings = (
        f"{{id: {sink_id}, url: '{dsn}', stream: {name}, subject: '{name}.rows',"
        " exactly_once: true}"
    )
    return Place(
        name,
        f"{{type: nats, config: {settings}}}",
        lambda: [value for _, _, value in nats_reader.stored(dsn, name)],
    )


PLACES: dict[str, Callable[[str, str, str], Place]] = {
    "kafka": _kafka,
    "redis": _redis,
    "nats": _nats,
}
"""From a server's address, a new name and the sink's id to a place, by type of sink."""


def new_place(kind: str, server: str, sink_id: str = "out", *, exactly_once: bool = True) -> Place:
    """Make somewhere new to deliver to."""
    place = PLACES[kind](server, f"exact-{uuid.uuid4().hex[:8]}", sink_id)
    asked = f"exactly_once: {str(exactly_once).lower()}"
    return replace(place, sink=place.sink.replace("exactly_once: true", asked))


@dataclass
class ExactRun(ScriptedRun):
    """A pipeline to one of ``PLACES``."""

    place: Place | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.place is not None
        before, _, behind = self.document.partition("    - type: file\n")
        _, _, behind = behind.partition("\n")
        self.document = f"{before}    - {self.place.sink}\n{behind}"
        pipelines.apply(self.store, self.document)
        self.want("running")

    def checkpoint(self) -> Mapping[str, Any] | None:
        """Return where the sink's checkpoint stands."""
        return Checkpoints(self.store, NAME, f"{NAME}-source").load().get("out")

    def seen(self) -> list[Seen]:
        """Return what a consumer sees."""
        assert self.place is not None
        return seen_in(
            self.place.read(), lambda event: (event["after"]["tx"], event["after"]["row"])
        )

    def judge(self, start: dict[str, Any]) -> list[str]:
        """Ask the oracle: every transaction after ``start`` once, in order per key."""
        return judge(self.history(start), self.seen(), exactly_once=True)


def exact_run(kind: str, server: str, directory: Path, **settings: Any) -> ExactRun:
    """Make a pipeline to a new place."""
    return ExactRun(directory, place=new_place(kind, server), **settings)
