"""All rows of a chunk and its mark, or nothing: what snapshots write to exactly-once sinks."""

import random
import uuid

import pytest
import redis
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_deltaforge.engine.deliver.sink_fences import SinkFences
from airflow_provider_deltaforge.sinks.chunk_rows import ChunkMark, ChunkWriter
from airflow_provider_deltaforge.sinks.kafka import KafkaSink
from airflow_provider_deltaforge.sinks.nats import NatsSink
from airflow_provider_deltaforge.sinks.redis import RedisSink
from airflow_provider_deltaforge.testing.sinks import messages, value
from tests.engine.in_process import InProcess
from tests.sinks import nats_reader
from tests.sinks.kafka_reader import read_topic
from tests.sinks.redis_once import values


class _Place:
    """A sink, what a reader finds at ``name``, and ``closed``, which refuses some messages."""

    def __init__(self, sink, read, context=None):
        self.sink, self._read, self._context = sink, read, context
        self.name, self.closed = f"c{uuid.uuid4().hex[:8]}", f"c{uuid.uuid4().hex[:8]}"

    def open(self):
        writer = self.sink.without_position().open("chunks")
        assert isinstance(writer, ChunkWriter)
        if self._context is not None:
            writer.fence(SinkFences(self._context).of(self.sink.id, lambda: True))
        return writer

    def rows(self, span):
        return messages([(self.name, b"k%d" % n, value(n)) for n in span])

    def read(self):
        return self._read(self.name)


@pytest.fixture
def in_kafka(kafka_server):
    dsn = kafka_server.dsn()
    sink = KafkaSink(brokers=dsn, topic="t", exactly_once=True)
    place = _Place(sink, lambda name: [message.value for message in read_topic(dsn, name)])
    small = NewTopic(place.closed, 1, 1, config={"max.message.bytes": "300"})
    admin = AdminClient({"bootstrap.servers": dsn})
    admin.create_topics([small])[place.closed].result(60)
    return place


@pytest.fixture
def in_redis(redis_server):
    uri = redis_server.dsn("0")
    sink = RedisSink(id=uuid.uuid4().hex, uri=uri, stream="s", exactly_once=True)
    place = _Place(sink, lambda name: values(redis_server, name))
    with redis.Redis.from_url(uri) as client:
        client.set(place.closed, "no stream")
    return place


@pytest.fixture
def in_nats(nats_server):
    url, stream = nats_server.dsn(), f"C{uuid.uuid4().hex[:8]}"
    nats_reader.add_stream(url, stream, f"{stream}.>", max_msg_size=2000)
    sink = NatsSink(url=url, subject=f"{stream}.rows", stream=stream, exactly_once=True)
    place = _Place(sink, lambda _: nats_reader.values(url, stream), InProcess().context())
    place.name, place.closed = f"{stream}.rows", f"{stream}.other"
    return place


@pytest.fixture(params=["kafka", "redis", "nats"])
def place(request):
    return request.getfixturevalue(f"in_{request.param}")


def test_a_chunk_that_is_held_is_not_written_again(place):
    name = f"run/{uuid.uuid4().hex}"
    first, second = place.open(), place.open()

    written = first.write_chunk(place.rows(range(3)), ChunkMark(name, "view 1", is_first=True))
    again = second.write_chunk(place.rows(range(2, 9)), ChunkMark(name, "view 2", is_first=False))
    emptied = second.write_chunk(place.rows([]), ChunkMark(name, "view 3", is_first=False))
    other = second.write_chunk(place.rows([9]), ChunkMark(f"{name}2", "view 2", is_first=False))

    assert [each.text for each in (written, again, emptied, other)] == [
        "view 1",
        "view 1",
        "view 1",
        "view 2",
    ]
    assert place.read() == [value(n) for n in (0, 1, 2, 9)]


def test_of_a_chunk_with_a_message_that_is_refused_nothing_is_written(place):
    name = f"run/{uuid.uuid4().hex}"
    writer = place.open()
    rows = [(place.name, b"a", value(1)), (place.closed, b"b", random.randbytes(5000))]

    refused = writer.write_chunk(messages(rows), ChunkMark(name, "view 1", is_first=True))

    assert (refused.text, [each.event_row for each in refused.rejections]) == (None, [1])
    rest = writer.write_chunk(messages(rows[:1]), ChunkMark(name, "view 1", is_first=True))
    assert (rest.text, list(rest.rejections)) == ("view 1", [])
    held = place.open().write_chunk(place.rows([]), ChunkMark(name, "view 2", is_first=False))
    assert held.text == "view 1"
    assert place.read() == [value(1)]
