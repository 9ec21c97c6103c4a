"""Sinks carry Avro as it is, zeros and all."""

from dataclasses import replace

import pyarrow as pa
import pytest
import redis

from airflow_provider_deltaforge.encodings.avro import AvroEncoding
from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.sinks.http import HttpSink
from airflow_provider_deltaforge.sinks.nats import NatsSink
from airflow_provider_deltaforge.sinks.redis import RedisSink
from airflow_provider_deltaforge.testing.changes import change, change_rows
from tests.encodings.avro_reading import Writing
from tests.sinks.http.endpoint import Endpoint
from tests.sinks.nats_reader import add_stream, remove_stream, stored


@pytest.fixture
def messages():
    """Return messages whose values are Avro."""
    writing = Writing("mysql")
    changes = [
        change(after=b'{"n":%d}' % number, event_id=bytes([number] * 16)) for number in (5, 10)
    ]
    rows = change_rows(changes)
    made, _ = Renderer(writing.sink, writing.origin).render(rows)
    encoded, _ = writing.write(rows)
    values = encoded.values.to_pylist()
    assert all(b"\0" in value for value in values)
    return replace(made, values=encoded.values)


def to(messages, topic):
    return replace(messages, topics=pa.array([topic] * len(messages)).dictionary_encode())


def written(sink, messages):
    writer = sink.open("avro")
    try:
        assert not writer.write(messages)
    finally:
        writer.close()
    return messages.values.to_pylist()


def test_redis(messages, redis_server):
    sink = RedisSink(id="r", uri=redis_server.dsn("0"), stream="s")

    values = written(sink, to(messages, "avro"))

    with redis.Redis(host=redis_server.host, port=redis_server.port) as client:
        assert [fields[b"event"] for _, fields in client.xrange("avro")] == values
        client.delete("avro")


def test_nats(messages, nats_server):
    add_stream(nats_server.dsn(), "avro", "avro.>")
    sink = NatsSink(url=nats_server.dsn(), subject="avro.shop", stream="avro")

    values = written(sink, to(messages, "avro.shop"))

    assert [value for _, _, value in stored(nats_server.dsn(), "avro")] == values
    remove_stream(nats_server.dsn(), "avro")


def test_http(messages):
    endpoint = Endpoint()
    encoding = AvroEncoding(schema_registry_url="http://registry:8081")
    sink = HttpSink(url=endpoint.url, encoding=encoding)

    values = written(sink, to(messages, endpoint.url))
    endpoint.stop()

    assert [request.body for request in endpoint.taken] == values
    kinds = {request.headers.get("content-type") for request in endpoint.taken}
    assert kinds == {"application/avro"}
