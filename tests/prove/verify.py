"""Verification and repair of each kind of sink, beside a stream that goes on.

In each sink 100 rows are tampered with, a mix of missing, extra and changed ones. A verification
must name these and no others, a repair must mend them, and what each sink then holds is compared
with the tables without the product. Afterwards equal data is verified 20 times under load.
"""

import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from airflow_provider_deltaforge.control.verification import VerificationRun, repair
from airflow_provider_deltaforge.engine.verify.options import VerifyOptions
from airflow_provider_deltaforge.storage.records.verifications import Verification, Verifications
from tests.engine.verify_run import VerifyRun
from tests.prove import warehouse
from tests.prove.unit import Case, Task, Unit
from tests.prove.warehouse import Warehouse

SEEDS = 1
SOURCES = ("mysql", "mariadb", "postgres")
PLACES = {"sinks": ("kafka", "redis", "file", "reader"), "lake": ("spark",)}
"""Sinks of one pipeline. Spark has one of its own, over MySQL: its queries take longest."""
ROWS = {"missing": 34, "extra": 33, "different": 33}
VERIFICATIONS = 20
_STILL = range(301, 401)
"""Keys that no writer changes."""
_KEYS = {"wide": ("id",), "pair": ("a", "b")}
_SETTLE_S = 60.0

Rows = dict[tuple[str, str], Any]


def units(seeds: int) -> list[Unit]:
    """Return everything that is to be run."""
    return [
        Unit(
            area="verify",
            name=f"{source}/{place}/{seed}",
            run=f"{__name__}:run",
            cases=[{"source": source, "sink": sink, "seed": seed} for sink in sinks],
            kind=place,
            seconds=200,
            limit_s=2400.0,
            servers=("kafka", "redis", source),
        )
        for seed in range(seeds)
        for place, sinks in PLACES.items()
        for source in (SOURCES if place == "sinks" else SOURCES[:1])
    ]


def run(task: Task) -> None:
    """Run one pipeline into some sinks."""
    began = time.monotonic()
    source = task.cases[0]["source"]
    verified = VerifyRun(
        task.started[source], task.started["kafka"], task.started["redis"], task.home
    )
    proof = _Proof(task, verified)
    with contextlib.ExitStack() as stack:
        if proof.has("spark"):
            stack.enter_context(_spark())
        stack.enter_context(verified.running(sinks=proof.documents()))
        with verified.writing():
            proof.tamper()
            proof.find_and_mend()
            proof.verify_equal_data()
        proof.compare_with_tables()
    seconds = round(time.monotonic() - began, 1)
    for case in task.cases:
        found = proof.results[case["sink"]]
        result = "wrong" if found["wrong"] else "ok"
        task.add({**case, "seconds": seconds, "result": result, **found})


class _Proof:
    """One pipeline and what is found of its sinks."""

    def __init__(self, task: Task, verified: VerifyRun) -> None:
        self._run, self._home = verified, task.home
        self._sinks = [case["sink"] for case in task.cases]
        self.results: dict[str, Case] = {sink: {"wrong": []} for sink in self._sinks}
        self._chance = random.Random(f"{task.cases[0]['source']}/{task.cases[0]['seed']}")
        self._tampered: dict[str, dict[str, set[str]]] = {}
        self._warehouses: dict[str, Warehouse] = {}

    def has(self, sink: str) -> bool:
        """Return whether a sink is there."""
        return sink in self._sinks

    def documents(self) -> list[dict[str, Any]]:
        """Return the sinks of the document."""
        known = {sink["config"]["id"]: sink for sink in self._run.document()["spec"]["sinks"]}
        for sink, function in (("reader", "rows"), ("spark", "lake_rows")):
            path = self._home / f"{sink}.jsonl"
            name = f"{self._run.name} {sink}"
            verify = {"reader": f"tests.prove.warehouse:{function}", "options": {"name": name}}
            config = {"id": sink, "path": str(path), "verify": verify}
            known[sink] = {"type": "file", "config": config}
            if sink in self._sinks:
                held = Warehouse(path, _KEYS, self._home)
                self._warehouses[sink] = warehouse.OPEN[name] = held
        return [known[sink] for sink in self._sinks]

    def tamper(self) -> None:
        """Change what sinks hold of rows that nobody writes."""
        self._verified()  # Everything has arrived.
        for sink in self._sinks:
            still = self._chance.sample(_STILL, ROWS["missing"] + ROWS["different"])
            gone, changed = still[: ROWS["missing"]], still[ROWS["missing"] :]
            extra = [900_000 + number for number in range(ROWS["extra"])]
            if sink in self._warehouses:
                self._tamper_tables(self._warehouses[sink], gone, changed, extra)
            else:
                self._send(sink, "d", gone)
                self._send(sink, "u", changed)
                self._send(sink, "c", extra)
            self._tampered[sink] = {
                kind: {_key(number) for number in numbers}
                for kind, numbers in zip(ROWS, (gone, extra, changed), strict=True)
            }
        # The same row under its key in other words.
        for sink in {"kafka", "redis"} & set(self._sinks):
            number = self._chance.choice(_STILL)
            self._send(sink, "c", [number], key=f'{{"id": {number}}}')
            self._tampered[sink]["extra"].remove(_key(900_000))
            self._send(sink, "d", [900_000])
            self._tampered[sink]["extra"].add(f'{{"id": {number}}}')

    def find_and_mend(self) -> None:
        """Verify, repair and verify again."""
        found = self._verified()
        kept = Verifications(self._run.store, self._run.name).keys()
        assert kept is not None
        for sink in self._sinks:
            tables = {name.rpartition(".")[2]: keys for name, keys in kept.keys[sink].items()}
            named = {kind: set(keys) for kind, keys in tables.pop("wide", {}).items()}
            result, tampered = self.results[sink], self._tampered[sink]
            result["tampered"] = {kind: len(keys) for kind, keys in tampered.items()}
            result["found"] = {kind: len(keys) for kind, keys in named.items() if keys}
            if any(named.get(kind, set()) != keys for kind, keys in tampered.items()) or tables:
                result["wrong"].append(f"found {named} and {tables} instead of {tampered}"[:2000])
        asked = repair(self._run.store, self._run.name, found, "a proof", lambda: False)
        mended = self._verified()
        for sink, left in _differences(mended).items():
            self.results[sink] |= {"sent_again": asked.rows, "left": left}
            if left:
                self.results[sink]["wrong"].append(f"{left} rows differ after the repair")

    def verify_equal_data(self) -> None:
        """Verify again and again; nothing may differ."""
        reported, moving = dict.fromkeys(self._sinks, 0), dict.fromkeys(self._sinks, 0)
        for _ in range(VERIFICATIONS):
            found = self._verified()
            for sink in found.sinks:
                reported[sink.sink] += sum(table.differences for table in sink.tables)
                moving[sink.sink] += sum(table.inconclusive for table in sink.tables)
        for sink in self._sinks:
            counts = {"verifications": VERIFICATIONS, "reported": reported[sink]}
            self.results[sink] |= {**counts, "inconclusive": moving[sink]}
            if reported[sink]:
                self.results[sink]["wrong"].append(f"{reported[sink]} equal rows were reported")

    def compare_with_tables(self) -> None:
        """Compare what each sink holds with the tables, as a consumer would see it."""
        self._verified()  # Everything has arrived: nobody writes any more.
        for name, held in self._warehouses.items():
            held.advance()
            self._compare(name, _parsed(held.tables))
        for sink in set(self._sinks) - set(self._warehouses):
            self._compare(sink, self._held(sink))

    def _verified(self) -> Verification:
        options = VerifyOptions(tables=("*.wide", "*.pair"), rounds=4, wait_s=_SETTLE_S)
        verification = VerificationRun(self._run.store, self._run.name, options, "a proof")
        verification.begin()
        found = verification.run()
        assert found.state == "finished", found.reason
        reasons = [sink.reason for sink in found.sinks if sink.reason is not None]
        assert not reasons, reasons
        return found

    def _tamper_tables(
        self, held: Warehouse, gone: Sequence[int], changed: Sequence[int], extra: Sequence[int]
    ) -> None:
        held.advance()
        with held.lock:
            table = held.tables["wide"]
            sample = json.loads(table[_key(changed[0])])
            for number in gone:
                del table[_key(number)]
            for number in [*changed, *extra]:
                table[_key(number)] = json.dumps(sample | {"id": number, "s": "other"}).encode()

    def _send(self, sink: str, op: str, numbers: Sequence[int], key: str | None = None) -> None:
        """Write events as a foreign program would."""
        for number in numbers:
            event = self._run.event("wide", op, {"id": number, "s": "other"})
            text = (key or _key(number)).encode()
            if sink == "kafka":
                is_tombstone = op == "d" and self._chance.random() < 0.5
                self._run.send("wide", text, None if is_tombstone else event)
            elif sink == "redis":
                self._run.redis.xadd(f"{self._run.name}.wide", {"event": event, "df-key": text})
            else:
                self._run.append(event)

    def _held(self, sink: str) -> Rows:
        """Return the last event of each row, by table and key."""
        rows: Rows = {}
        for table, columns in _KEYS.items():
            for key, value in self._messages(sink, table):
                event = json.loads(value) if value else None
                if event is not None and event["source"]["table"] != table:
                    continue
                if event is None or event["after"] is None:
                    rows.pop((table, key or _key_of(table, event["before"])), None)
                    continue
                before = event["before"]
                if before and set(columns) <= set(before):
                    rows.pop((table, _key_of(table, before)), None)
                rows[table, key or _key_of(table, event["after"])] = event["after"]
        return rows

    def _messages(self, sink: str, table: str) -> Iterator[tuple[str, bytes | None]]:
        topic = f"{self._run.name}.{table}"
        if sink == "file":
            yield from (("", line) for line in self._run.file.read_bytes().splitlines())
        elif sink == "redis":
            for _, entry in self._run.redis.xrange(topic):
                yield entry[b"df-key"].decode(), entry[b"event"]
        else:
            yield from _kafka_messages(self._run.kafka.dsn(), topic)

    def _compare(self, sink: str, held: Rows) -> None:
        truth = {
            **{("wide", _key(number)): text for number, text in self._run.select("id, s", "wide")},
            **{
                ("pair", _key_of("pair", {"a": a, "b": b})): value
                for a, b, value in self._run.select("a, b, v", "pair")
            },
        }
        seen = {
            (table, key): row.get("s" if table == "wide" else "v")
            for (table, key), row in held.items()
        }
        other = [key for key in {*truth, *seen} if truth.get(key) != seen.get(key)]
        self.results[sink]["rows"] = len(seen)
        if other:
            text = f"{len(other)} rows are not those of the tables, such as {other[:3]}"
            self.results[sink]["wrong"].append(text)


def _key(number: int) -> str:
    return f'{{"id":{number}}}'


def _key_of(table: str, row: Mapping[str, Any]) -> str:
    return json.dumps({name: row[name] for name in _KEYS[table]}, separators=(",", ":"))


def _parsed(tables: Mapping[str, Mapping[str, bytes]]) -> Rows:
    return {
        (table, key): json.loads(image)
        for table, images in tables.items()
        for key, image in images.items()
    }


def _differences(found: Verification) -> dict[str, int]:
    return {sink.sink: sum(table.differences for table in sink.tables) for sink in found.sinks}


def _kafka_messages(brokers: str, topic: str) -> Iterator[tuple[str, bytes | None]]:
    settings = {"bootstrap.servers": brokers, "group.id": "proof", "enable.partition.eof": True}
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(30)
            assert message is not None, "Kafka is silent"
            if message.error():
                return  # The end of the partition.
            yield message.key().decode(), message.value()
    finally:
        consumer.close()


@contextlib.contextmanager
def _spark() -> Iterator[None]:
    from pyspark.sql import SparkSession

    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.memory", "1g").getOrCreate()
    try:
        yield
    finally:
        session.stop()
