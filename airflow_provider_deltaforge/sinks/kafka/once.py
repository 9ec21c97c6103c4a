"""The transactional producer: a batch and our position become durable together, or not at all.

Every doubt about what is durable (a commit without an answer, a producer that failed for good) is
settled in one way: by ``recover``, which ends whatever was open and reads the position.

Rows of snapshots and dead letters have no position, and a pipeline may want to be fenced without
exactly once. Several such writers work side by side: each has an id of its own, which the state
store knows before the first transaction. A successor begins by taking these ids over.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.errors import (
    DeltaForgeError,
    FatalError,
    FencedError,
    RetryableError,
)
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.chunk_rows import ChunkMark, WrittenChunk
from airflow_provider_deltaforge.sinks.contract import WriterClaim
from airflow_provider_deltaforge.sinks.kafka import error_codes
from airflow_provider_deltaforge.sinks.kafka.batch import KafkaBatch, by_halves
from airflow_provider_deltaforge.sinks.kafka.configuration import scrub
from airflow_provider_deltaforge.sinks.kafka.positions import KafkaPositions, error_of, topic_of
from airflow_provider_deltaforge.sinks.kafka.sink import KafkaSink
from airflow_provider_deltaforge.sinks.kafka.writer import KafkaWriter
from airflow_provider_deltaforge.sinks.position_contract import SinkPosition

_STEP_S, _SLICE_S = 0.5, 0.25
_CLOSE_S = 1.0


class _RefusedError(Exception):
    """The brokers refuse a message of the transaction."""


class TransactionStage(Enum):
    """What the producer may do next."""

    NEW = "recover"
    IDLE = "begin"
    OPEN = "abort"
    COMMITTING = "commit again"


class KafkaOnceWriter(KafkaWriter):
    """One transaction per batch; see ``ExactlyOnceWriter``."""

    def __init__(self, sink: KafkaSink, pipeline: str) -> None:
        self._stage = TransactionStage.NEW
        self._used = False
        self._cursor: SinkPosition | None = None
        self._committing: SinkPosition | None = None
        self._at_once: int | None = None
        self._positions_topic = sink.positions_topic or topic_of(pipeline)
        self._key = f"{pipeline}/{sink.id}"
        super().__init__(sink, pipeline)
        self._statistics.counts.update(txn_commits=0, txn_aborts=0)

    def recover(self) -> SinkPosition | None:
        """Fence former producers, then read the position; see ``ExactlyOnceWriter``."""
        deadline = time.monotonic() + self.timeout_s
        self._begin(deadline)
        positions = self._positions(deadline)
        positions.make()
        text = positions.read(self._key.encode())
        where = f"{self._where}: record {self._key!r} of topic {self._positions_topic!r}"
        self._cursor = None if text is None else SinkPosition.from_text(text, where)
        self._stage = TransactionStage.IDLE
        return self._cursor

    def _positions(self, deadline: float) -> KafkaPositions:
        what = f"read topic {self._positions_topic!r} to its end"
        return KafkaPositions(
            self._kafka,
            self._positions_topic,
            self._settings,
            self._where,
            self._error_of,
            lambda why: self._pause(deadline, what, why),
        )

    def fence(self, claim: WriterClaim) -> None:
        """Shut former writers out; see ``FencedWriter``."""
        self._settle(claim)
        claim.enter(self._settings["transactional.id"])
        self._claim = claim

    def _begin(self, deadline: float) -> None:
        """Shut out every producer that began under the same id before.

        The state store is asked afterwards whether we may write: a late driver ends here.
        """
        if self._used:
            self._renew()
        self._used, self._stage = True, TransactionStage.NEW
        self._until(deadline, self._producer.init_transactions, "begin with transactions")
        if self._claim is not None:
            self._claim.confirm()

    def write_once(
        self, messages: Messages, before: SinkPosition, after: SinkPosition
    ) -> Sequence[Rejection]:
        """Write a batch and its cursor in one transaction; see ``ExactlyOnceWriter``."""
        del before  # A transaction that is not the next one is fenced.
        return self._transaction(messages, after, (self._key, after.as_text()))

    def _transaction(
        self, messages: Messages, after: SinkPosition, record: tuple[str, bytes] | None
    ) -> Sequence[Rejection]:
        """Write a batch in one transaction.

        Args:
            messages: the batch.
            after: stands for the batch, if its commit has to be tried again.
            record: key and value of what the topic of positions gets beside it, if anything.
        """
        deadline = time.monotonic() + self.timeout_s
        if self._stage is TransactionStage.COMMITTING and self._committing == after:
            self._commit(deadline, again=True)
            return []
        if self._stage in (TransactionStage.NEW, TransactionStage.COMMITTING):
            raise self._lost("what it did last has to be found out")
        self._abort(deadline)
        work = KafkaBatch(messages)
        self._find_topics(work, deadline)
        if self._send(work, record, deadline):
            self._committing, self._stage = after, TransactionStage.COMMITTING
            self._commit(deadline)
            return []
        self._abort(deadline)
        refused = dict(work.refused) or self._search(messages)
        self._begin_anew()
        if refused:
            return replace(KafkaBatch(messages), refused=refused).rejections(self._where)
        # Each message alone is taken: only so many of them at once are too much for the topic.
        raise RetryableError(f"{self._where}: a batch is too large for its topic; now in parts")

    def write(self, messages: Messages) -> Sequence[Rejection]:
        """Refuse: everything of this producer is part of a transaction."""
        raise FatalError(f"{self._where}: rows of a snapshot need a producer without transactions")

    def _discard(self) -> None:
        """End an open transaction, so that readers need not wait for its timeout."""
        if self._stage is TransactionStage.OPEN:
            with suppress(self._kafka.KafkaException):
                self._producer.abort_transaction(_CLOSE_S)
        super()._discard()

    def _send(self, work: KafkaBatch, record: tuple[str, bytes] | None, deadline: float) -> bool:
        """Begin a transaction with all messages in it; return False if any of them is refused.

        The position is handed over first, so that both wait for the same answer.
        """
        try:
            self._producer.begin_transaction()
            self._stage = TransactionStage.OPEN
            if record is not None:
                key, value = record
                self._producer.produce(self._positions_topic, value, key)
        except self._kafka.KafkaException as error:
            self._raise([error.args[0]])
        total = len(work.messages)
        most = self._at_once or total
        with suppress(_RefusedError):
            for start in range(0, total, most):
                share = self._work = KafkaBatch(work.messages.slice(start, most))
                self._deliver(share, deadline)
                work.refused.update({start + index: why for index, why in share.refused.items()})
            return not work.refused
        return False

    def _deliver(self, work: KafkaBatch, deadline: float) -> None:
        """Hand over and wait for the answers; after the first bad one no others come."""
        self._hand_over(work, deadline)
        while self._serve(self._producer.flush, _SLICE_S):
            self._check(work, deadline)
        self._check(work, deadline)

    def _raise_if_failed(self, work: KafkaBatch) -> None:
        if any(error.code() in error_codes.REJECTED for error in work.failures):
            raise _RefusedError
        if work.failures:
            self._raise(work.failures)

    def _commit(self, deadline: float, *, again: bool = False) -> None:
        call = self._producer.commit_transaction
        self._until(deadline, call, "commit a transaction", gives_up=again)
        self._statistics.counts["txn_commits"] += 1
        self._cursor = self._committing
        self._stage, self._committing, self._work = TransactionStage.IDLE, None, None
        self._errors.forget_refusals()

    def _abort(self, deadline: float) -> None:
        self._work = None  # Its refusals say nothing about how this ends.
        if self._stage is TransactionStage.OPEN:
            call = self._producer.abort_transaction
            self._until(deadline, call, "abort a transaction", gives_up=True)
            self._statistics.counts["txn_aborts"] += 1
            self._stage = TransactionStage.IDLE

    def _search(self, messages: Messages) -> dict[int, Any]:
        """Find which messages the brokers refuse: by halves, in transactions that are aborted.

        The producer is another one. A refusal leaves gaps in its sequence numbers, and its next
        transaction may fail for them.
        """
        own, self._producer = self._producer, None
        try:
            refused, taken = by_halves(messages, self._probe)
        finally:
            if self._producer is not None:
                self._discard()
            self._producer, self._stage = own, TransactionStage.IDLE
        if not refused:
            self._at_once = taken
        return refused

    def _probe(self, messages: Messages) -> list[Any]:
        """Return what the brokers say against messages, which nobody will ever see."""
        deadline = time.monotonic() + self.timeout_s
        if self._producer is None:
            own_id = f"{self._settings['transactional.id']}/probe"
            self._producer = self._new_producer(**{"transactional.id": own_id})
            self._until(deadline, self._producer.init_transactions, "begin with transactions")
        work = KafkaBatch(messages)
        is_taken = self._send(work, None, deadline)
        failures = self._work.failures if self._work is not None else []
        errors = [error for error in failures if error.code() in error_codes.REJECTED]
        self._abort(deadline)
        if not is_taken:
            self._discard()
            self._producer = None
        return [] if is_taken else [*work.refused.values(), *errors]

    def _serve(self, wait: Callable[[float], int], timeout_s: float) -> int:
        """Poll or flush; see ``KafkaWriter``."""
        try:
            return super()._serve(wait, timeout_s)
        except SystemError as error:
            # In the middle of its callbacks the driver reports a fenced producer so.
            raise self._lost("the brokers know a newer one, or took it for dead") from error

    def _note_delivery(self, error: Any, message: Any) -> None:
        if error is None or error.code() not in error_codes.PURGED:
            super()._note_delivery(error, message)

    def _until(
        self, deadline: float, call: Callable[[float], None], what: str, *, gives_up: bool = False
    ) -> None:
        """Repeat a call until it works; one without an answer goes on where it was.

        With ``gives_up``, what is not done by the deadline is left to a new producer.
        """
        while True:
            try:
                call(_STEP_S)
            except self._kafka.KafkaException as error:
                cause = error.args[0]
                if not cause.retriable():
                    self._raise([cause])
            else:
                return
            if gives_up and time.monotonic() >= deadline:
                raise self._lost(f"it could not {what} within {self.timeout_s:g} s")
            self._pause(deadline, what)

    def _pause(self, deadline: float, what: str, why: str = "") -> None:
        """Raise where there is a reason to wait no longer; ``why``: what is waited for."""
        self._serve(self._producer.poll, 0)
        self._raise_if_refused()
        if self._abandoned:
            raise RetryableError(f"{self._where}: asked to end, could not {what} before")
        if time.monotonic() >= deadline:
            late = f"{self._where}: could not {what} within {self.timeout_s:g} s"
            if why:
                raise RetryableError(f"{late}: {why}")
            self._raise_if_other_server()
            raise RetryableError(
                f"{late}; check that the brokers {self._sink.brokers} are up and reachable "
                f"(last error: {self._errors.last})"
            )

    def _raise(self, failures: list[Any], topic: str = "") -> NoReturn:
        """Turn failures into the error the engine acts on."""
        answers = self._work.failures if self._work is not None else []
        if any(error.code() in error_codes.REJECTED for error in answers):
            raise _RefusedError
        failures = [*answers, *(error for error in failures if error not in answers)]
        if any(error.code() in error_codes.ACCESS for error in failures):
            super()._raise(failures, topic)
        for error in failures:
            if error.code() in error_codes.NO_TRANSACTIONS:
                raise self._error_of(error)
            if error.fatal() or error.code() in error_codes.FENCED or self._committing is not None:
                raise self._lost(error.str())
        super()._raise(failures, topic)

    def _error_of(self, error: Any) -> DeltaForgeError:
        return error_of(error, f"{self._where}: {scrub(self._sink, error.str())}")

    def _lost(self, reason: str) -> FencedError:
        """Return that this producer cannot go on before ``recover``."""
        self._stage, self._committing, self._work = TransactionStage.NEW, None, None
        return FencedError(
            f"{self._where}: its producer has to take over again: {scrub(self._sink, reason)}"
        )

    def _begin_anew(self) -> None:
        """Replace a producer that had a message refused: the next ones would wait for its timeout.

        Raises:
            FencedError: somebody else has written meanwhile.
        """
        former = self._cursor
        if self.recover() != former:
            raise self._lost("the position is not the one that it wrote")

    def _renew(self) -> None:
        self._discard()
        self._topics.clear()
        self._committing = None
        self._producer = self._new_producer()

    def _withdraw(self, *, is_fatal: bool = False) -> None:
        """Keep the producer: its transaction is aborted, and nothing of it will be seen."""
        del is_fatal  # A producer that failed for good is replaced by ``recover``.
        self._work = None


class KafkaTransactionWriter(KafkaOnceWriter):
    """At least once: a commit without an answer may be followed by the same batch.

    Of the chunks of a snapshot once, see ``ChunkWriter``.
    """

    def __init__(self, sink: KafkaSink, pipeline: str) -> None:
        self._batch: Messages | None = None
        self._batches = 0
        self._has_topic = False
        self._chunk: str | None = None
        super().__init__(sink, pipeline)

    def write_chunk(self, messages: Messages, mark: ChunkMark) -> WrittenChunk:
        """Write a chunk and its mark in one transaction; see ``ChunkWriter``."""
        key = f"{self._key}/rows/{mark.name}"
        try:
            is_new = self._stage is TransactionStage.NEW
            if is_new:
                self._begin_anew()
            # Tried before: by a former writer, or by us with an end that nobody knows.
            if is_new if self._chunk == key else not mark.is_first:
                held = self._held(key)
                if held is not None:
                    return WrittenChunk(held)
            if not len(messages):
                return WrittenChunk(mark.text)
            self._chunk = key
            self._make_topic()
            record = (key, mark.text.encode())
            refused = self._transaction(messages, SinkPosition({"chunk": key}), record)
        except FencedError as error:
            raise self._not_fenced(error) from error
        return WrittenChunk(None, refused) if refused else WrittenChunk(mark.text)

    def _held(self, key: str) -> str | None:
        """Return the text of a chunk's mark; those who may have left it are shut out."""
        self._make_topic()
        text = self._positions(time.monotonic() + self.timeout_s).read(key.encode())
        return None if text is None else text.decode()

    def _make_topic(self) -> None:
        if not self._has_topic:
            self._positions(time.monotonic() + self.timeout_s).make()
            self._has_topic = True

    def _not_fenced(self, error: FencedError) -> RetryableError:
        """Return that the producer begins anew, unless a newer epoch has begun."""
        if self._claim is not None:
            self._claim.confirm()
        return RetryableError(str(error))

    def write(self, messages: Messages) -> Sequence[Rejection]:
        """Write a batch in a transaction; see ``SinkWriter``."""
        rejections: list[Rejection] = []
        rest = messages
        try:
            while len(rest):
                refused = self._write(rest)
                if not refused:
                    break
                rejections += refused
                rest = _without(rest, refused)
        except FencedError as error:
            raise self._not_fenced(error) from error
        return sorted(rejections, key=lambda rejection: rejection.event_row)

    def _write(self, messages: Messages) -> Sequence[Rejection]:
        if self._stage is TransactionStage.NEW:
            self._begin_anew()
        if self._batch is None or not self._batch.same_as(messages):
            self._batch, self._batches = messages, self._batches + 1
        return self._transaction(messages, SinkPosition({"batch": self._batches}), None)

    def _begin_anew(self) -> None:
        """Take the producer's own id over; nobody but a successor does so as well."""
        self._begin(time.monotonic() + self.timeout_s)
        self._stage = TransactionStage.IDLE

    def _set_id(self) -> None:
        self._settings["transactional.id"] += f"/{secrets.token_hex(6)}"


def _without(messages: Messages, refused: Sequence[Rejection]) -> Messages:
    rows = pa.array({rejection.event_row for rejection in refused}, pa.int32())
    return messages.take(pc.indices_nonzero(pc.invert(pc.is_in(messages.event_rows, rows))))
