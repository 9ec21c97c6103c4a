"""The Redis sink against real servers."""

import uuid

import pytest
import redis

from airflow_provider_deltaforge.sinks.redis import RedisSink
from tests.sinks.contract import SinkContract, messages, value


def rows(stream, span, key=b"same"):
    return messages([(stream, key, value(n)) for n in span])


def client(server):
    return redis.Redis(host=server.host, port=server.port)


def values(server, stream):
    return [fields[b"event"] for _, fields in client(server).xrange(stream)]


@pytest.fixture
def stream():
    return f"orders-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def sink(redis_server):
    return RedisSink(id="r", uri=redis_server.dsn("0"), stream="${source.table}")


@pytest.fixture
def writer(sink):
    writer = sink.open("p")
    yield writer
    writer.close()


class TestRedisSink(SinkContract):
    @pytest.fixture
    def place(self, stream):
        return stream

    @pytest.fixture
    def stored(self, redis_server, stream):
        return lambda: values(redis_server, stream)


def test_fields_stand_in_the_documented_order(redis_server, stream, writer):
    given = [(stream, b'{"id":7}', b"{}"), (stream, None, b"[]"), (stream, b"", b"1")]
    headers = [[("h", "1"), ("i", "é")], None, []]

    batch = messages(given, headers)
    writer.write(batch)

    ids = [str(uuid.UUID(bytes=one)).encode() for one in batch.event_ids.to_pylist()]
    shared = [
        [(b"event", text), (b"event_id", name), (b"idempotency_key", name)]
        for (_, _, text), name in zip(given, ids, strict=True)
    ]
    found = [list(fields.items()) for _, fields in client(redis_server).xrange(stream)]
    assert found == [
        [*shared[0], (b"df-key", b'{"id":7}'), (b"df-headers", '{"h":"1","i":"é"}'.encode())],
        [*shared[1], (b"df-key", ids[1])],
        [*shared[2], (b"df-key", ids[2])],
    ]
