"""What events become in Kafka: labels of CloudEvents, and what compacted topics are spared."""

import uuid

import pytest

from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.sinks.kafka import KafkaSink
from airflow_provider_deltaforge.testing.changes import change, change_rows
from airflow_provider_deltaforge.testing.sinks import messages
from tests.envelopes.changes import ORIGIN
from tests.sinks.kafka_reader import read_topic


@pytest.fixture
def brokers(kafka_server):
    return kafka_server.dsn()


@pytest.fixture
def topic():
    return f"orders-{uuid.uuid4().hex[:8]}"


def route(raw=False, headers=None):
    return {"topic": None, "key": None, "headers": headers, "raw_payload": raw}


@pytest.mark.parametrize(
    "routes", [(None, None), (None, route(raw=True)), (route(headers=[("h", "1")]), None)], ids=str
)
def test_a_cloud_event_says_that_it_is_one(brokers, topic, routes):
    """As the Kafka binding of CloudEvents asks of what has its attributes inside."""
    envelope = {"type": "cloudevents", "type_prefix": "com.acme"}
    sink = KafkaSink(brokers=brokers, topic=topic, tombstones=True, envelope=envelope)
    changes = [change(routing=each) for each in routes]
    changes.append(change(op="d", before=b'{"id":1}', after=None))
    batch, _ = Renderer(sink, ORIGIN).render(change_rows(changes))
    writer = sink.open("p")

    writer.write(batch)
    writer.close()

    label = ("content-type", b"application/cloudevents+json")
    own = [("h", b"1")] if routes[0] else []
    second = None if routes[1] else [label]
    found = [each.headers for each in read_topic(brokers, topic)]
    assert found == [[*own, label], second, [label], None]


def test_a_cloud_event_in_avro_is_not_called_json(brokers, topic):
    settings = {
        "envelope": {"type": "cloudevents", "type_prefix": "com.acme"},
        "encoding": {"type": "avro", "schema_registry_url": "http://registry"},
    }
    writer = KafkaSink(brokers=brokers, topic=topic, **settings).open("p")

    writer.write(messages([(topic, b"k", b"avro")]))
    writer.close()

    assert read_topic(brokers, topic)[0].headers == [("content-type", b"application/avro")]


def test_a_content_type_that_a_processor_chose_stays(brokers, topic):
    envelope = {"type": "cloudevents", "type_prefix": "com.acme"}
    writer = KafkaSink(brokers=brokers, topic=topic, envelope=envelope).open("p")

    writer.write(messages([(topic, b"k", b"{}")], [[("Content-Type", "text/plain")]]))
    writer.close()

    assert read_topic(brokers, topic)[0].headers == [("Content-Type", b"text/plain")]


def test_a_compacted_topic_takes_all_events_but_those_of_whole_tables(brokers, topic):
    sink = KafkaSink(
        brokers=brokers,
        topic=f"{topic}.${{source.table}}",
        create_topics={"config": {"cleanup.policy": "compact"}},
        tombstones=True,
        filter={"exclude_ops": ["truncate", "ddl"]},
    )
    image = b'{"id":1,"sku":"sku-1"}'
    changes = [
        change(),
        change(op="t", after=None, key=None),
        change(op="ddl", table="_ddl", after=None, key=None, ddl=b'{"sql":"ALTER"}'),
        change(op="d", before=image, after=None),
    ]
    batch, _ = Renderer(sink, ORIGIN).render(change_rows(changes))
    writer = sink.open("p")

    rejections = writer.write(batch)
    writer.close()

    assert list(rejections) == []
    assert batch.topics.unique().to_pylist() == [f"{topic}.orders"]
    found = read_topic(brokers, f"{topic}.orders")
    assert [(each.key, each.value is None) for each in found] == [
        (b'{"id":1}', is_tombstone) for is_tombstone in (False, False, True)
    ]
