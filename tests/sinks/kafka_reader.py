"""Everything a topic holds, read the way a consumer would."""

import uuid
from dataclasses import dataclass

from confluent_kafka import Consumer, Message, TopicPartition

_IDLE_S = 0.5


@dataclass(frozen=True)
class Read:
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] | None
    partition: int


def read_topic(brokers: str, topic: str) -> list[Read]:
    """Return the messages of all partitions up to their ends, each partition in order."""
    return [
        Read(message.key(), message.value(), message.headers(), message.partition())
        for message in _messages(brokers, topic)
    ]


def read_timestamps(brokers: str, topic: str) -> list[tuple[int, bytes]]:
    """Return (append time in ms, value) of every message."""
    return [(message.timestamp()[1], message.value()) for message in _messages(brokers, topic)]


def _messages(brokers: str, topic: str) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": uuid.uuid4().hex})
    try:
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        spans = {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=60)
            for number in partitions
        }
        missing = {number: last for number, (first, last) in spans.items() if last > first}
        consumer.assign([TopicPartition(topic, n, spans[n][0]) for n in missing])
        found: list[Message] = []
        while missing:
            for message in consumer.consume(10_000, timeout=_IDLE_S):
                assert message.error() is None, message.error()
                found.append(message)
            for place in consumer.position([TopicPartition(topic, n) for n in missing]):
                if place.offset >= missing[place.partition]:
                    del missing[place.partition]
        return found
    finally:
        consumer.close()
