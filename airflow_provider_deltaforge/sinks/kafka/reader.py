"""Reads topics back, as a consumer of committed messages would.

The client hands each message over as an object; behind that everything is columns.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sinks.kafka import error_codes
from airflow_provider_deltaforge.sinks.kafka.configuration import producer_settings, scrub
from airflow_provider_deltaforge.sinks.kafka.positions import error_of
from airflow_provider_deltaforge.sinks.kafka.sink import KafkaSink
from airflow_provider_deltaforge.sinks.kafka.topics import of_connections
from airflow_provider_deltaforge.sinks.reader_contract import HeldMessages

_ASK_S, _POLL_S = 10.0, 0.2
_ELECTION_S = 30.0
_STALLED_S = 60.0
_AT_ONCE = 20_000
_Place = tuple[str, int]


class KafkaReader:
    """One consumer; see ``SinkReader``."""

    def __init__(self, sink: KafkaSink, pipeline: str) -> None:
        import confluent_kafka
        from confluent_kafka.admin import AdminClient

        self._kafka: Any = confluent_kafka
        self.notes: list[str] = []
        self._sink = sink
        settings = of_connections(producer_settings(sink, pipeline))
        self._admin: Any = AdminClient(settings)
        self._consumer: Any = self._kafka.Consumer(
            {
                **settings,
                "group.id": f"deltaforge-verify-{pipeline}",  # Nothing is committed to it.
                "isolation.level": "read_committed",
                "enable.auto.commit": "false",
                "enable.partition.eof": "true",
                "allow.auto.create.topics": "false",
                "auto.offset.reset": "earliest",
                "queued.max.messages.kbytes": 65_536,
                "fetch.wait.max.ms": 50,
            }
        )
        self._reached: dict[_Place, int] = {}

    def read(self, topics: Collection[str]) -> Iterator[HeldMessages]:
        """Yield what is committed and was not read before; see ``SinkReader``."""
        looks = Retrying(
            retry=retry_if_exception(self._has_no_leader),
            stop=stop_after_delay(_ELECTION_S),
            wait=wait_fixed(_POLL_S),
            reraise=True,
        )
        try:
            ends = {
                place: end
                for topic in sorted(topics)
                for place, end in looks(self._ends, topic).items()
            }
            yield from self._upto(ends)
        except self._kafka.KafkaException as error:
            failure: Any = error.args[0]
            text = scrub(self._sink, failure.str())
            raise error_of(failure, f"kafka sink {self._sink.id}: reading back: {text}") from error

    def close(self) -> None:
        """Leave the brokers; see ``SinkReader``."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _ends(self, topic: str) -> dict[_Place, int]:
        """Return where each partition of a topic ends now, what is not committed yet included."""
        from confluent_kafka.admin import OffsetSpec

        found = self._consumer.list_topics(topic, timeout=_ASK_S).topics[topic]
        if found.error is not None:
            if found.error.code() in error_codes.UNKNOWN_TOPIC:
                return {}
            raise self._kafka.KafkaException(found.error)
        places = [self._kafka.TopicPartition(topic, n) for n in sorted(found.partitions)]
        level = self._kafka.IsolationLevel.READ_UNCOMMITTED
        ends = {}
        for at, spec in (("first", OffsetSpec.earliest()), ("end", OffsetSpec.latest())):
            asked = dict.fromkeys(places, spec)
            answers = self._admin.list_offsets(asked, isolation_level=level, request_timeout=_ASK_S)
            for place, answer in answers.items():
                key = (topic, place.partition)
                offset = int(answer.result().offset)
                if at == "end":
                    ends[key] = offset
                elif key not in self._reached:
                    self._begin(key, offset)
        return ends

    def _has_no_leader(self, error: BaseException) -> bool:
        is_kafkas = isinstance(error, self._kafka.KafkaException)
        return is_kafkas and error.args[0].code() in error_codes.ELECTION

    def _begin(self, place: _Place, first: int) -> None:
        self._reached[place] = first
        if first and not any(note.startswith(f"topic {place[0]} ") for note in self.notes):
            self.notes.append(
                f"topic {place[0]} does not hold its oldest messages any more: rows that were "
                "last written in these are missing"
            )

    def _upto(self, ends: dict[_Place, int]) -> Iterator[HeldMessages]:
        open_places = {place for place, end in ends.items() if end > self._reached[place]}
        if not open_places:
            return
        self._consumer.assign(
            [
                self._kafka.TopicPartition(topic, number, self._reached[topic, number])
                for topic, number in sorted(open_places)
            ]
        )
        silent_s = 0.0
        while open_places:
            messages = self._consumer.consume(_AT_ONCE, timeout=_POLL_S)
            silent_s = 0.0 if messages else silent_s + _POLL_S
            if silent_s >= _STALLED_S:
                raise RetryableError(
                    f"kafka sink {self._sink.id}: nothing came for {_STALLED_S:.0f} s in front of "
                    "the topics' ends: a broker is away, or somebody's transaction stays open"
                )
            yield from self._taken(messages)
            open_places -= {p for p in open_places if self._reached[p] >= ends[p]}
        self._consumer.unassign()

    def _taken(self, messages: list[Any]) -> Iterator[HeldMessages]:
        """Note how far messages reach, and yield them by partition."""
        by_place: defaultdict[_Place, list[Any]] = defaultdict(list)
        for message in messages:
            place = (message.topic(), message.partition())
            error = message.error()
            if error is None:
                by_place[place].append(message)
                self._reached[place] = message.offset() + 1
            elif error.code() == error_codes.KafkaCode["_PARTITION_EOF"]:
                self._reached[place] = max(self._reached[place], message.offset())
            elif error.code() not in error_codes.PASSING:
                raise self._kafka.KafkaException(error)
        for (topic, number), held in by_place.items():
            yield HeldMessages(
                topic,
                number,
                pa.array([message.key() for message in held], pa.binary()),
                pa.array([message.value() for message in held], pa.binary()),
                np.array([message.timestamp()[1] for message in held], np.int64),
            )
