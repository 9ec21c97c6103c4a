"""Dead letters: events that nobody could take, kept in a queue of their pipeline."""

from collections.abc import Iterator
from typing import Any, Literal

from airflow_provider_deltaforge.spec.settings import Settings
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Push, Store
from airflow_provider_deltaforge.storage.records import Record

_PAGE = 50


class Refusal(Settings):
    """Who refused an event, and why."""

    sink_id: str | None = None
    processor_id: str | None = None
    error_kind: str
    error_message: str
    attempts: int = 1


class DeadLetter(Record):
    """One event that was set aside.

    ``event`` is the native event: as the sink was given it, or as it came to the processor that
    refused it. ``source_cursor`` is its position in the log, which a copied row has not.
    """

    v: Literal[1] = 1
    seq: int = 0
    timestamp: int
    pipeline: str
    stream: Literal["dlq"] = "dlq"
    event_id: str
    source_cursor: dict[str, Any] | None = None
    event: dict[str, Any]
    payload_truncated: bool = False
    meta: Refusal


class DeadLetters:
    """The queue of one pipeline."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._pipeline = pipeline
        self._key = f"{pipeline}:dlq"

    def push(self, text: bytes) -> Push:
        """Return the write that sets an event aside, for a fenced transaction.

        Args:
            text: a ``DeadLetter`` as JSON, without ``seq``.
        """
        return Push(names.JOURNAL, self._key, text)

    def count(self) -> int:
        """Return how many events are set aside."""
        return self._store.length(names.JOURNAL, self._key)

    def read(self, after: int = 0) -> Iterator[DeadLetter]:
        """Yield what is set aside behind a sequence number, oldest first, page by page."""
        while entries := self._store.peek(names.JOURNAL, self._key, _PAGE, after):
            for entry in entries:
                name = f"dead letter {entry.seq} of {self._pipeline}"
                letter = DeadLetter.from_stored(entry.value, name)
                yield letter.model_copy(update={"seq": entry.seq})
            after = entries[-1].seq

    def ack(self, upto: int) -> int:
        """Forget everything up to and including a sequence number; return how many."""
        return self._store.ack(names.JOURNAL, self._key, upto)

    def drop_oldest(self, count: int) -> int:
        """Forget the oldest; return how many."""
        return self._store.drop_oldest(names.JOURNAL, self._key, count)

    def purge(self) -> int:
        """Forget everything that is there now; return how many."""
        return self.drop_oldest(self.count())

    def expire(self, before_ms: int) -> int:
        """Forget what was set aside before a time; return how many."""
        forgotten = 0
        while entries := self._store.peek(names.JOURNAL, self._key, _PAGE):
            old = [entry.seq for entry in entries if entry.ts_ms < before_ms]
            if not old:
                break
            forgotten += self.ack(max(old))
        return forgotten
