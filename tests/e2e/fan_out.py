"""The three-way fan-out of the examples, between real servers: Kafka, Redis and NATS."""

import json
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import redis
import yaml

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control, Progress
from airflow_provider_deltaforge.storage.records.stats import SinkProgress
from tests.engine.driving import Driving
from tests.servers import sql
from tests.servers.process import Server
from tests.sinks import nats_reader
from tests.sinks.kafka_reader import read_topic
from tests.spec.documents import DOCUMENTS
from tests.waiting import wait_for

KAFKA, REDIS, NATS = "warehouse-kafka", "cache-redis", "serverless-nats"

_TABLES = (
    "CREATE TABLE shop.orders (id INT AUTO_INCREMENT PRIMARY KEY, customer_id INT,"
    " total DECIMAL(10,2), status VARCHAR(32))",
    "CREATE TABLE shop.order_items (id INT AUTO_INCREMENT PRIMARY KEY, order_id INT, sku"
    " VARCHAR(16))",
)


@dataclass(frozen=True)
class Event:
    """One event as a consumer sees it, whatever the envelope."""

    id: str
    table: str
    op: str
    key: int
    state: str | None
    tags: tuple[str, ...]


@dataclass
class FanOut:
    """One variant of the example, with its own topic, stream and subject.

    Its document is the one of the pages, but for the names of its destinations, which tests
    share, and for shorter waits.
    """

    stem: str
    servers: dict[str, Server]
    mysql: Server
    orders: int = 0
    expected: dict[int, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kafka, cache, nats = (self.servers[name] for name in (KAFKA, REDIS, NATS))
        self.place = f"fan-out-{uuid.uuid4().hex[:8]}"
        self.nats_stream = self.place.replace("-", "_")
        variables = {
            "MYSQL_DSN": f"mysql://df:df-secret@{self.mysql.host}:{self.mysql.port}/",
            "KAFKA_BROKERS": kafka.dsn(),
            "REDIS_URI": cache.dsn("0"),
            "NATS_URL": nats.dsn(),
        }
        text = DOCUMENTS[self.stem].read_text()
        for name, value in variables.items():
            text = text.replace(f"${{{name}}}", value)
        document = yaml.safe_load(text)
        places = {"topic": self.place, "subject": f"{self.place}.events", "stream": self.place}
        for sink in document["spec"]["sinks"]:
            config = sink["config"]
            config.update({name: places[name] for name in places if name in config})
            if sink["type"] == "nats":
                config["stream"] = self.nats_stream
            config["send_timeout_secs"] = 2
        self.document = yaml.safe_dump(document, sort_keys=False)
        self.name = document["metadata"]["name"]
        self.location = StoreLocation.from_dsn(f"memory://{self.place}")
        self.store = self.location.create()
        self.control = Control(self.store, self.name)
        self.source = load(self.document).spec.source
        nats_reader.add_stream(nats.dsn(), self.nats_stream, f"{self.place}.>")
        sql.execute(self.mysql, "DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop", *_TABLES)
        pipelines.apply(self.store, self.document)
        changes = {"desired": "running", "generation": 1}
        self.control.update(lambda old: old.model_copy(update=changes))
        self.driving = Driving(self)
        self._wait("its beginning", lambda: len(self.checkpoints()) == len(self.servers))

    def change(self) -> None:
        """Insert orders, update each and those of before, and delete one."""
        first = self.orders + 1
        self.orders += 5
        statements = []
        for key in range(first, self.orders + 1):
            statements += [
                f"INSERT INTO shop.orders VALUES ({key}, {key}, {key * 400}, 'pending')",
                f"INSERT INTO shop.order_items (order_id, sku) VALUES ({key}, 'lamp')",
            ]
        state = f"seen-{self.orders}"
        statements += [
            f"UPDATE shop.orders SET status = '{state}'",
            f"DELETE FROM shop.orders WHERE id = {first}",
        ]
        sql.execute(self.mysql, *statements)
        self.expected = {
            key: None if was is None else state
            for key, was in {
                **self.expected,
                **dict.fromkeys(range(first, self.orders + 1), state),
                first: None,
            }.items()
        }

    def checkpoints(self) -> dict[str, Any]:
        return Checkpoints(self.store, self.name, self.source.id).load()

    def progress(self) -> Progress:
        told = self.control.progress()
        assert told is not None
        return told

    def sink(self, sink_id: str) -> SinkProgress:
        return self.progress().sinks[sink_id]

    def wait_reached(self, sink_ids: Iterable[str]) -> None:
        """Wait until sinks hold everything that was changed until now."""
        head = self.source.head()
        for name in sink_ids:
            self._wait(
                f"{name} to hold everything",
                lambda name=name: self.source.compare(self.checkpoints()[name], head) >= 0,
            )

    def wait_status(self, status: str) -> Progress:
        return self._wait_told(f"status {status}", lambda told: told.status == status)

    def wait_sink(self, sink_id: str, status: str) -> SinkProgress:
        """Wait for a sink's status, with the reason for it if there must be one."""
        told = self._wait_told(
            f"{sink_id} {status}",
            lambda told: (
                told.sinks[sink_id].status == status
                and (status == "running" or told.sinks[sink_id].reason)
            ),
        )
        return told.sinks[sink_id]

    def stop(self) -> None:
        pipelines.ask_to_stop(self.store, self.name)
        assert self.driving.end().why == "stopped"

    def close(self) -> None:
        """End the driver, whatever became of the test."""
        if self.driving.thread.is_alive():
            pipelines.ask_to_stop(self.store, self.name)
            self.driving.thread.join(60)

    def seen(self) -> dict[str, list[Event]]:
        """Return what each sink holds, in its order, duplicates included."""
        cache = redis.Redis.from_url(self.servers[REDIS].dsn("0"))
        entries = [fields[b"event"] for _, fields in cache.xrange(self.place)]
        cache.close()
        messages = read_topic(self.servers[KAFKA].dsn(), self.place)
        clouds = nats_reader.values(self.servers[NATS].dsn(), self.nats_stream)
        return {
            KAFKA: [_event(json.loads(one.value)["payload"]) for one in messages],
            REDIS: [_event(json.loads(one)) for one in entries],
            NATS: [_cloud(json.loads(one)) for one in clouds],
        }

    def judge(self) -> list[str]:
        """Return what is wrong with what the sinks hold: holes, order, last states."""
        seen = self.seen()
        wrong = []
        ids = {name: {event.id for event in events} for name, events in seen.items()}
        every = set().union(*ids.values())
        for name, events in seen.items():
            wrong += [f"{name} lacks {len(every - ids[name])} events"] * (ids[name] != every)
            wrong += [f"{name}: {text}" for text in self._order(events, seen[KAFKA])]
            last = {event.key: event.state for event in events if event.table == "orders"}
            wrong += [f"{name} ends with {last}, not {self.expected}"] * (last != self.expected)
            untagged = [event for event in events if "enriched" not in event.tags]
            wrong += [f"{name}: not every event is enriched"] * bool(untagged)
        items = {event.key for event in seen[KAFKA] if event.table == "order_items"}
        wrong += [f"{len(items)} items, not {self.orders}"] * (len(items) != self.orders)
        return wrong

    @staticmethod
    def _order(events: list[Event], reference: list[Event]) -> list[str]:
        """Compare the first deliveries of each row's events, sink by sink."""

        def firsts(told: list[Event]) -> dict[tuple[str, int], list[str]]:
            rows: dict[tuple[str, int], list[str]] = {}
            for event in told:
                known = rows.setdefault((event.table, event.key), [])
                if event.id not in known:
                    known.append(event.id)
            return rows

        expected = firsts(reference)
        return [
            f"{row}: {found}, not {expected.get(row)}"
            for row, found in firsts(events).items()
            if found != expected.get(row)
        ]

    def _wait_told(self, what: str, ready: Callable[[Progress], object]) -> Progress:
        """Wait for a progress, and return the one that was waited for."""
        found: list[Progress] = []

        def told() -> bool:
            progress = self.progress()
            if ready(progress):
                found.append(progress)
            return bool(found)

        self._wait(what, told)
        return found[0]

    def _wait(self, what: str, ready: Any) -> None:
        def happened() -> bool:
            assert self.driving.thread.is_alive(), f"the stream ended: {self.driving.outcome}"
            return bool(ready())

        wait_for(what, happened)


def _cloud(told: dict[str, Any]) -> Event:
    """CloudEvents say beside the data what the native event says in it."""
    table = told["subject"].rpartition(".")[2]
    return _event({**told["data"], "event_id": told["id"], "source": {"table": table}})


def _event(told: dict[str, Any]) -> Event:
    row = told["after"] or told["before"]
    return Event(
        told["event_id"],
        told["source"]["table"],
        told["op"],
        row["id"],
        told["after"] and told["after"].get("status"),
        tuple(told.get("tags") or ()),
    )
