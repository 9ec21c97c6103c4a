"""One example document between real servers: tables, changes, and what arrived."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import redis
import yaml
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_provider_deltaforge.control import pipelines, sensing
from airflow_provider_deltaforge.sinks.memory import MemorySink, memory_log
from airflow_provider_deltaforge.sinks.nats import NatsSink
from airflow_provider_deltaforge.sinks.redis import RedisSink
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from tests.engine.driving import Driving
from tests.examples.documents import startable
from tests.servers import sql
from tests.servers.hrana import HranaFront
from tests.servers.process import Server
from tests.sinks import nats_reader
from tests.sinks.kafka_reader import read_topic
from tests.sources.postgres.stream_reading import drop
from tests.waiting import wait_for

INPUTS = Path(__file__).parent / "inputs"
SAME_INPUT = {
    "seed_fan_out_all": "seed_example_fan_out",
    "seed_fan_out_quorum": "seed_example_fan_out",
    "seed_introduction": "seed_configuration_mysql_kafka",
    "seed_quickstart": "seed_configuration_mysql_kafka",
}
"""Variations of one page, and pages that give no input of their own."""
_ROUTED = {"seed_reference_postgres": ("Order.>",)}
"""Where the processors of a document send events to, beside the sink's own subject."""
_MYSQL_DATABASES = ("shop", "app")
_NOT_CONTENT = ("__", "_deltaforge.")
"""Topics of Kafka itself, and of our positions."""
_REDIS_DATABASE = "15"


@dataclass(frozen=True)
class Servers:
    """What the examples connect to."""

    mysql: Server
    postgres: Server
    kafka: Server
    redis: Server
    nats: Server


@dataclass
class ExampleRun:
    """Runs one document from the moment before its page's changes to the last of them."""

    stem: str
    servers: Servers
    place: Path
    taken_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.database = f"example_{self.stem}"
        self.turso = HranaFront(self.place / "example.db")
        mysql = self.servers.mysql
        self.variables = {
            "MYSQL_DSN": f"mysql://df:df-secret@{mysql.host}:{mysql.port}/",
            "POSTGRES_DSN": self.servers.postgres.dsn(self.database),
            "KAFKA_BROKERS": self.servers.kafka.dsn(),
            "TURSO_URL": self.turso.url,
            "REDIS_URI": self.servers.redis.dsn(_REDIS_DATABASE),
            "NATS_URL": self.servers.nats.dsn(),
            "NATS_USER": "deltaforge",
            "NATS_PASS": "nats-secret",
        }
        text = (INPUTS / f"{SAME_INPUT.get(self.stem, self.stem)}.sql").read_text()
        tables, _, changes = text.partition("-- changes\n")
        self.tables, self.changes = _statements(tables), _statements(changes)
        document, self.taken_out = startable(self.stem, self.variables)
        self.document = yaml.safe_dump(document, sort_keys=False)
        self.pipeline = load(self.document, self.variables)
        self.name = self.pipeline.name
        self.location = StoreLocation.from_dsn(f"memory://{self.stem}")
        self.store = self.location.create()
        self.control = Control(self.store, self.name)

    def run(self) -> dict[str, Any]:
        """Return what each sink got, in order, without what differs from run to run."""
        with self._database() as execute:
            execute(self.tables)
            before = _topic_ends(self.servers.kafka.dsn())
            redis.Redis.from_url(self.variables["REDIS_URI"]).flushdb()
            self._make_streams()
            pipelines.apply(self.store, self.document)
            self.control.update(
                lambda old: old.model_copy(update={"desired": "running", "generation": 1})
            )
            driving = Driving(self)
            # Before its first position is stored it would begin behind the changes.
            self._wait("its beginning", lambda: self._reached(None), driving)
            execute(self.changes)
            head = self.pipeline.spec.source.head()
            self._wait("everything delivered", lambda: self._reached(head), driving)
            pipelines.ask_to_stop(self.store, self.name)
            assert driving.end().why == "stopped"
            arrived = {sink.id: self._arrived(sink, before) for sink in self.pipeline.spec.sinks}
            return {**arrived, **self._sensed()}

    def _sensed(self) -> dict[str, Any]:
        """Return what schema sensing tells of each table and JSON column."""
        if not self.pipeline.spec.schema_sensing.enabled:
            return {}
        told = sensing.schemas(self.store, self.name)
        shown = {
            schema["table"]: {
                **{key: schema[key] for key in ("fingerprint", "sequence", "event_count")},
                "fields": sensing.schema(self.store, self.name, schema["table"])["fields"],
                "json_schema": sensing.json_schema(self.store, self.name, schema["table"]),
            }
            for schema in told
        }
        return {"sensed": shown, "sensing stats": sensing.stats(self.store, self.name)}

    def _reached(self, head: Any) -> bool:
        """Ask whether every sink has a checkpoint, at or behind ``head`` if that is given."""
        source = self.pipeline.spec.source
        at = Checkpoints(self.store, self.name, source.id).load()
        return all(
            sink.id in at and (head is None or source.compare(at[sink.id], head) >= 0)
            for sink in self.pipeline.spec.sinks
        )

    def _make_streams(self) -> None:
        """Do what the pages do with ``./dev.sh nats-stream-add``."""
        for sink in self.pipeline.spec.sinks:
            if isinstance(sink, NatsSink):
                url = self.servers.nats.dsn()
                nats_reader.remove_stream(url, sink.stream)
                subjects = [f"{sink.subject.partition('.')[0]}.>", *_ROUTED.get(self.stem, ())]
                nats_reader.add_stream(url, sink.stream, *subjects)

    def _wait(self, what: str, ready: Any, driving: Driving) -> None:
        def happened() -> bool:
            assert driving.thread.is_alive(), f"the stream ended early: {driving.outcome}"
            return bool(ready())

        wait_for(what, happened)

    def _arrived(self, sink: Any, before: dict[tuple[str, int], int]) -> list[Any]:
        if isinstance(sink, RedisSink):
            return _read_streams(self.variables["REDIS_URI"])
        if isinstance(sink, NatsSink):
            return _read_stream(self.servers.nats.dsn(), sink.stream)
        if not isinstance(sink, MemorySink):
            return _read_since(self.servers.kafka.dsn(), before)
        told = memory_log(sink.id)
        arrived = [_message(one.topic, one.key, one.headers, one.value) for one in told.messages()]
        told.clear()
        return arrived

    @contextmanager
    def _database(self) -> Iterator[Any]:
        kind = type(self.pipeline.spec.source).__name__
        opened = {
            "MySqlSource": self._mysql,
            "PostgresSource": self._postgres,
            "TursoSource": self._turso,
        }
        with opened[kind]() as execute:
            yield execute

    @contextmanager
    def _mysql(self) -> Iterator[Any]:
        server = self.servers.mysql
        for name in _MYSQL_DATABASES:
            sql.execute(server, f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
        yield lambda statements: sql.execute(server, *statements)

    @contextmanager
    def _postgres(self) -> Iterator[Any]:
        administrator = self.servers.postgres.dsn("postgres")
        with psycopg.connect(administrator, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {self.database}")
            with psycopg.connect(self.variables["POSTGRES_DSN"], autocommit=True) as inside:
                yield lambda statements: [inside.execute(each) for each in statements]
            # A server notices a moment later that the slot's reader has gone.
            drop(self.servers.postgres, self.database)

    @contextmanager
    def _turso(self) -> Iterator[Any]:
        with self.turso as server:
            yield lambda statements: server.run(*statements)


def _statements(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    return [each.strip() for each in "\n".join(lines).split(";\n") if each.strip(" ;\n")]


def _topics(brokers: str) -> dict[str, list[int]]:
    known = AdminClient({"bootstrap.servers": brokers}).list_topics(timeout=60).topics
    return {n: sorted(t.partitions) for n, t in known.items() if not n.startswith(_NOT_CONTENT)}


def _topic_ends(brokers: str) -> dict[tuple[str, int], int]:
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "example-ends"})
    try:
        return {
            (topic, number): consumer.get_watermark_offsets(
                TopicPartition(topic, number), timeout=60
            )[1]
            for topic, numbers in _topics(brokers).items()
            for number in numbers
        }
    finally:
        consumer.close()


def _read_since(brokers: str, before: dict[tuple[str, int], int]) -> list[Any]:
    """Return what came into all topics since, topic by topic; each has one partition."""
    found = []
    changed = {place for place, end in _topic_ends(brokers).items() if end != before.get(place)}
    for topic in sorted({name for name, _ in changed}):
        old = sum(end for (name, _), end in before.items() if name == topic)
        for read in read_topic(brokers, topic)[old:]:
            headers = [(name, text.decode()) for name, text in read.headers or ()]
            found.append(_message(topic, read.key, headers, read.value))
    return found


def _read_streams(uri: str) -> list[Any]:
    """Return what all streams hold, stream by stream."""
    client = redis.Redis.from_url(uri)
    return [
        _message(
            stream.decode(),
            entry[b"df-key"],
            json.loads(entry.get(b"df-headers", b"{}")).items(),
            entry[b"event"],
        )
        for stream in sorted(client.scan_iter(_type="stream"))
        for _, entry in client.xrange(stream)
    ]


def _read_stream(url: str, name: str) -> list[Any]:
    """Return what a stream of NATS holds; the ids of the messages are the events'."""
    found = []
    for subject, headers, value in nats_reader.stored(url, name):
        del headers["Nats-Msg-Id"]
        key = headers.pop("df-key", None)
        found.append(_message(subject, key and key.encode(), headers, value))
    return found


def _message(topic: str, key: bytes | None, headers: Any, value: bytes | None) -> dict[str, Any]:
    told: dict[str, Any] = {"topic": topic, "key": steady(key and key.decode(), "key")}
    if headers:
        told["headers"] = dict(headers)
    return {**told, "value": steady(None if value is None else json.loads(value))}


_PLACES = {
    "ts_ms", "event_id", "gtid", "file", "pos", "server_id", "lsn", "txId", "xmin", "sequence",
    "change_id", "processed_at", "hour_of_day", "day_of_week", "created_at", "deleted_at", "id",
    "time", "schema_sequence",
}  # fmt: skip
_MOVING = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|\d{4}-\d\d-\d\dT\S*")


def steady(value: Any, name: str = "") -> Any:
    """Return a JSON value with a mark where each run writes something else."""
    if isinstance(value, dict):
        return {key: steady(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [steady(each) for each in value]
    if value is None or (name == "id" and isinstance(value, int)):
        return value
    if name in _PLACES or (isinstance(value, str) and _MOVING.search(value)):
        return f"<{name}>"
    return value
