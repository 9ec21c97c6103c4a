"""The producer: messages in order, a failure never leaves an old one behind a newer one.

A batch that is not acknowledged in time stays with the producer, which goes on trying. The engine
calls again with the same batch and only waits on; so nothing is sent twice, and nothing newer is
sent before it. If it comes with another batch instead, or a batch expires, the producer is purged
and goes on: what the network still holds of it has a lower epoch or sequence number than the next
message for the same partition, and the brokers refuse it behind that. A new producer would have
another id, and what the old one had sent would be stored whenever it arrives.
"""

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from airflow_provider_deltaforge.errors import AccessError, RetryableError, WrongServerError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import WriterClaim
from airflow_provider_deltaforge.sinks.kafka import error_codes
from airflow_provider_deltaforge.sinks.kafka.batch import CONTENT_TYPE, KafkaBatch, SendLimit
from airflow_provider_deltaforge.sinks.kafka.configuration import (
    TRANSACTIONAL,
    TRANSACTIONS,
    expiry_s,
    patience_s,
    producer_settings,
    refusal,
    scrub,
)
from airflow_provider_deltaforge.sinks.kafka.producer_reports import (
    ProducerErrors,
    ProducerStatistics,
)
from airflow_provider_deltaforge.sinks.kafka.sink import KafkaSink
from airflow_provider_deltaforge.sinks.kafka.topics import Topics
from airflow_provider_deltaforge.telemetry.client_counts import ClientCounts
from airflow_provider_deltaforge.telemetry.listener import other_server, place_in

log = logging.getLogger(__name__)

_OPEN_S = 5.0
_PORT = 9092
_SLICE_S = 0.25
_SPARE_S = 1.0
_EMPTY_S = 5.0
_SLOW = (
    "is there a quota, or a slow network? Fewer are sent at a time now, and with a longer "
    "send_timeout_secs more"
)
_BY_KEY = -1
"""In place of a partition: the client chooses it by the key."""


class KafkaWriter:
    """A live producer; callbacks run in the calling thread."""

    def __init__(self, sink: KafkaSink, pipeline: str) -> None:
        import confluent_kafka

        self._kafka: Any = confluent_kafka
        self._sink = sink
        self._where = f"kafka sink {sink.id}"
        self._pipeline = pipeline
        # Elsewhere the binding of CloudEvents to Kafka would take the event for none.
        name = sink.content_type()
        self._label = [] if sink.envelope.is_plain else [(CONTENT_TYPE, name)]
        self._settings = producer_settings(sink, pipeline)
        self._set_id()
        self.timeout_s = patience_s(sink)
        """Seconds that a batch may take."""
        self._work: KafkaBatch | None = None
        self._topics = Topics(
            self._kafka, self._settings, sink.create_topics, self._where, self._raise
        )
        self._errors, self._statistics = ProducerErrors(sink), ProducerStatistics()
        self._abandoned = False
        self._has_withdrawn = False
        self._claim: WriterClaim | None = None
        self._expiry_s = float("inf")
        self._limit = SendLimit()
        self._producer: Any = self._new_producer()
        with suppress(RetryableError):  # Left to the first write.
            self.reach()

    def _set_id(self) -> None:
        """Change how the brokers know this producer, where several write side by side."""

    def write(self, messages: Messages) -> Sequence[Rejection]:
        """Write in order; see ``SinkWriter``."""
        if not len(messages):
            return []
        deadline = time.monotonic() + self.timeout_s
        work = self._take_up(messages)
        self._find_topics(work, deadline)
        self._deliver(work, deadline)
        if work.failures:
            work = self._retry_singly(work)
            self._deliver(work, time.monotonic() + self.timeout_s)
        self._work = None
        self._errors.forget_refusals()
        if work.singly and not self._has_withdrawn:
            self._replace_producer()
        return work.rejections(self._where)

    def fence(self, claim: WriterClaim) -> None:
        """Shut former transactions out, and outlive other producers; see ``FencedWriter``.

        What this producer is given expires, so that a successor knows how long to wait: librdkafka
        sends what it holds when a frozen process wakes up, before anybody here can look.
        """
        self._settle(claim)
        self._expiry_s = expiry_s(self._sink)
        claim.enter(f"producer-{secrets.token_hex(6)}", self._expiry_s + 2 * _SPARE_S)
        self._settings["message.timeout.ms"] = int((self._expiry_s + _SPARE_S) * 1000)
        self._replace_producer()
        self._claim = claim

    def _settle(self, claim: WriterClaim) -> None:
        """Make sure that no former writer follows."""
        former = claim.former()
        by_name = {
            writer.name: writer for writer in former if writer.name.startswith(TRANSACTIONAL)
        }
        deadline = time.monotonic() + self.timeout_s
        for name in by_name:
            self._shut_out(name, deadline)
        claim.outlive([writer for writer in former if writer.name not in by_name])
        claim.forget(former)

    def _shut_out(self, name: str, deadline: float) -> None:
        """Make the brokers refuse a former transactional producer, and abort what it left open."""
        producer = self._new_producer(**{**TRANSACTIONS, "transactional.id": name})
        while True:
            try:
                producer.init_transactions(2 * _SLICE_S)
            except self._kafka.KafkaException as error:
                cause = error.args[0]
                if cause.code() in error_codes.FENCED:
                    return  # By another writer of our epoch, just now.
                if not cause.retriable():
                    self._raise([cause])
            else:
                return
            producer.poll(0)
            self._raise_if_refused()
            if self._abandoned or time.monotonic() >= deadline:
                raise RetryableError(
                    f"{self._where}: a former producer ({name}) could not be shut out within "
                    f"{self.timeout_s:g} s; {self._are_up()}"
                )

    def abandon(self) -> None:
        """Give up the write under way within a slice; see ``Interruptible``."""
        self._abandoned = True

    def take_counts(self) -> ClientCounts:
        """Return retries, transactions and what is queued; see ``CountsWork``."""
        queued = len(self._producer) if self._producer is not None else 0
        return self._statistics.take(queued)

    def close(self) -> None:
        """Drop what is not delivered, and the connection."""
        if self._producer is not None:
            self._discard()
            self._producer = None

    def _take_up(self, messages: Messages) -> KafkaBatch:
        if self._work is not None and self._work.messages.same_as(messages):
            return self._work
        if self._work is not None:
            self._withdraw()
        self._work = KafkaBatch(messages)
        return self._work

    def _deliver(self, work: KafkaBatch, deadline: float) -> None:
        """Hand over what is left and wait until all is answered.

        What is in ``work.failures`` afterwards is the fault of single messages.
        """
        self._hand_over(work, deadline)
        flush = self._producer.flush
        while self._serve(flush, min(_SLICE_S, max(0.0, deadline - time.monotonic()))):
            self._check(work, deadline)
        self._raise_if_failed(work)

    def _serve(self, wait: Callable[[float], int], timeout_s: float) -> int:
        """Poll or flush; callbacks run in here."""
        try:
            return wait(timeout_s)
        except self._kafka.KafkaException as error:
            # The producer itself failed for good, for example because it may not be idempotent.
            self._raise([error.args[0]])

    def _hand_over(self, work: KafkaBatch, deadline: float) -> None:
        messages = work.messages
        names = messages.topics.dictionary.to_pylist()
        refused_topic = any(self._topics.get(name) is not None for name in names)
        careful = work.singly or messages.headers is not None or refused_topic
        careful = careful or messages.shards is not None
        careful = careful or (bool(self._label) and messages.bare is not None)
        while work.next < len(messages):
            if work.next >= self._limit.end(work):
                self._await_answers(work, deadline)
                if work.failures:
                    return  # All from there on is sent once more, singly.
            self._hold()
            work.begun_s = work.begun_s or time.monotonic()
            columns = work.some(self._limit.end(work))
            sent = 0 if careful else self._hand_over_quickly(*columns)
            work.next += sent
            if sent < len(columns[0]):
                self._hand_over_carefully(work, deadline, *(column[sent:] for column in columns))

    def _hand_over_quickly(self, topics: list[Any], keys: list[Any], values: list[Any]) -> int:
        """Hand over until the producer objects, and return how many it took."""
        produce, label = self._producer.produce, self._label
        sent = 0
        # A full queue or a refused message: the careful way deals with it.
        with suppress(BufferError, self._kafka.KafkaException):
            for topic, key, value in zip(topics, keys, values, strict=True):
                if value is None or not label:
                    produce(topic, value, key)
                else:
                    produce(topic, value, key, headers=label)
                sent += 1
        return sent

    def _hand_over_carefully(
        self,
        work: KafkaBatch,
        deadline: float,
        topics: list[Any],
        keys: list[Any],
        values: list[Any],
    ) -> None:
        """Hand over message by message: full queues, headers, refusals."""
        these = slice(work.next, work.next + len(topics))
        headers = work.headers(len(topics), self._label)
        shards = work.messages.shards
        to = [_BY_KEY] * len(topics) if shards is None else shards[these].to_pylist()
        for message in zip(topics, values, keys, to, headers, strict=True):
            refused = self._topics.get(message[0]) or work.refused.get(work.next)
            if refused is None:
                self._produce_one(work, deadline, message)
            else:
                work.refused[work.next] = refused
            work.next += 1

    def _produce_one(self, work: KafkaBatch, deadline: float, message: tuple[Any, ...]) -> None:
        *plain, headers = message  # Topic, value, key and partition.
        extra: dict[str, Any] = {"headers": headers} if headers else {}
        if work.singly:
            extra["on_delivery"] = partial(work.note, work.next)
            if self._has_withdrawn:
                self._await_answers(work, deadline)
        while True:
            try:
                self._producer.produce(*plain, **extra)
            except BufferError:
                self._serve(self._producer.poll, _SLICE_S / 10)
                self._check(work, deadline)
                self._hold()
            except self._kafka.KafkaException as error:
                if error.args[0].code() not in error_codes.REJECTED:
                    self._raise([error.args[0]])
                work.refused[work.next] = error.args[0]
                return
            else:
                return

    def _hold(self) -> None:
        """Hand over under the lease only; see ``WriterClaim``."""
        if self._claim is not None:
            self._claim.hold()

    def _await_answers(self, work: KafkaBatch, deadline: float) -> None:
        """Wait until nothing is under way."""
        while self._serve(self._producer.flush, _SLICE_S):
            self._check(work, deadline)
        self._raise_if_failed(work)
        if work.failures:
            return
        self._hold()
        now = time.monotonic()
        if not work.singly:
            self._limit.learn((now - work.begun_s) / self._expiry_s)
        work.done, work.begun_s = work.next, now

    def _retry_singly(self, work: KafkaBatch) -> KafkaBatch:
        """Begin again behind what is answered, so that the broker says which message it refuses.

        Each is a request of its own. That takes another producer, or one message at a time where
        this one has to stay.
        """
        log.warning(
            "kafka refuses part of a batch; sending its messages one by one",
            extra={"pipeline": self._pipeline, "sink": self._sink.id},
        )
        if not self._has_withdrawn:
            self._discard()
            self._producer = self._new_producer(**{"batch.num.messages": 1})
        self._work = work.left(singly=True)
        return self._work

    def _find_topics(self, work: KafkaBatch, deadline: float) -> None:
        """Make sure that every topic exists."""

        def wait() -> None:
            self._serve(self._producer.poll, 0)
            self._check(work, deadline)

        self._topics.find(self._producer, work.messages, wait)

    def reach(self) -> None:
        """Find out whether the brokers answer and the credentials work; see ``Reachable``."""
        deadline = time.monotonic() + min(_OPEN_S, self.timeout_s)
        while time.monotonic() < deadline:
            try:
                self._producer.list_topics(timeout=_SLICE_S)
            except self._kafka.KafkaException:
                self._serve(self._producer.poll, 0)
                self._raise_if_refused()
            else:
                return
        self._raise_if_other_server()
        raise RetryableError(f"{self._where}: no answer; {self._are_up()}")

    def _check(self, work: KafkaBatch, deadline: float) -> None:
        """Give up waiting when there is a reason to."""
        self._raise_if_refused()
        self._raise_if_failed(work)
        if self._abandoned:
            raise RetryableError(f"{self._where}: asked to end before a batch was acknowledged")
        if work.begun_s and time.monotonic() - work.begun_s > self._expiry_s:
            self._give_up(work)
        if time.monotonic() >= deadline:
            self._raise_if_other_server()
            raise RetryableError(
                f"{self._where}: a batch of {len(work.messages)} messages is not acknowledged "
                f"after {self.timeout_s:g} s{f', {work.done} of them are' * bool(work.done)}; "
                f"{self._are_up()}{self._topics.without_leader(self._producer, work.messages)}"
            )

    def _give_up(self, work: KafkaBatch) -> NoReturn:
        """Begin again with what is not answered.

        As a whole: a message that expired alone could be overtaken by a later one of its key.
        """
        answered = max(0, work.next - work.done - len(self._producer))
        self._limit.lower(work, answered)
        self._withdraw()
        self._work = work.left()
        raise RetryableError(
            f"{self._where}: a batch of {len(work.messages)} messages is given up after "
            f"{self._expiry_s:g} s, and what is left of it sent again; "
            + (
                f"{answered} of them were acknowledged meanwhile: {_SLOW}"
                if answered
                else self._are_up()
            )
        )

    def _are_up(self) -> str:
        brokers, last = self._sink.brokers, self._errors.last
        return f"check that the brokers {brokers} are up and reachable (last error: {last})"

    def _raise_if_refused(self) -> None:
        if self._errors.are_refusals():
            self._errors.forget_refusals()
            self._forget()
            raise AccessError(
                f"{self._where}: the brokers {self._sink.brokers} refuse us; check the security "
                f"settings and credentials in client_conf ({self._errors.last})"
            )

    def _raise_if_other_server(self) -> None:
        """Raise where something else answers in a broker's place; the driver does not report it."""
        if self._abandoned:
            return  # The end is not held up by a question.
        brokers = str(self._settings["bootstrap.servers"]).split(",")
        places = [place for each in brokers if (place := place_in(each, _PORT)) is not None]
        found = other_server("Kafka", places)
        if found is not None:
            raise WrongServerError(f"{self._where}: brokers: {found}; correct 'brokers'")

    def _raise_if_failed(self, work: KafkaBatch) -> None:
        failures = [error for error in work.failures if error.code() not in error_codes.REJECTED]
        if failures:
            self._raise(failures)

    def _raise(self, failures: list[Any], topic: str = "") -> NoReturn:
        """Turn failures into the error the engine acts on, and start afresh next time."""
        error = next((e for e in failures if e.code() in error_codes.ACCESS), failures[0])
        self._forget(is_fatal=any(error.fatal() for error in failures))
        where = f"{self._where}: topic {topic!r}" if topic else self._where
        raise error_codes.reaction(error.code(), f"{where}: {scrub(self._sink, error.str())}")

    def _new_producer(self, **more: Any) -> Any:
        callbacks = {
            "error_cb": self._errors.note,
            "stats_cb": self._statistics.note,
            "on_delivery": self._note_delivery,
            "delivery.report.only.error": True,
            "logger": log,
        }
        try:
            return self._kafka.Producer({**self._settings, **more, **callbacks})
        except (self._kafka.KafkaException, TypeError, ValueError) as error:
            raise refusal(self._sink, error) from error

    def _replace_producer(self) -> None:
        self._discard()
        self._producer = self._new_producer()
        self._has_withdrawn = False

    def _forget(self, *, is_fatal: bool = False) -> None:
        self._topics.clear()
        self._withdraw(is_fatal=is_fatal)

    def _withdraw(self, *, is_fatal: bool = False) -> None:
        """Drop what is not answered; a producer that may have sent some of it stays to the end."""
        self._has_withdrawn |= self._work is not None and self._work.begun_s > 0
        if self._has_withdrawn and not is_fatal:
            deadline = time.monotonic() + _EMPTY_S
            self._purge()
            while len(self._producer) and time.monotonic() < deadline:
                self._purge(_SLICE_S)
            if not len(self._producer):
                return
        self._replace_producer()

    def _discard(self) -> None:
        # Purged first: what the old producer still holds must never arrive behind newer messages.
        self._purge()

    def _purge(self, wait_s: float = 0.0) -> None:
        self._work = None
        self._producer.purge()
        with suppress(self._kafka.KafkaException):  # One that failed for good says so again.
            self._producer.flush(wait_s)

    def _note_delivery(self, error: Any, _message: Any) -> None:
        if error is not None and self._work is not None:
            self._work.failures.append(error)
