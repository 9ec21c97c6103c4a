"""Writers that keep their position in Redis, one after the other, and what they write."""

import uuid

import pytest

from airflow_provider_deltaforge.sinks.redis import RedisSink
from airflow_provider_deltaforge.testing.sinks import messages, value


@pytest.fixture
def stream():
    return f"orders-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def rows(stream):
    return lambda span: messages([(stream, b"same", value(n)) for n in span])


@pytest.fixture
def pipeline():
    return f"p-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def open_redis_once(redis_server, pipeline):
    opened = []

    def do_open(server=redis_server, **settings):
        uri = server.dsn("0")
        sink = RedisSink(id="r", uri=uri, stream="s", exactly_once=True, **settings)
        opened.append(sink.open(pipeline))
        return opened[-1]

    yield do_open
    for writer in opened:
        writer.close()
