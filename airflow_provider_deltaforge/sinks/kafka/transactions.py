"""Batches in transactions that hold no position, so that the brokers fence who wrote before.

Rows of snapshots and dead letters have no position, and a pipeline may want to be fenced without
exactly once. Several of these writers work side by side: each has an id of its own, which the state
store knows before the first transaction. A successor begins by taking these ids over.
"""

import secrets
import time
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.errors import FencedError, RetryableError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import SinkPosition
from airflow_provider_deltaforge.sinks.kafka.once import KafkaOnceWriter, TransactionStage
from airflow_provider_deltaforge.sinks.kafka.sink import KafkaSink


class KafkaTransactionWriter(KafkaOnceWriter):
    """At least once: a commit without an answer may be followed by the same batch."""

    def __init__(self, sink: KafkaSink, pipeline: str) -> None:
        self._batch: Messages | None = None
        self._batches = 0
        super().__init__(sink, pipeline)

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
            if self._claim is not None:
                self._claim.confirm()
            raise RetryableError(str(error)) from error
        return sorted(rejections, key=lambda one: one.event_row)

    def _write(self, messages: Messages) -> Sequence[Rejection]:
        if self._stage is TransactionStage.NEW:
            self._begin_anew()
        if self._batch is None or not self._batch.same_as(messages):
            self._batch, self._batches = messages, self._batches + 1
        return self._transaction(messages, SinkPosition({"batch": self._batches}), None)

    def _begin_anew(self) -> None:
        """Take the producer's own id over; nobody but a successor does so as well."""
        self._begin(time.monotonic() + self._patience_s)
        self._stage = TransactionStage.IDLE

    def _set_id(self) -> None:
        self._settings["transactional.id"] += f"/{secrets.token_hex(6)}"


def _without(messages: Messages, refused: Sequence[Rejection]) -> Messages:
    rows = pa.array({one.event_row for one in refused}, pa.int32())
    return messages.take(pc.indices_nonzero(pc.invert(pc.is_in(messages.event_rows, rows))))
