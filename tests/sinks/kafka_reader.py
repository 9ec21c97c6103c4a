"""Everything a topic holds, read the way a consumer would."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.waiting import wait_for

_IDLE_S = 0.5
# A broker that was stopped or frozen leads its partitions again only after a moment.
_LEADERLESS = {
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
}


@dataclass(frozen=True)
class Read:
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] | None
    partition: int


def read_topic(brokers: str, topic: str, security: Mapping[str, str] | None = None) -> list[Read]:
    """Return the messages of all partitions up to their ends, each partition in order."""
    return [
        Read(message.key(), message.value(), message.headers(), message.partition())
        for message in _messages(brokers, topic, security or {})
    ]


def read_timestamps(brokers: str, topic: str) -> list[tuple[int, bytes]]:
    """Return (append time in ms, value) of every message."""
    return [(message.timestamp()[1], message.value()) for message in _messages(brokers, topic, {})]


def _messages(brokers: str, topic: str, security: Mapping[str, str]) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": uuid.uuid4().hex, **security})
    try:
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        spans = {number: _span(consumer, TopicPartition(topic, number)) for number in partitions}
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


def _span(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """Return the first and the next offset, when a broker leads the partition."""
    spans: list[tuple[int, int]] = []

    def led() -> bool:
        try:
            spans.append(consumer.get_watermark_offsets(partition, timeout=60))
        except KafkaException as error:
            if error.args[0].code() not in _LEADERLESS:
                raise
        return bool(spans)

    wait_for(f"a leader of {partition.topic} [{partition.partition}]", led)
    return spans[0]
