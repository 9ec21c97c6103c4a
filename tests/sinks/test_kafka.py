"""The Kafka sink against real brokers."""

import base64
import os
import re
import shutil
import time
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sinks.kafka import KafkaSink
from airflow_provider_deltaforge.testing.sinks import SinkContract, messages, value
from tests.servers import kafka
from tests.servers.process import ServerError
from tests.sinks.kafka_reader import read_topic
from tests.sinks.kafka_work import create, rows, until_written, values
from tests.waiting import PATIENCE_S, wait_for

MANY = 20_000
BATCH = 50
SEGMENT = 1 << 20


@pytest.fixture
def brokers(kafka_server):
    return kafka_server.dsn()


@pytest.fixture
def topic():
    return f"orders-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def sink(brokers):
    return KafkaSink(brokers=brokers, topic="${source.table}")


@pytest.fixture
def writer(sink):
    writer = sink.open("p")
    yield writer
    writer.close()


class TestKafkaSink(SinkContract):
    @pytest.fixture
    def place(self, topic):
        return topic

    @pytest.fixture
    def stored(self, brokers, topic):
        return lambda: values(brokers, topic)


def test_keys_headers_and_tombstones_arrive(brokers, topic, writer):
    given = [(topic, b"a", b"{}"), (topic, None, b"[]"), (topic, b"a", None)]
    headers = [[("h", "a\0b"), ("i", "é")], None, []]

    writer.write(messages(given, headers))

    found = read_topic(brokers, topic)
    assert [(topic, each.key, each.value) for each in found] == given
    assert found[0].headers == [("h", b"a\0b"), ("i", "é".encode())]
    assert [each.headers for each in found[1:]] == [None, None]


def test_keys_go_to_the_partition_the_java_client_chooses(brokers, writer):
    topic = create(brokers, partitions=4)

    writer.write(messages([(topic, key, key) for key in (b"foobar", b"21", b"foobar")]))

    # murmur2("foobar") = -790332482 and murmur2("21") = -973932308 in Kafka's own tests.
    assert {each.key: each.partition for each in read_topic(brokers, topic)} == {
        b"foobar": (-790332482 & 0x7FFFFFFF) % 4,
        b"21": (-973932308 & 0x7FFFFFFF) % 4,
    }


def test_messages_go_to_the_partitions_of_their_shards(brokers, writer):
    topic = create(brokers, partitions=4)
    given = replace(
        messages([(topic, b"k%d" % n, value(n)) for n in range(4)]),
        shards=pa.array([3, 0, 3, 1], pa.int32()),
    )

    writer.write(given)

    assert {each.key: each.partition for each in read_topic(brokers, topic)} == {
        b"k0": 3,
        b"k1": 0,
        b"k2": 3,
        b"k3": 1,
    }
    with pytest.raises(RetryableError, match=r"sharding\.count .*: add partitions, or lower it"):
        writer.write(replace(given, shards=pa.array([3, 0, 4, 1], pa.int32())))


def test_a_small_batch_does_not_wait_for_linger(brokers, topic):
    # Longer than the patience with an acknowledgement: a batch that waits for it fails.
    conf = {"linger.ms": 600_000}
    writer = KafkaSink(brokers=brokers, topic=topic, client_conf=conf, send_timeout_secs=60)
    writer = writer.open("p")
    for n in range(30):
        writer.write(rows(topic, [n]))
    writer.close()

    assert values(brokers, topic) == [value(n) for n in range(30)]


def test_a_full_queue_is_waited_for(brokers, topic):
    conf = {"queue.buffering.max.messages": 20}
    writer = KafkaSink(brokers=brokers, topic=topic, client_conf=conf).open("p")

    assert list(writer.write(rows(topic, range(1000)))) == []
    writer.close()

    assert values(brokers, topic) == [value(n) for n in range(1000)]


def test_acks_of_one_gives_up_idempotence_and_says_so(brokers, topic, caplog):
    writer = KafkaSink(brokers=brokers, topic=topic, client_conf={"acks": "1"}).open("p")

    writer.write(rows(topic, range(100)))
    writer.close()

    assert values(brokers, topic) == [value(n) for n in range(100)]
    assert "idempotence" in caplog.text


def test_too_large_for_the_client_is_rejected_alone(brokers, topic, writer):
    given = [(topic, b"k", value(0)), (topic, b"k", b"x" * 2_000_000), (topic, b"k", value(1))]

    rejections = writer.write(messages(given))

    assert [(each.event_row, each.kind) for each in rejections] == [(1, "message_too_large")]
    assert values(brokers, topic) == [value(0), value(1)]


def test_too_large_for_the_topic_is_rejected_alone(brokers, writer):
    topic = create(brokers, max_message_bytes=5000, compression_type="uncompressed")
    large = uuid.uuid4().bytes * 1000
    given = [(topic, b"k", value(n)) for n in range(50)]
    given[20] = (topic, b"k", bytes(reversed(large)) + large)

    rejections = writer.write(messages(given))
    writer.write(rows(topic, range(50, 60)))

    assert [(each.event_row, each.kind) for each in rejections] == [(20, "message_too_large")]
    found = values(brokers, topic)
    expected = [value(n) for n in range(60) if n != 20]
    assert list(dict.fromkeys(found)) == expected
    assert found[-len(expected) :] == expected


def test_a_compacted_topic_refuses_only_the_message_without_a_key(brokers, writer):
    topic = create(brokers, cleanup_policy="compact")
    given = [(topic, b"k" if n != 3 else None, value(n)) for n in range(6)]

    rejections = writer.write(messages(given))

    assert [(each.event_row, each.kind) for each in rejections] == [(3, "invalid_record")]
    assert "filter: {exclude_ops: [truncate, ddl]}" in rejections[0].reason
    assert values(brokers, topic)[-5:] == [value(n) for n in (0, 1, 2, 4, 5)]


@pytest.mark.parametrize("create_topics", [None, {}])
def test_an_illegal_topic_name_is_rejected_alone(brokers, topic, create_topics):
    writer = KafkaSink(brokers=brokers, topic="t", create_topics=create_topics).open("p")
    places = ["not legal!", topic, "x" * 300, "a\0b", "a\0c"]
    given = [(place, b"k", value(n)) for n, place in enumerate(places)]

    rejections = writer.write(messages(given))
    writer.close()

    assert [(each.event_row, each.kind) for each in rejections] == [
        (row, "routing") for row in (0, 2, 3, 4)
    ]
    assert rejections[0].reason.startswith("kafka sink kafka: topic 'not legal!': Broker: Invalid")
    assert rejections[0].reason.endswith("; correct 'topic', or the processor that routed it")
    assert len(rejections[1].reason) < 400
    assert rejections[2].reason.startswith("kafka sink kafka: topic 'a\\x00b': holds a NUL")
    assert values(brokers, topic) == [value(1)]


@pytest.mark.parametrize("create_topics", [None, {}])
def test_a_topic_name_like_that_of_another_topic_is_rejected_alone(brokers, topic, create_topics):
    """Brokers make no two topics whose names differ by a dot and an underscore only."""
    writer = KafkaSink(brokers=brokers, topic="t", create_topics=create_topics).open("p")
    first, second = f"{topic}.us_orders", f"{topic}_us.orders"
    writer.write(messages([(first, b"k", value(0))]))

    rejections = writer.write(messages([(second, b"k", value(1)), (first, b"k", value(2))]))
    writer.close()

    assert [(each.event_row, each.kind) for each in rejections] == [(0, "routing")]
    assert "collide" in rejections[0].reason
    assert first in rejections[0].reason
    assert values(brokers, first) == [value(0), value(2)]


def test_tls_to_a_broker_without_it_says_what_it_is(brokers):
    # A broker that is stopping closes connections in the same way, so this is not yet an error.
    conf = {"security.protocol": "ssl"}
    writer = KafkaSink(brokers=brokers, topic="t", send_timeout_secs=1, client_conf=conf).open("p")

    with pytest.raises(RetryableError, match="SSL"):
        writer.write(rows("t", range(1)))
    writer.close()


def test_a_reason_is_not_hidden_by_the_summary_that_follows_it(writer):
    writer._errors.note(KafkaError(KafkaError._SSL, "certificate verify failed"))
    writer._errors.note(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))

    assert "certificate verify failed" in writer._errors.last


def test_many_messages_arrive_in_order(brokers, topic, writer):
    keys = [b'{"id":%d}' % n for n in range(MANY)]
    texts = [b'{"n":%d,"note":"%b"}' % (n, b"x" * 220) for n in range(MANY)]
    parts = [
        messages([(topic, keys[n], texts[n]) for n in range(start, start + 2000)])
        for start in range(0, MANY, 2000)
    ]

    for each in parts:
        assert list(writer.write(each)) == []

    assert values(brokers, topic) == texts


class Outage:
    """One time without a broker: starting it takes seconds, and four writers can share it."""

    def __init__(self, server):
        self.server, self._made = server, uuid.uuid4().hex[:8]
        self.waiting = self.open("waiting", send_timeout_secs=2)
        self.giving_up = self.open("giving_up", send_timeout_secs=2)
        # Waiting for the sink's own patience would not end within a test's time.
        conf = {"message.timeout.ms": "1000"}
        self.bounded = self.open("bounded", send_timeout_secs=3600, client_conf=conf)
        self.batch = self.rows("waiting", range(10, 500))
        until_written(self.waiting, self.rows("waiting", range(10)))
        until_written(self.giving_up, self.rows("giving_up", range(1)))
        until_written(self.bounded, self.rows("bounded", range(1)))
        server.stop()
        try:
            self.starting = self.open("starting", send_timeout_secs=1)
            self.said = {
                "waiting": [refused(self.waiting, self.batch) for _ in range(2)],
                "giving_up": [refused(self.giving_up, self.rows("giving_up", range(1, 100)))],
                "bounded": [refused(self.bounded, self.rows("bounded", range(1, 3)))],
                "starting": [refused(self.starting, self.rows("starting", range(3)))],
            }
        finally:
            server.start_again()
        # At once, so that the broker has been offered nothing of what was given up.
        until_written(self.giving_up, self.rows("giving_up", range(100, 200)))

    def open(self, name, **settings):
        sink = KafkaSink(brokers=self.server.dsn(), topic=self.topic(name), **settings)
        return sink.open("p")

    def topic(self, name):
        return f"{name}-{self._made}"

    def rows(self, name, span):
        return rows(self.topic(name), span)

    def values(self, name):
        return values(self.server.dsn(), self.topic(name))

    def close(self):
        for writer in (self.waiting, self.giving_up, self.bounded, self.starting):
            writer.close()


@pytest.fixture(scope="module")
def outage(kafka_server):
    outage = Outage(kafka_server)
    yield outage
    outage.close()


class TestAStoppedBroker:
    """What happens to batches while the broker is away, and when it is back."""

    def test_it_is_retryable_and_the_batch_arrives_once(self, outage):
        assert all("not acknowledged after 2 s" in said for said in outage.said["waiting"])

        until_written(outage.waiting, outage.batch)
        until_written(outage.waiting, outage.rows("waiting", range(500, 510)))

        assert outage.values("waiting") == [value(n) for n in range(510)]

    def test_a_batch_given_up_never_arrives_behind_a_newer_one(self, outage):
        time.sleep(2)

        assert outage.values("giving_up") == [value(n) for n in (0, *range(100, 200))]

    def test_a_pipeline_may_start_while_the_broker_is_away(self, outage):
        assert "reachable" in outage.said["starting"][0]

        until_written(outage.starting, outage.rows("starting", range(3)))

        assert outage.values("starting") == [value(n) for n in range(3)]

    def test_message_timeout_bounds_the_batch_when_it_is_shorter(self, outage):
        assert "after 1 s" in outage.said["bounded"][0]


def refused(writer, batch):
    """Write what the broker cannot take now; return what is said of it."""
    with pytest.raises(RetryableError) as caught:
        writer.write(batch)
    return str(caught.value)


class TestOutage:
    """What happens to a batch while the broker is away."""

    @pytest.fixture
    def server(self, kafka_server):
        yield kafka_server
        try:
            kafka_server.resume()
        except ServerError:
            kafka_server.start_again()

    @pytest.fixture
    def writer(self, server):
        sink = KafkaSink(brokers=server.dsn(), topic="t", send_timeout_secs=2)
        writer = sink.open("p")
        yield writer
        writer.close()

    def test_a_frozen_broker_gets_each_message_once(self, server, topic, writer):
        until_written(writer, rows(topic, range(10)))
        server.pause()
        batch = rows(topic, range(10, 500))
        with pytest.raises(RetryableError):
            writer.write(batch)
        server.resume()

        until_written(writer, rows(topic, range(10, 500)))

        assert values(server.dsn(), topic) == [value(n) for n in range(500)]

    def test_a_killed_broker_neither_loses_nor_reorders(self, server, topic, writer):
        for n in range(40):
            if n in {10, 25}:
                server.kill()
                with pytest.raises(RetryableError):
                    writer.write(rows(topic, range(n * 50, n * 50 + 50)))
                server.start_again()
            until_written(writer, rows(topic, range(n * 50, n * 50 + 50)))

        found = values(server.dsn(), topic)
        assert list(dict.fromkeys(found)) == [value(n) for n in range(2000)]
        assert found[-1] == value(1999)


def disk_batch(topic, number):
    """Return a batch that is a tenth of a segment: a broker notices at the next one's start."""
    texts = [b"%d %b" % (number * BATCH + n, os.urandom(1024).hex().encode()) for n in range(BATCH)]
    return messages([(topic, b"same", text) for text in texts])


def until_the_disk_failed(failed, writer, topic):
    """Write until a batch is not taken because the disk failed; return all, that one last."""
    batches = []
    deadline = time.monotonic() + PATIENCE_S
    taken = True
    while time.monotonic() < deadline:
        if taken:
            batches.append(disk_batch(topic, len(batches) + 1))
        try:
            writer.write(batches[-1])
            taken = True
        except RetryableError as error:
            if failed(str(error)):
                return batches
            taken = False
    raise AssertionError("the broker never missed its directory")


def texts(batches):
    return [text for each in batches for text in each.values.to_pylist()]


def test_a_broker_that_loses_its_only_directory(kafka_server):
    """It ends; the batch waits, and everything is there when it is back."""
    brokers, data = kafka_server.dsn(), kafka_server.directory / "data"
    topic = create(brokers, segment_bytes=SEGMENT)
    writer = KafkaSink(brokers=brokers, topic="t", send_timeout_secs=2).open("p")
    until_written(writer, disk_batch(topic, 0))
    data.rename(data.with_name("gone"))
    try:
        batches = until_the_disk_failed(
            lambda _: kafka_server._process.poll() is not None, writer, topic
        )
    finally:
        data.with_name("gone").rename(data)
        kafka_server.kill()
        kafka_server.start_again()

    until_written(writer, batches[-1])
    writer.close()

    found = values(brokers, topic)[BATCH:]
    assert list(dict.fromkeys(found)) == texts(batches)
    assert found[-1] == texts(batches)[-1]


@pytest.fixture
def two_directories(tmp_path):
    """A broker with its metadata in one directory, and the topics of this test in another."""
    shutil.copytree(kafka._formatted() / "data", tmp_path / "data")
    own = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    properties = (tmp_path / "data" / "meta.properties").read_text()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "meta.properties").write_text(
        re.sub("directory.id=.*", f"directory.id={own}", properties)
    )
    places = {
        "log.dirs": f"{tmp_path}/data,{tmp_path}/more",
        "metadata.log.dir": f"{tmp_path}/data",
    }
    server = kafka.start(tmp_path, settings=places)
    yield server
    server.kill()


@pytest.mark.long
def test_a_broker_that_loses_one_of_two_directories(two_directories):
    """It lives on without a leader for the topic, which the error names."""
    server, more = two_directories, two_directories.directory / "more"
    brokers = server.dsn()
    topics = [create(brokers, segment_bytes=SEGMENT) for _ in range(4)]
    wait_for("a topic", lambda: [name for name in topics if (more / f"{name}-0").exists()])
    topic = next(name for name in topics if (more / f"{name}-0").exists())
    writer = KafkaSink(brokers=brokers, topic="t", send_timeout_secs=2).open("p")
    until_written(writer, disk_batch(topic, 0))
    more.rename(more.with_name("gone"))
    named = f"no broker leads {topic} [0]"
    batches = until_the_disk_failed(lambda said: named in said, writer, topic)
    more.with_name("gone").rename(more)
    with pytest.raises(RetryableError, match=re.escape(named)):
        writer.write(batches[-1])
    server.stop()
    server.start_again()

    until_written(writer, batches[-1])
    writer.close()

    found = values(brokers, topic)[BATCH:]
    assert list(dict.fromkeys(found)) == texts(batches)
