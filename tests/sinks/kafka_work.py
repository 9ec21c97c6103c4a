"""Topics and batches for tests of the Kafka sink."""

import time
import uuid

from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.testing.sinks import messages, value
from tests.sinks.kafka_reader import read_topic


def rows(topic, span, key=b"same"):
    return messages([(topic, key, value(n)) for n in span])


def values(brokers, topic, security=None):
    return [each.value for each in read_topic(brokers, topic, security)]


def create(brokers, name=None, security=None, partitions=1, **settings):
    """Create a topic with its own settings, and return its name."""
    name = name or f"made-{uuid.uuid4().hex[:8]}"
    config = {key.replace("_", "."): str(each) for key, each in settings.items()}
    topic = NewTopic(name, partitions, 1, config=config)
    admin = AdminClient({"bootstrap.servers": brokers, **(security or {})})
    admin.create_topics([topic])[name].result(timeout=60)
    return name


def until_written(writer, batch, within_s=120):
    deadline = time.monotonic() + within_s
    while True:
        try:
            return writer.write(batch)
        except RetryableError:
            if time.monotonic() > deadline:
                raise
