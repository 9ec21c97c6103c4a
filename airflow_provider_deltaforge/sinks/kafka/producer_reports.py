"""What a producer reports by itself: errors of brokers, and its statistics."""

from collections import Counter
from typing import Any

import orjson

from airflow_provider_deltaforge.sinks.kafka import error_codes
from airflow_provider_deltaforge.sinks.kafka.configuration import scrub
from airflow_provider_deltaforge.sinks.kafka.sink import KafkaSink
from airflow_provider_deltaforge.telemetry.client_counts import ClientCounts

_CONFIRMATIONS = 3  # A broker that starts can refuse one connection; it does not refuse three.


class ProducerErrors:
    """What a producer reports by itself, of brokers and not of messages.

    Attributes:
        last: the last one, as people may read it.
    """

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink
        self._refusals = 0
        self.last = "no answer"

    def note(self, error: Any) -> None:
        """Take a report; the producer calls this."""
        if error.code() != error_codes.SUMMARY:
            self.last = scrub(self._sink, error.str())
        if error_codes.is_refusal(error.code(), error.str()):
            self._refusals += 1

    def are_refusals(self) -> bool:
        """Return whether brokers refused us so often that it is no accident."""
        return self._refusals >= _CONFIRMATIONS

    def forget_refusals(self) -> None:
        """Count from the beginning: a batch went through, or the refusal was reported."""
        self._refusals = 0


class ProducerStatistics:
    """What producers of one writer did. Used by the thread that polls them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(produce_retries=0)
        self._retries: dict[tuple[str, str], int] = {}
        self._queued_bytes = 0

    def note(self, text: str) -> None:
        """Take a report; the producer calls this every few seconds while it is polled."""
        report = orjson.loads(text)
        self._queued_bytes = int(report.get("msg_size", 0))
        producer = str(report.get("name"))
        for broker, counted in report.get("brokers", {}).items():
            retries, known = int(counted.get("txretries", 0)), (producer, str(broker))
            self.counts["produce_retries"] += max(0, retries - self._retries.get(known, 0))
            self._retries[known] = retries

    def take(self, queued: int) -> ClientCounts:
        """Return what was counted since the last call.

        Args:
            queued: messages that the producer holds now.
        """
        counts = dict(self.counts)
        self.counts.clear()
        nbytes = self._queued_bytes if queued else 0
        return ClientCounts(counts, {"queue_messages": queued, "queue_bytes": nbytes})
