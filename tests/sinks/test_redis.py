"""The Redis sink against real servers."""

import re
import sys
import uuid

import pytest
import redis

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.sinks.redis import RedisSink, entries
from airflow_provider_deltaforge.testing.sinks import SinkContract, messages, value


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


def test_a_key_that_holds_something_else_is_rejected_alone(redis_server, stream, writer):
    client(redis_server).set(f"{stream}-text", "x")
    given = [(stream, b"k", value(0)), (f"{stream}-text", b"k", value(1)), (stream, b"k", value(2))]

    rejections = writer.write(messages(given))

    assert [(one.event_row, one.kind) for one in rejections] == [(1, "routing")]
    assert f"stream '{stream}-text': WRONGTYPE" in rejections[0].reason
    assert values(redis_server, stream) == [value(0), value(2)]


def test_what_is_too_large_for_the_server_is_rejected_alone(redis_server, stream, writer):
    admin = client(redis_server)
    admin.config_set("proto-max-bulk-len", 2**20)
    try:
        texts = [value(0), b"x" * (2**20 + 1), b"y" * 2**20, value(1)]
        rejections = writer.write(messages([(stream, b"k", text) for text in texts]))
    finally:
        admin.config_set("proto-max-bulk-len", 512 * 2**20)

    assert [(one.event_row, one.kind) for one in rejections] == [(1, "message_too_large")]
    assert "proto-max-bulk-len" in rejections[0].reason
    assert values(redis_server, stream) == [texts[0], *texts[2:]]


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_key_or_headers_or_a_name_too_large_are_rejected_alone(
    redis_server, stream, exactly_once
):
    admin, large = client(redis_server), 2**20 + 1
    given = [
        (stream, b"k", value(0)),
        (stream, b"k" * large, value(1)),
        (stream, b"k", value(2)),
        (stream, b"k", value(3)),
        ("s" * large, b"k", value(4)),
        (stream, b"k" * (large - 1), value(5)),
    ]
    escaped = "\x01" * (large // 6)  # Six bytes each as JSON.
    headers = [None, None, [("h", "x" * large)], [("h", escaped)], None, [("h", "x" * 2**19)]]
    sink = RedisSink(id="r", uri=redis_server.dsn("0"), stream=stream, exactly_once=exactly_once)
    writer = sink.open(f"p-{stream}")
    admin.config_set("proto-max-bulk-len", 2**20)
    try:
        rejections = writer.write(messages(given, headers))
    finally:
        admin.config_set("proto-max-bulk-len", 512 * 2**20)
        writer.close()

    parts = {1: "key", 2: "header list", 3: "header list", 4: "stream's name"}
    assert [(one.event_row, one.kind) for one in rejections] == [
        (row, "message_too_large") for row in parts
    ]
    for one, part in zip(rejections, parts.values(), strict=True):
        assert re.search(rf"its {part} has \d+ bytes, more than the server takes", one.reason)
    assert values(redis_server, stream) == [value(0), value(5)]


def test_keys_and_headers_count_for_the_size_of_a_step(stream):
    keys = [b"k", b"k" * 2**19, b"k" * 2**19, b"k", b"k", b"k"]
    headers = [None, None, None, [("h", "x" * 2**19), ("i", None)], [("h" * 2**19, "")], []]
    batch = messages([(stream, key, value(n)) for n, key in enumerate(keys)], headers)

    assert list(entries.spans(batch)) == [(0, 2), (2, 3), (3, 4), (4, 6)]
    assert list(entries.spans(batch.slice(3, 3))) == [(0, 1), (1, 3)]
    assert list(entries.spans(batch.slice(0, 0))) == []


def test_a_message_without_a_value_is_rejected(redis_server, stream, writer):
    rejections = writer.write(messages([(stream, b"k", value(0)), (stream, b"k", None)]))

    assert [(one.event_row, one.kind) for one in rejections] == [(1, "invalid_record")]
    assert values(redis_server, stream) == [value(0)]


def test_streams_are_trimmed_to_about_the_length_asked_for(redis_server, stream):
    writer = RedisSink(id="r", uri=redis_server.dsn("0"), stream="s", max_len=100).open("p")
    for start in range(0, 3000, 1000):
        writer.write(rows(stream, range(start, start + 1000)))
    writer.close()

    kept = values(redis_server, stream)
    assert kept == [value(n) for n in range(3000)][-len(kept) :]
    assert 100 <= len(kept) < 400


def test_a_batch_of_many_steps_keeps_its_order(redis_server, stream, writer):
    texts = [b'{"n":%d,"note":"%b"}' % (n, b"x" * (n % 7 * 400)) for n in range(5000)]

    writer.write(messages([(stream, b"k%d" % (n % 9), text) for n, text in enumerate(texts)]))

    assert values(redis_server, stream) == texts


def test_the_extra_is_named_when_it_is_missing(sink, monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)

    with pytest.raises(SpecError, match=r"airflow-provider-deltaforge\[redis\]"):
        sink.open("p")


def test_a_policy_that_throws_streams_away_is_warned_of(redis_server, sink, caplog):
    admin = client(redis_server)
    admin.config_set("maxmemory-policy", "allkeys-lru")
    try:
        sink.open("p").close()
    finally:
        admin.config_set("maxmemory-policy", "noeviction")

    assert "noeviction" in caplog.text
