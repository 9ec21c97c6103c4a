"""The compacted topic that holds how far a pipeline's sinks hold its log.

One record per sink, written in the transaction of the messages it stands for.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    FatalError,
    RetryableError,
)
from airflow_provider_deltaforge.sinks.kafka import error_codes
from airflow_provider_deltaforge.sinks.kafka.topics import of_connections

_SETTINGS = {
    "cleanup.policy": "compact",
    # A record that is hours old is still the newest of its key; many older ones lie before it.
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
_FIRST_LOOK, _FURTHER = 1000, 20
_ASK_S, _POLL_S, _ELECTION_S = 5.0, 0.2, 10.0
_HELD_UP = (
    "an open transaction at offset {offset} of partition {number} holds it up. One of another sink "
    "ends by itself, at the latest after its transaction.timeout.ms. If this one stays, Kafka has "
    "lost its end, and all readers wait for it: find its other partitions with `kafka-transactions"
    ".sh --bootstrap-server BROKER find-hanging --broker-id ID --max-transaction-timeout 1`, and "
    "end it in each of them with `… abort --topic {topic} --partition {number} --start-offset "
    "{offset}`"
)


def topic_of(pipeline: str) -> str:
    """Return the name of a pipeline's topic, unless its document gives another."""
    return f"_deltaforge.{pipeline}.positions"


class KafkaPositions:
    """Reads the topic, and makes it. Used by one thread, for a moment.

    Args:
        kafka: the driver.
        topic: its name.
        settings: of the producer; what they say about connections holds here as well.
        where: how messages for people name the sink.
        refuse: turns an error of the driver into the one the engine acts on.
        check: called while waiting, with what is waited for if it is known; raises when there is
            a reason to give up.
    """

    def __init__(
        self,
        kafka: Any,
        topic: str,
        settings: Mapping[str, Any],
        where: str,
        refuse: Callable[[Any], Exception],
        check: Callable[[str], None],
    ) -> None:
        from confluent_kafka.admin import AdminClient

        self._kafka = kafka
        self._topic = topic
        self._where = where
        self._refuse = refuse
        self._check = check
        self._settings = of_connections(settings)
        self._admin: Any = AdminClient(self._settings)

    def make(self) -> None:
        """Make sure that the topic is there, and keeps its records."""
        from confluent_kafka.admin import ConfigResource, NewTopic

        resource = ConfigResource(ConfigResource.Type.TOPIC, self._topic)
        try:
            asked = self._admin.describe_configs([resource], request_timeout=_ASK_S)
            settings = asked[resource].result()
        except self._kafka.KafkaException as error:
            code = error.args[0].code()
            if code not in error_codes.UNKNOWN_TOPIC | error_codes.AUTHORISATION:
                raise self._refuse(error.args[0]) from error
        else:
            self._check_policy(settings["cleanup.policy"].value)
            return
        # Without a count of replicas, the cluster's own. Named here first: asked for in any other
        # way, a broker may make it with settings that delete what is a week old.
        new = NewTopic(self._topic, 1, -1, config=_SETTINGS)
        try:
            self._admin.create_topics([new], request_timeout=_ASK_S)[self._topic].result()
        except self._kafka.KafkaException as error:
            if error.args[0].code() != error_codes.KafkaCode.TOPIC_ALREADY_EXISTS:
                raise self._refuse(error.args[0]) from error

    def read(self, key: bytes) -> bytes | None:
        """Return the last committed record of a key; None without one.

        A topic that was just made has leaders a moment later, and its brokers hear of them one
        after the other.
        """
        looks = Retrying(
            retry=retry_if_exception(self._has_no_leader),
            stop=stop_after_delay(_ELECTION_S),
            wait=wait_fixed(_POLL_S),
            before_sleep=lambda _: self._check(""),
            reraise=True,
        )
        try:
            return looks(self._read, key)
        except self._kafka.KafkaException as error:
            raise self._refuse(error.args[0]) from error

    def _has_no_leader(self, error: BaseException) -> bool:
        is_kafkas = isinstance(error, self._kafka.KafkaException)
        return is_kafkas and error.args[0].code() in error_codes.ELECTION

    def _read(self, key: bytes) -> bytes | None:
        consumer = self._kafka.Consumer(
            {
                **self._settings,
                "group.id": self._topic,  # Needed, though nothing is ever committed to it.
                "isolation.level": "read_committed",
                "enable.auto.commit": "false",
                "fetch.wait.max.ms": 20,
                "enable.partition.eof": "true",
                "allow.auto.create.topics": "false",
            }
        )
        try:
            found = [self._last(consumer, number, key) for number in self._partitions(consumer)]
        finally:
            consumer.close()
        return max((record for record in found if record is not None), default=(0, None))[1]

    def _partitions(self, consumer: Any) -> list[int]:
        metadata = consumer.list_topics(self._topic, timeout=_ASK_S).topics[self._topic]
        if metadata.error is not None:
            raise self._kafka.KafkaException(metadata.error)
        return sorted(metadata.partitions)

    def _last(self, consumer: Any, number: int, key: bytes) -> tuple[int, bytes | None] | None:
        """Return time and value of a key's last record, looking back further and further."""
        place = self._kafka.TopicPartition(self._topic, number)
        low, _ = consumer.get_watermark_offsets(place, timeout=_ASK_S)
        high = self._end(place)
        span = _FIRST_LOOK
        while high > low:
            start = max(low, high - span)
            found = self._scan(consumer, number, start, high, key)
            if found is not None or start == low:
                return found
            span *= _FURTHER
        return None

    def _end(self, place: Any) -> int:
        """Return where a partition ends, with what is not committed yet.

        For a consumer of committed records the log ends where the first open transaction begins,
        though committed records of ours may lie behind that.
        """
        from confluent_kafka.admin import OffsetSpec

        level = self._kafka.IsolationLevel.READ_UNCOMMITTED
        [answer] = self._admin.list_offsets(
            {place: OffsetSpec.latest()}, isolation_level=level, request_timeout=_ASK_S
        ).values()
        return int(answer.result().offset)

    def _scan(
        self, consumer: Any, number: int, start: int, end: int, key: bytes
    ) -> tuple[int, bytes | None] | None:
        """Return the last record of a key between two offsets.

        Transactions of other sinks that are open there are waited for: their ends come soon. Not
        that of a transaction whose end Kafka itself lost, which holds up every reader until
        somebody ends it; so it is named.
        """
        consumer.assign([self._kafka.TopicPartition(self._topic, number, start)])
        found: tuple[int, bytes | None] | None = None
        reached, why = start, ""
        while reached < end:
            self._check(why)
            for message in consumer.consume(1000, timeout=_POLL_S):
                error = message.error()
                if error is None:
                    reached, why = message.offset() + 1, ""
                    if message.key() == key:
                        found = message.timestamp()[1], message.value()
                elif error.code() == error_codes.KafkaCode["_PARTITION_EOF"]:
                    reached = message.offset()
                    why = _HELD_UP.format(topic=self._topic, number=number, offset=reached)
                elif error.code() not in error_codes.PASSING:
                    raise self._kafka.KafkaException(error)
        return found

    def _check_policy(self, policy: str) -> None:
        if "compact" not in policy or "delete" in policy:
            raise FatalError(
                f"{self._where}: topic {self._topic!r} has cleanup.policy={policy}, which would "
                "delete our position in time; set its cleanup.policy to compact"
            )


def error_of(error: Any, text: str) -> DeltaForgeError:
    """Return what the engine acts on for an error about transactions or the topic.

    Args:
        error: the driver's.
        text: what it says, without secrets.
    """
    if error.code() in error_codes.ACCESS:
        return AccessError(f"{text}; grant what is missing to this client")
    if error.code() == error_codes.KafkaCode.INVALID_TRANSACTION_TIMEOUT:
        return FatalError(
            f"{text}; lower client_conf.transaction.timeout.ms, or raise "
            "transaction.max.timeout.ms on the brokers"
        )
    if error.code() in error_codes.NO_TRANSACTIONS:
        return FatalError(f"{text}; these brokers have no transactions: remove exactly_once")
    return RetryableError(text)
