"""The Kafka sink while a broker loses its disk."""

import base64
import os
import re
import shutil
import time
import uuid

import pytest

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sinks.kafka import KafkaSink
from tests.servers import kafka
from tests.sinks.contract import messages
from tests.sinks.kafka_work import create, until_written, values
from tests.waiting import PATIENCE_S, wait_for

BATCH = 50
SEGMENT = 1 << 20


def batch(topic, number):
    """Return a batch that is a tenth of a segment: a broker notices at the next one's start."""
    texts = [b"%d %b" % (number * BATCH + n, os.urandom(1024).hex().encode()) for n in range(BATCH)]
    return messages([(topic, b"same", text) for text in texts])


def until(failed, writer, topic):
    """Write until a batch is not taken because the disk failed; return all, that one last."""
    batches = []
    deadline = time.monotonic() + PATIENCE_S
    taken = True
    while time.monotonic() < deadline:
        if taken:
            batches.append(batch(topic, len(batches) + 1))
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
    until_written(writer, batch(topic, 0))
    data.rename(data.with_name("gone"))
    try:
        batches = until(lambda _: kafka_server._process.poll() is not None, writer, topic)
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
    server.stop()


@pytest.mark.long
def test_a_broker_that_loses_one_of_two_directories(two_directories):
    """It lives on without a leader for the topic, which the error names."""
    server, more = two_directories, two_directories.directory / "more"
    brokers = server.dsn()
    topics = [create(brokers, segment_bytes=SEGMENT) for _ in range(4)]
    wait_for("a topic", lambda: [name for name in topics if (more / f"{name}-0").exists()])
    topic = next(name for name in topics if (more / f"{name}-0").exists())
    writer = KafkaSink(brokers=brokers, topic="t", send_timeout_secs=2).open("p")
    until_written(writer, batch(topic, 0))
    more.rename(more.with_name("gone"))
    named = f"no broker leads {topic} [0]"
    batches = until(lambda said: named in said, writer, topic)
    more.with_name("gone").rename(more)
    with pytest.raises(RetryableError, match=re.escape(named)):
        writer.write(batches[-1])
    server.stop()
    server.start_again()

    until_written(writer, batches[-1])
    writer.close()

    found = values(brokers, topic)[BATCH:]
    assert list(dict.fromkeys(found)) == texts(batches)
