"""Outbox messages of real servers through a whole pipeline, beside ordinary changes."""

import itertools
import json

import pytest

from tests.engine.driving import DrivenRun
from tests.servers import sql
from tests.sources.mysql.reading import fresh_database
from tests.sources.postgres.stream_reading import drop, execute, fresh
from tests.waiting import wait_for

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: {type}
    config: {{id: {name}, dsn: "{dsn}", {source}}}
  processors:
    - type: outbox
      topic: "{topic}"
      raw_payload: true
      {more}
  batch: {{max_ms: 10}}
  sinks:
    - type: memory
      config: {{id: out, log: {name}, topic: "cdc.${{source.db}}.${{source.table}}"}}
{sinks}
"""

TOPIC = "${aggregate_type}.${event_type}"
MESSAGE = {"aggregate_type": "Order", "aggregate_id": "1", "event_type": "OrderCreated"}

_unique = itertools.count()


class OutboxRun(DrivenRun):
    """One pipeline that turns outbox rows into messages, running."""

    def __init__(self, kind, dsn, source, topic=TOPIC, more="", sinks=""):
        name = f"outbox-{next(_unique)}"
        text = DOCUMENT.format(
            name=name, type=kind, dsn=dsn, source=source, topic=topic, more=more, sinks=sinks
        )
        super().__init__(name, text)
        self.start()

    def wait_messages(self, count):
        wait_for(f"{count} messages", lambda: len(self.messages()) >= count or self.ended())
        assert len(self.messages()) == count, self.driving.outcome
        return self.messages()


ORDER_CREATED = """
INSERT INTO {} (aggregate_type, aggregate_id, event_type, payload)
VALUES ('Order', '1', 'OrderCreated', '{{"customer":"alice","total":149.99}}')
"""
HEADERS = {
    "df-aggregate-type": "Order",
    "df-aggregate-id": "1",
    "df-event-type": "OrderCreated",
    "df-source-kind": "outbox",
}


@pytest.fixture(params=["mysql", pytest.param("mariadb", marks=pytest.mark.long)])
def server(request):
    found = request.getfixturevalue(f"{request.param}_server")
    if request.param == "mariadb":
        sql.execute(found, "INSTALL PLUGIN IF NOT EXISTS blackhole SONAME 'ha_blackhole'")
    return found


def test_a_black_hole_of_mysql_sends_its_payloads(server):
    fresh_database(
        server,
        "outbox_shop",
        "CREATE TABLE orders (id INT PRIMARY KEY, total DECIMAL(10,2))",
        "CREATE TABLE outbox (id INT AUTO_INCREMENT PRIMARY KEY, aggregate_type VARCHAR(64), "
        "aggregate_id VARCHAR(64), event_type VARCHAR(64), payload JSON) ENGINE=BLACKHOLE",
    )
    dsn = f"mysql://df:df-secret@{server.host}:{server.port}/outbox_shop"
    settings = 'tables: ["outbox_shop.*"], outbox: {tables: [outbox]}, snapshot: {mode: initial}'
    run = OutboxRun("mysql", dsn, settings, more="parse_payload: true")
    with sql.connect(server, "outbox_shop") as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO orders VALUES (1, 149.99)")
        cursor.execute(ORDER_CREATED.format("outbox"))
        connection.commit()
    order, created = run.wait_messages(2)
    run.stop()

    assert order.topic == "cdc.outbox_shop.orders"
    assert json.loads(order.value)["after"] == {"id": 1, "total": "149.99"}
    assert created.topic == "Order.OrderCreated"
    assert json.loads(created.value) == {"customer": "alice", "total": 149.99}
    assert created.key == b"1"
    assert dict(created.headers) == {"df-event-id": "1", **HEADERS}


def test_messages_in_the_log_of_postgres_need_no_table(postgres_server, tmp_path):
    fresh(postgres_server, "outbox_shop", "CREATE TABLE orders (id int PRIMARY KEY, total text)")
    emit = "SELECT pg_logical_emit_message({}, '{}', '{}')"
    body = json.dumps({**MESSAGE, "payload": {"total": 99.99}})
    try:
        settings = "tables: [public.orders], publication: p, slot: outbox_shop"
        run = OutboxRun(
            "postgres",
            postgres_server.dsn("outbox_shop"),
            f"{settings}, outbox: {{prefixes: [outbox]}}",
            topic=f"{tmp_path}/${{aggregate_type}}.jsonl",
            sinks=f"    - {{type: file, config: {{id: file, path: {tmp_path}/rest.jsonl}}}}",
        )
        execute(
            postgres_server,
            "INSERT INTO orders VALUES (42, '99.99')",
            emit.format("true", "outbox", body),
            emit.format("true", "outbox", "not json"),
            emit.format("false", "outbox", body),
            emit.format("true", "other", body),
            database="outbox_shop",
        )
        order, created, alone, other = run.wait_messages(4)
        run.stop()
    finally:
        drop(postgres_server, "outbox_shop")

    assert order.topic == "cdc.outbox_shop.orders"
    assert (created.value, created.key) == (b'{"total": 99.99}', b"1")
    assert dict(created.headers) == HEADERS
    assert (alone.topic, alone.value) == (created.topic, created.value)
    assert alone.event_id != created.event_id
    assert other.topic == "cdc.outbox_shop.other"
    assert json.loads(other.value)["source"]["schema"] == "__wal_message"
    assert (tmp_path / "Order.jsonl").read_bytes() == b'{"total": 99.99}\n' * 2
    assert len((tmp_path / "rest.jsonl").read_bytes().splitlines()) == 2


def test_strict_stops_where_a_message_lacks_something(postgres_server):
    fresh(postgres_server, "outbox_strict")
    body = json.dumps({"aggregate_type": "Planted", "payload": "planted-secret"})
    try:
        settings = "publication: outbox_pub, slot: outbox_strict, outbox: {prefixes: [outbox]}"
        dsn = postgres_server.dsn("outbox_strict")
        run = OutboxRun("postgres", dsn, settings, more="strict: true")
        execute(
            postgres_server,
            f"SELECT pg_logical_emit_message(true, 'outbox', '{body}')",
            database="outbox_strict",
        )
        wait_for("the stop", run.ended)
    finally:
        drop(postgres_server, "outbox_strict")

    progress = run.control.progress()
    assert (progress.status, progress.error_class) == ("failed", "event")
    assert "strict: it lacks topic, aggregate_id, event_type" in progress.reason
    assert "lanted" not in progress.reason
    assert not run.messages()
