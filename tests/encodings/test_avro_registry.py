"""Avro against a real schema registry, read back by Confluent's own deserializer."""

import io
import json
from datetime import date, datetime, timezone
from decimal import Decimal

import fastavro
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.encodings.avro import AvroEncoding
from airflow_provider_deltaforge.encodings.avro.subjects import Subjects
from airflow_provider_deltaforge.engine.base.tuning import Tuning
from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.envelopes.cloudevents import CloudEventsEnvelope
from airflow_provider_deltaforge.envelopes.contract import Origin
from airflow_provider_deltaforge.envelopes.debezium import DebeziumEnvelope
from airflow_provider_deltaforge.envelopes.native import NativeEnvelope
from airflow_provider_deltaforge.errors import AccessError, FatalError, RetryableError
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sinks.memory import MemorySink
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from airflow_provider_deltaforge.testing.changes import change, change_rows
from tests.encodings.answering import Answering
from tests.encodings.avro_reading import absent, collect, id_in, read, rows_in
from tests.engine.driving import DrivenRun
from tests.engine.in_process import InProcess
from tests.engine.running import RunningLane
from tests.servers import sql
from tests.servers.process import free_port
from tests.sinks.kafka_reader import read_topic
from tests.sources.mysql.reading import fresh_database, source_of
from tests.waiting import wait_until

ORIGIN = Origin("orders-cdc", "acme", "mysql", "0.1.0")
ORDERS = TableSchema(
    "shop",
    None,
    "orders",
    (
        Column("id", "int", "int", nullable=False),
        Column("sku", "varchar", "varchar(20)"),
        Column("total", "decimal", "decimal(10,2)", numeric_precision=10, numeric_scale=2),
    ),
    ("id",),
)
VERSION = ORDERS.fingerprint
EMPTY = b'{"id":1,"sku":null,"total":null}'


@pytest.fixture
def registry(schema_registry_server):
    """The registry of the session, up, and without what former tests registered."""
    client = SchemaRegistryClient({"url": schema_registry_server.dsn(), "timeout": 30})
    for subject in client.get_subjects():
        client.delete_subject(subject)
        client.delete_subject(subject, permanent=True)
    client.set_compatibility(level="BACKWARD")
    yield client
    client.close()


@pytest.fixture
def renderer(schema_registry_server):
    """Make renderers, which are closed when the test ends."""
    made = []

    def make(schemas=(ORDERS,), envelope=None, **settings):
        known = {(s.db, s.schema, s.table, s.fingerprint): s for s in schemas}
        url = settings.pop("url", schema_registry_server.dsn())
        encoding = AvroEncoding(schema_registry_url=url, **settings)
        sink = MemorySink(
            topic="cdc.${source.table}", encoding=encoding, envelope=envelope or NativeEnvelope()
        )
        made.append(Renderer(sink, ORIGIN, lambda *table: known.get(table)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def one(**changed):
    return change_rows([change(schema_version=VERSION, **changed)])


def with_json(messages, rows, envelope):
    texts = envelope.wrap(rows, ORIGIN).to_pylist()
    return list(zip(messages, map(json.loads, texts), strict=True))


def test_each_envelope_gives_a_record_that_is_it(registry, renderer):
    changes = [
        change(schema_version=VERSION),
        change(op="d", before=EMPTY, after=None, schema_version=VERSION),
        change(op="r", source_position=None, tx_id=None, schema_version=VERSION, tags=["a", "b"]),
        change(op="ddl", table="_ddl", after=None, ddl=b'{"sql":"ALTER TABLE t","database":"shop"}',
               schema_version=None, key=None, tx_end=True),
        change(op="t", after=None, schema_version=VERSION, synthetic="me"),
    ]  # fmt: skip
    rows = change_rows(changes)
    registry.set_compatibility(level="NONE")  # A topic has one envelope, but not in this test.
    envelopes = [NativeEnvelope(), DebeziumEnvelope(), CloudEventsEnvelope(type_prefix="com.acme")]
    for envelope in envelopes:
        messages, rejections = renderer(envelope=envelope).render(rows)

        assert rejections == []
        for record, told in with_json(read(registry, messages), rows, envelope):
            absent(record, told.get("payload", told))
    assert set(registry.get_subjects()) == {"cdc.orders-value", "cdc._ddl-value"}
    newest = json.loads(registry.get_latest_version("cdc.orders-value").schema.schema_str)
    assert (newest["name"], newest["namespace"]) == (
        "CloudEvent",
        "deltaforge.cdc.mysql.shop.orders",
    )


def test_subjects_follow_the_strategy_and_the_topic_of_each_message(registry, renderer):
    other = TableSchema("shop", None, "parts", ORDERS.columns, ("id",))
    routed = {"topic": "elsewhere", "key": None, "headers": None, "raw_payload": None}
    bare = {"topic": "bare", "key": None, "headers": None, "raw_payload": True}
    rows = change_rows(
        [
            change(schema_version=VERSION),
            change(table="parts", schema_version=other.fingerprint),
            change(routing=routed, schema_version=VERSION),
            change(routing=bare, schema_version=VERSION),
        ]
    )
    record = "deltaforge.cdc.mysql.shop"
    bare_record = "deltaforge.mysql.shop.orders.Value"
    expected = {
        "topic_name": {"cdc.orders-value", "cdc.parts-value", "elsewhere-value", "bare-value"},
        "record_name": {f"{record}.orders.Envelope", f"{record}.parts.Envelope", bare_record},
        "topic_record_name": {
            f"cdc.orders-{record}.orders.Envelope",
            f"cdc.parts-{record}.parts.Envelope",
            f"elsewhere-{record}.orders.Envelope",
            f"bare-{bare_record}",
        },
    }
    for strategy, wanted in expected.items():
        before = set(registry.get_subjects())
        messages, rejections = renderer((ORDERS, other), subject_strategy=strategy).render(rows)

        assert rejections == []
        assert set(registry.get_subjects()) - before == wanted
        found = read(registry, messages)
        assert [event["source"]["table"] for event in found[:3]] == ["orders", "parts", "orders"]
        assert found[3] == {"id": 1, "sku": "sku-1", "total": "12.50", "_raw": None}


def test_several_tables_share_a_topic_while_their_columns_agree(registry, renderer):
    parts = TableSchema(
        "shop", None, "parts", (Column("id", "int", "int"), Column("n", "int", "int"))
    )
    clash = TableSchema("shop", None, "clash", (Column("sku", "int", "int"),))
    routed = {"topic": "all", "key": None, "headers": None, "raw_payload": None}
    to_one = {"routing": routed}
    rows = change_rows(
        [
            change(**to_one, schema_version=VERSION),
            change(**to_one, table="parts", after=b'{"n":2}', schema_version=parts.fingerprint),
            change(**to_one, table="clash", after=b'{"sku":3}', schema_version=clash.fingerprint),
            change(**to_one, op="ddl", table="_ddl", after=None, schema_version=None),
        ]
    )  # fmt: skip
    registry.set_compatibility(level="BACKWARD_TRANSITIVE")
    messages, rejections = renderer((ORDERS, parts, clash)).render(rows)

    assert [event["source"]["table"] for event in read(registry, messages)] == [
        "orders",
        "parts",
        "_ddl",
    ]
    assert messages.event_rows.to_pylist() == [0, 1, 3]
    [refused] = rejections
    assert (refused.event_row, refused.kind) == (2, "serialization")
    assert "answers 409 for subject 'all-value'" in refused.reason
    assert "relax the subject's compatibility" in refused.reason


def test_what_scripts_add_becomes_fields_and_stays_compatible(registry, renderer):
    added = [
        b'{"id":1,"sku":"a","total":"1.00"}',
        b'{"id":2,"sku":"b","total":"2.00","tax":0.25,"big":123456789012345678901}',
        b'{"id":3,"total":"3.00","tax":"none","list":[1,{"a":2}],"ok":true}',
        b'{"id":4,"sku":"masked","total":12.5,"tax":7}',
    ]
    registry.set_compatibility(level="FULL_TRANSITIVE")
    own = renderer()
    found = [read(registry, own.render(one(after=image))[0])[0]["after"] for image in added]

    assert found[0] == {"id": 1, "sku": "a", "total": found[0]["total"], "_raw": None}
    assert {k: found[1][k] for k in ("tax", "big")} == {
        "tax": 0.25,
        "big": {"text": "123456789012345678901"},
    }
    assert {k: found[2][k] for k in ("sku", "tax", "list", "ok")} == {
        "sku": None, "tax": "none", "list": {"text": '[1,{"a":2}]'}, "ok": True
    }  # fmt: skip
    assert (found[3]["tax"], str(found[3]["total"])) == (7, "12.50")
    assert len(registry.get_versions("cdc.orders-value")) == 3
    # Begun anew, the worker knows of no such keys, and its smaller schema is still accepted.
    anew = renderer().render(one(after=added[1]))
    assert anew[1] == []
    assert read(registry, anew[0])[0]["after"]["tax"] == 0.25


def altered_and_read(server):
    """Return what the log tells of a table that is altered again and again."""
    columns = "id int primary key, n int, d decimal(8,2) not null, e enum('a','b')"
    fresh_database(server, "avro_ddl", f"CREATE TABLE t ({columns})")
    source = source_of(server, "avro_ddl")
    reader = source.open(source.head())
    session = "SET SESSION sql_mode = ''"
    sql.execute(
        server,
        session,
        "INSERT INTO t VALUES (1, 10, 1.5, 'a')",
        "ALTER TABLE t ADD COLUMN more varchar(20) NOT NULL, ADD COLUMN at datetime(6)",
        "INSERT INTO t VALUES (2, 20, 2.5, 'b', 'x', '2024-02-29 01:02:03.5')",
        "ALTER TABLE t DROP COLUMN d, MODIFY n int NOT NULL, MODIFY e enum('a','b','c')",
        "INSERT INTO t VALUES (3, 30, 'c', 'y', NULL)",
        "ALTER TABLE t MODIFY n bigint",
        "INSERT INTO t VALUES (4, 9007199254740993, 'a', 'z', NULL)",
        "ALTER TABLE t MODIFY n varchar(20)",
        "INSERT INTO t VALUES (5, 'text', 'a', 'z', NULL)",
        database="avro_ddl",
    )
    batches = []
    try:
        wait_until(lambda: collect(reader, batches) >= 5)
    finally:
        reader.close()
    return batches


def test_a_table_that_is_altered_keeps_its_subject_and_old_messages_their_reader(
    registry, renderer, mysql_server
):
    batches = altered_and_read(mysql_server)
    schemas = [schema for batch in batches for schema in batch.schemas]
    own = renderer(schemas, enum_mode="enum", naive_timestamp_mode="timestamp")
    found, rejections, written = [], [], []
    for batch in batches:
        messages, refused = own.render(batch.rows)
        found += [event for event in read(registry, messages) if event["op"] == "c"]
        written += messages.values.to_pylist()
        rejections += refused

    rows = [event["after"] for event in found]
    assert [row["id"] for row in rows] == [1, 2, 3, 4]
    assert str(rows[0]["d"]) == "1.50"
    assert (rows[1]["more"], rows[1]["at"].isoformat()) == ("x", "2024-02-29T01:02:03.500000+00:00")
    assert "d" not in rows[2]
    assert (rows[2]["e"], rows[3]["n"]) == ("c", 9007199254740993)
    # A number that becomes text is no change that old readers survive: the registry says no.
    assert {one.kind for one in rejections} == {"serialization"}
    assert all("409" in one.reason for one in rejections)
    assert len(registry.get_versions("cdc.t-value")) == 4
    newest = fastavro.parse_schema(
        json.loads(registry.get_latest_version("cdc.t-value").schema.schema_str)
    )
    first = next(
        value
        for value in written
        if registry.get_schema(id_in(value)).schema_str.count('"name":"d"')
    )
    wrote = fastavro.parse_schema(json.loads(registry.get_schema(id_in(first)).schema_str))
    read_anew = fastavro.schemaless_reader(io.BytesIO(first[5:]), wrote, newest)
    assert read_anew["after"] == {
        "id": 1,
        "n": 10,
        "e": "a",
        "more": None,
        "at": None,
        "_raw": None,
    }


def test_a_registry_that_is_away_stops_only_what_is_not_known_yet(
    schema_registry_server, registry, renderer
):
    way = Answering(forward=schema_registry_server.dsn())
    own = renderer(url=way.url)
    known, _ = own.render(one())
    way.end()
    again, rejections = own.render(one(after=b'{"id":2,"sku":null,"total":null}'))
    with pytest.raises(RetryableError, match=r"registry does not answer .*; check that http"):
        own.render(one(after=b'{"id":3,"new":1}'))

    anew, _ = renderer(url=way.url).render(one())  # The next lane of this process.

    assert rejections == []
    assert anew.values.to_pylist() == known.values.to_pylist()
    assert again.values[0].as_py()[:5] == known.values[0].as_py()[:5]
    assert [event["after"]["id"] for event in read(registry, again)] == [2]


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (401, 1, AccessError),
        (403, 1, AccessError),
        (404, 1, FatalError),
        (422, 42205, RetryableError),  # Read-only.
        (429, 1, RetryableError),
        (503, 1, RetryableError),
    ],
)
def test_refusals_are_distinguished_and_hold_no_secret(renderer, status, code, error):
    server = Answering(status, code=code)
    try:
        with pytest.raises(error) as caught:
            renderer(url=server.url, username="df", password="s3cret-df").render(one())
    finally:
        server.end()

    assert server.asked == ["Basic ZGY6czNjcmV0LWRm"]
    assert "s3cret" not in str(caught.value)
    assert str(status) in str(caught.value)


def test_a_registry_that_never_answers_is_given_up_in_time():
    server = Answering()
    try:
        with pytest.raises(RetryableError, match="does not answer"):
            Subjects(server.url, None, None, "sink s", request_s=0.2).id_of("orders", "{}")
    finally:
        server.end()


def lane_of(url, **more):
    sink = f"encoding: {{type: avro, schema_registry_url: '{url}'}}"
    pipeline = InProcess(sink=sink, **more)
    pipeline.begin_at(out=0)
    return pipeline


def test_a_lane_is_blocked_while_the_registry_is_away_and_loses_nothing(
    registry, schema_registry_server
):
    gate = Answering(503)
    pipeline = lane_of(gate.url)
    running = RunningLane(pipeline)
    wait_until(lambda: pipeline.status()[0] == "blocked")
    progress = pipeline.control.progress()
    assert progress.reason.startswith("sink out: ")
    assert "the schema registry answers 503 for subject" in progress.reason
    assert progress.sinks["out"].status == "blocked"
    assert pipeline.log().messages() == []
    gate.forward = schema_registry_server.dsn()
    wait_until(lambda: {at["tx"] for at in pipeline.checkpoints().load().values()} == {20})
    pipeline.want("stopped")
    assert running.end().why == "stopped"
    gate.end()

    source = pipeline.context().pipeline.spec.source
    expected = [(tx, row) for tx, row, _ in source.events(1, 20)]
    assert rows_in(registry, pipeline.log()) == expected


@pytest.mark.parametrize(
    ("status", "error_class"), [(None, "retryable"), (401, "access")], ids=["away", "denied"]
)
def test_an_optional_sink_waits_for_its_registry_alone_and_misses_nothing(
    registry, schema_registry_server, status, error_class
):
    port = free_port()
    gate = None if status is None else Answering(status, port=port)
    tuning = Tuning(beat_s=0.05, refused_sink_s=0.5)
    pipeline = InProcess(sinks=("out", "side"), optional=("side",), tuning=tuning)
    encoding = f"encoding: {{type: avro, schema_registry_url: 'http://127.0.0.1:{port}'}}, "
    side = f"log: {pipeline.name}-side, "
    pipeline.document = pipeline.document.replace(side, side + encoding)
    pipelines.apply(pipeline.store, pipeline.document)
    pipeline.want("running")
    pipeline.begin_at(out=0, side=0)
    running = RunningLane(pipeline)
    wait_until(lambda: pipeline.checkpoints().load()["out"]["tx"] == 20)
    wait_until(lambda: pipeline.control.progress().sinks["side"].status == "behind")
    told = pipeline.control.progress()
    assert (told.status, told.sinks["side"].error_class) == ("running", error_class)
    assert "the schema registry" in told.sinks["side"].reason
    assert pipeline.checkpoints().load()["side"]["tx"] == 0

    if gate is None:
        gate = Answering(forward=schema_registry_server.dsn(), port=port)
    gate.forward = schema_registry_server.dsn()
    wait_until(lambda: pipeline.checkpoints().load()["side"]["tx"] == 20)
    pipeline.want("stopped")
    assert running.end().why == "stopped"
    gate.end()
    source = pipeline.context().pipeline.spec.source
    expected = [(tx, row) for tx, row, _ in source.events(1, 20)]
    assert list(dict.fromkeys(rows_in(registry, pipeline.log("side")))) == expected


@pytest.mark.parametrize("journal", ["", "enabled: true"])
def test_what_the_registry_refuses_is_set_aside_or_stops_the_pipeline(
    registry, schema_registry_server, journal
):
    taken = '{"type":"record","name":"Envelope","fields":[{"name":"op","type":"int"}]}'
    from confluent_kafka.schema_registry import Schema

    registry.register_schema("script.rows-value", Schema(taken, "AVRO"))
    pipeline = lane_of(schema_registry_server.dsn(), journal=journal)
    running = RunningLane(pipeline)
    if not journal:
        outcome = running.end()
        assert (outcome.why, outcome.error_class) == ("failed", "event")
        assert "answers 409 for subject 'script.rows-value'" in outcome.reason
        assert pipeline.checkpoints().load()["out"] == {"tx": 0}
        return
    wait_until(lambda: {at["tx"] for at in pipeline.checkpoints().load().values()} == {20})
    pipeline.want("stopped")
    assert running.end().why == "stopped"
    assert pipeline.log().messages() == []
    assert DeadLetterRecords(pipeline.store, pipeline.name).count() == 60


DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: mysql
    config: {{id: {name}, dsn: "{dsn}", tables: ["*"], snapshot: {{mode: initial}}}}
  batch: {{max_ms: 10}}
  sinks:
    - type: kafka
      config:
        id: out
        brokers: "{brokers}"
        topic: "{name}.${{source.table}}"
        tombstones: true
        encoding: {{type: avro, schema_registry_url: "{registry}"}}
"""


def test_mysql_to_kafka_read_back_by_the_reader_of_confluent(
    registry, schema_registry_server, mysql_server, kafka_server
):
    name = "avro_whole"
    fresh_database(
        mysql_server,
        name,
        "CREATE TABLE items (id bigint unsigned primary key, price decimal(12,4) not null, "
        "made date, at timestamp(6) null, body blob)",
        "INSERT INTO items VALUES (1, 12.5, '2024-02-29', '2024-02-29 12:34:56.789012', X'00FF')",
    )
    document = DOCUMENT.format(
        name=name,
        dsn=mysql_server.dsn(name),
        brokers=kafka_server.dsn(),
        registry=schema_registry_server.dsn(),
    )
    run = DrivenRun(name, document).start()
    sql.execute(
        mysql_server,
        "UPDATE items SET price = -0.0001, made = NULL WHERE id = 1",
        "ALTER TABLE items ADD COLUMN note varchar(20) NOT NULL DEFAULT 'none'",
        "INSERT INTO items VALUES (18446744073709551615, 7, '1999-12-31', NULL, NULL, 'new')",
        "DELETE FROM items WHERE id = 1",
        database=name,
    )
    topic = f"{name}.items"
    wait_until(lambda: run.ended() or len(read_topic(kafka_server.dsn(), topic)) >= 5)
    assert run.stop().why == "stopped"

    deserializer = AvroDeserializer(registry)
    found = [deserializer(message.value, None) for message in read_topic(kafka_server.dsn(), topic)]
    assert [event and event["op"] for event in found] == ["r", "u", "c", "d", None]
    copied, updated, made, deleted, _ = found
    first = {
        "id": "1",
        "price": Decimal("12.5000"),
        "made": date(2024, 2, 29),
        "at": datetime(2024, 2, 29, 12, 34, 56, 789012, timezone.utc),
        "body": b"\x00\xff",
        "_raw": None,
    }
    assert copied["after"] == first
    assert copied["source"]["snapshot"] == "true"
    assert updated["before"] == first
    assert updated["after"] == {**first, "price": Decimal("-0.0001"), "made": None}
    assert (made["after"]["id"], made["after"]["note"]) == ("18446744073709551615", "new")
    assert (deleted["before"]["note"], deleted["after"]) == ("none", None)
    assert len(registry.get_versions(f"{topic}-value")) == 2
