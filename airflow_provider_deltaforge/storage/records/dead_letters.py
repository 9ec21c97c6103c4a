"""Dead letters: events that nobody could take, kept in a queue of their pipeline."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from pydantic import Field

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.events.table_names import is_named, qualified_name
from airflow_provider_deltaforge.spec.settings import Settings
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Amend, Push, Store, StoredEntry, Take
from airflow_provider_deltaforge.storage.records.record import Record

_PAGE = 50
_META = b',"meta":'


class DeadLetterReason(Settings):
    """Who refused an event, and why."""

    sink_id: str | None = None
    processor_id: str | None = None
    error_kind: str
    error_message: str
    attempts: int = 1
    overtaken: list[str] = Field(default_factory=list)
    """Sinks that were given a newer event of the same row meanwhile."""
    delivered: list[str] = Field(default_factory=list)
    """Sinks that a replay has given it; the others still miss it."""


class EarlierPlace(Settings):
    """Which row an event concerned before processors gave it another table or key."""

    table: list[str]
    """Database, schema and table, each empty if there is none."""
    key: str | None = None
    former_key: str | None = None


class EventRemainder(Settings):
    """What a change event has and its native form does not say."""

    key: str | None = None
    """The primary key as JSON text."""
    row: int = 0
    """Its index in the transaction."""
    routing: dict[str, Any] | None = None
    """Where a processor sent it."""
    former_key: str | None = None
    """The key before, if it is an update that changed it."""
    earlier: list[EarlierPlace] | None = None
    """In front of the processors that it has passed, where that differs."""


class DeadLetter(Record):
    """One event that was set aside.

    ``event`` is the native event: as the sink was given it, or as it came to the processor that
    refused it. ``source_cursor`` is its position in the log, which a copied row has not. Without
    ``rest`` it cannot be sent again. ``stood`` tells where sinks were, if it was stored before they
    held what lies in front of it.
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
    rest: EventRemainder | None = None
    stood: dict[str, dict[str, Any]] | None = Field(default=None, exclude=True)
    meta: DeadLetterReason

    @property
    def table(self) -> str:
        """Return the full name of the event's table."""
        source = self.event.get("source") or {}
        names = (source.get("schema") or source.get("db"), source.get("table"))
        return qualified_name(*(str(name) for name in names))

    def missed_by(self, sink_ids: Collection[str]) -> list[str]:
        """Return which of the pipeline's sinks were not given it: one, or all of them."""
        if self.meta.sink_id is not None:
            return [sink for sink in sink_ids if sink == self.meta.sink_id]
        return [sink for sink in sink_ids if sink not in self.meta.delivered]


class Damaged(DeadLetter):
    """Stands for an entry that cannot be read; ``meta`` says why. It never goes into the store."""

    @property
    def table(self) -> str:
        """Return nothing: its table is unknown."""
        return ""


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Which dead letters are meant; everything given must fit."""

    sink: str | None = None
    processor: str | None = None
    kind: str | None = None
    table: str | None = None
    first: int | None = None
    last: int | None = None

    def fits(self, dead_letter: DeadLetter) -> bool:
        """Return whether a dead letter matches the filter."""
        meta = dead_letter.meta
        pairs = (
            (self.sink, meta.sink_id),
            (self.processor, meta.processor_id),
            (self.kind, meta.error_kind),
        )
        within = (
            (self.first or 0)
            <= dead_letter.seq
            <= (dead_letter.seq if self.last is None else self.last)
        )
        fits = within and all(wanted in (None, found) for wanted, found in pairs)
        if self.table is None or not fits:
            return fits
        return is_named(dead_letter.table, (self.table,))


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """A dead letter, and its text in the queue."""

    dead_letter: DeadLetter
    text: bytes


class DeadLetterRecords:
    """The queue of one pipeline."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._pipeline = pipeline
        self._key = f"{pipeline}:dlq"

    def push(self, text: bytes) -> Push:
        """Return the write that sets an event aside, for a fenced transaction.

        Args:
            text: a ``DeadLetter`` as JSON, without ``seq``, with ``meta`` at its end.
        """
        return Push(names.JOURNAL, self._key, text)

    def amend(self, stored: StoredDeadLetter, why: DeadLetterReason) -> Amend:
        """Return the write that says something else of an entry; its event stays as it is."""
        return Amend(
            names.JOURNAL, self._key, stored.dead_letter.seq, with_refusal(stored.text, why)
        )

    def take(self, seq: int) -> Take:
        """Return the write that takes one entry out."""
        return Take(names.JOURNAL, self._key, seq)

    def count(self) -> int:
        """Return how many events are set aside."""
        return self._store.length(names.JOURNAL, self._key)

    def oldest(self) -> int | None:
        """Return the sequence number of the oldest entry, or None of an empty queue."""
        entries = self._store.peek(names.JOURNAL, self._key, 1)
        return entries[0].seq if entries else None

    def stored(
        self, after: int = 0, *, damaged: bool = True, page: int = _PAGE
    ) -> Iterator[StoredDeadLetter]:
        """Yield what is set aside behind a sequence number, oldest first, page by page.

        Args:
            after: the sequence number.
            damaged: yield a ``Damaged`` for an entry that cannot be read, as one of a later
                release, instead of leaving it out.
            page: so many are read at once.
        """
        while entries := self._store.peek(names.JOURNAL, self._key, page, after):
            for entry in entries:
                dead_letter = self._dead_letter(entry)
                if damaged or not isinstance(dead_letter, Damaged):
                    yield StoredDeadLetter(dead_letter, entry.value)
            after = entries[-1].seq

    def read(self, after: int = 0) -> Iterator[DeadLetter]:
        """Yield what ``stored`` does, without the texts."""
        return (stored.dead_letter for stored in self.stored(after))

    def find(self, seq: int) -> StoredDeadLetter | None:
        """Return one entry, or None if it is not there, or cannot be read."""
        found = next(self.stored(seq - 1, page=1), None)
        if found is None or found.dead_letter.seq != seq or isinstance(found.dead_letter, Damaged):
            return None
        return found

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
        """Forget the oldest entries, if they were set aside before a time; return how many.

        What lies behind a younger one stays: clocks are set back.
        """
        forgotten = 0
        while entries := self._store.peek(names.JOURNAL, self._key, _PAGE):
            old = [*takewhile(lambda entry: entry.ts_ms < before_ms, entries)]
            if not old:
                break
            forgotten += self.ack(old[-1].seq)
        return forgotten

    def _dead_letter(self, entry: StoredEntry) -> DeadLetter:
        name = f"dead letter {entry.seq} of {self._pipeline}"
        try:
            dead_letter = DeadLetter.from_stored(entry.value, name)
        except FatalError as error:
            return Damaged(
                seq=entry.seq,
                timestamp=entry.ts_ms // 1000,
                pipeline=self._pipeline,
                event_id="",
                event={},
                meta=DeadLetterReason(error_kind="damaged", error_message=str(error)),
            )
        return dead_letter.model_copy(update={"seq": entry.seq})


def stored_early(text: bytes, positions: Mapping[str, Any]) -> bytes:
    """Return an entry's text with where sinks are that do not hold what lies in front of it."""
    at = text.rindex(_META)
    return b'%b,"stood":%b%b' % (text[:at], json.dumps(positions).encode(), text[at:])


def with_refusal(text: bytes, why: DeadLetterReason) -> bytes:
    """Return an entry's text with another ``meta``; parsed and written anew, numbers would change.

    Inside a string the quotes of the mark are escaped, and nothing comes behind ``meta``.
    """
    return text[: text.rindex(_META)] + _META + why.model_dump_json().encode() + b"}"
