"""Sets events aside that nobody could take, in the transaction that moves the position past them.

Killed before that transaction, the events are refused again; killed after it, they are there. Only
of a transaction or chunk that is refused in masses, entries are stored before its end, and are
there twice after a kill: memory is bounded. Of a batch for a sink that holds the position itself,
they are stored before the sink holds it, and known when they come again.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.processor_stats import DeadLetterStats
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.dead_letters.dead_letter import (
    DeadLetterWriter,
    PreparedDeadLetter,
)
from airflow_provider_deltaforge.engine.dead_letters.queue_limits import QueueLimits
from airflow_provider_deltaforge.engine.dead_letters.row_ordering import RowOrdering
from airflow_provider_deltaforge.engine.render.refusals import stop_for_processors, stop_for_sink
from airflow_provider_deltaforge.engine.render.render_stage import SinkMessages
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.dead_letters import (
    DeadLetter,
    DeadLetterRecords,
    stored_early,
)

_HELD_BYTES = 16 << 20


class DeadLetterQueue:
    """Collects what a lane or a copy cannot deliver, and stores it. Used by one thread.

    Without a queue (``spec.journal``) an event that nobody takes stops the pipeline.

    Args:
        context: the opened job.
        dead_letter_stats: where it is counted.
        report_error: called with the name and the error while the queue is full, then with None.
        ending: set when the lane ends.
        confirm: raises if a newer lane has started, whose limits hold then.
        behind: the one sink that this is for, which stands behind the others.
    """

    def __init__(
        self,
        context: TaskContext,
        dead_letter_stats: DeadLetterStats,
        report_error: Callable[[str, BaseException | None], None],
        ending: threading.Event,
        confirm: Callable[[], None],
        behind: str | None = None,
    ) -> None:
        journal = context.pipeline.spec.journal
        self.enabled = bool(journal.enabled)
        self._context = context
        self._queue = DeadLetterRecords(context.store, context.pipeline.name)
        self._writer = DeadLetterWriter(context.origin, journal.max_event_bytes)
        self._stats = dead_letter_stats
        self._limits = QueueLimits(context, dead_letter_stats, report_error, ending, confirm)
        ids = [sink.id for sink in context.pipeline.spec.sinks]
        holds = journal.dlq.hold_keys
        known = self._known = StoredEntries(context)
        self.order = RowOrdering(self._queue, ids, holds=holds, behind=behind, also=known.know)
        self._held: list[PreparedDeadLetter] = []
        self._chosen: list[PreparedDeadLetter] = []
        self._is_untrimmed = False

    def check(self, rendered: SinkMessages, source: pa.RecordBatch) -> None:
        """Make sure that what processors refused can be set aside, before anything is delivered.

        Raises:
            EventError: there is no queue.
        """
        if not self.enabled:
            stop_for_processors(rendered.processed, source)

    def take(
        self,
        rendered: SinkMessages,
        source: pa.RecordBatch,
        refused: Mapping[str, Sequence[Rejection]],
    ) -> None:
        """Take what nobody could take of a batch that is delivered otherwise.

        Args:
            rendered: the batch; with what its processors and its rendering refused.
            source: as it was read.
            refused: by the sinks it was delivered to, by sink id.

        Raises:
            EventError: there is no queue.
        """
        dead_letters: list[PreparedDeadLetter] = []
        if self.enabled:
            dead_letters = self._writer.of_processors(rendered.processed)
        for sink_id, rejections in refused.items():
            all_of_sink = [*rendered.rejections[sink_id], *rejections]
            if not self.enabled:
                stop_for_sink(sink_id, all_of_sink, rendered.processed, source)
            elif all_of_sink:
                dead_letters += self._writer.of_sink(sink_id, all_of_sink, rendered.processed)
        self.hold(dead_letters)
        if self.enabled:
            self.order.delivered(rendered, refused, self._held)
        for dead_letter in self._held:
            dead_letter.at = -1

    def hold(self, dead_letters: list[PreparedDeadLetter]) -> None:
        """Hold what is to be stored with the next transaction, but for what is stored already."""
        # Whoever refused them: sent again, the events of a row go in this order.
        self._held += sorted(
            self._known.unknown(dead_letters), key=lambda dead_letter: dead_letter.at
        )

    def begin(self) -> None:
        """Read what stands in the queue; what is not stored is forgotten: it will be read again.

        Raises:
            RetryableError: the store is away.
        """
        self._forget()
        self._known.begin()
        if self.enabled:
            self.order.begin()

    def read_on(self) -> None:
        """Read what others have stored since the last time.

        Raises:
            RetryableError: the store is away.
        """
        if self.enabled:
            self.order.read_on()

    def held_back(
        self, rendered: SinkMessages, sink_ids: Iterable[str]
    ) -> tuple[dict[str, Messages], dict[str, list[Rejection]]]:
        """Return what sinks are given of a batch, and what waits behind entries of its rows.

        What waits counts as refused by its sink.

        Raises:
            RetryableError: the store is away.
        """
        return self.order.held_back(rendered, self._held, sink_ids)

    def _forget(self) -> None:
        self._held, self._chosen = [], []

    @property
    def has_news(self) -> bool:
        """Return whether something is to be stored with the next checkpoint."""
        return bool(self._held) or self.order.has_marks

    @property
    def overflows(self) -> bool:
        """Return whether so much is held that it is stored before the position moves."""
        many = len(self._held) > self._context.job.tuning.held_dead_letters
        return many or sum(len(dead_letter.text) for dead_letter in self._held) > _HELD_BYTES

    def awaits_room(self) -> bool:
        """Wait for room where the policy says so; return False when the lane ended meanwhile."""
        return self._limits.await_room(len(self._held))

    def transact(self, writes: Sequence[Write]) -> None:
        """Store what is held, under the fence.

        Args:
            writes: stored with it: the position that moves past it. Without any, it is stored
                before sinks hold its batch.

        Raises:
            RetryableError: the store is away; called again, it is tried again.
        """
        self._chosen = self._limits.that_fit(self._held)
        try:
            marks = self.order.writes()
            texts = self._known.texts(self._chosen, early=not writes)
            pushed = [self._queue.push(text) for text in texts]
            self._context.store.transact([*writes, *pushed, *marks], self._context.fence)
        except RetryableError:
            if self._held:
                self._stats.count("write_failures", 1)
            raise

    def stored(self) -> None:
        """Count what is stored now, and keep the queue within its limits.

        Called again when the store was away, it goes on where it was.
        """
        self.order.written()
        if self._held:
            reach(CrashPoint.DEAD_LETTERS_STORED)
            self._count_stored()
        if self._is_untrimmed:
            self.order.read_on()
            self._limits.trim()
            self._is_untrimmed = False

    def log_counts(self) -> None:
        """Log what was set aside and what was lost since the last call."""
        self._limits.log.write()

    @property
    def is_due(self) -> bool:
        """Return whether ``tend`` has something to do."""
        return self.enabled and self._limits.is_due

    def tend(self) -> None:
        """Forget what is older than the document allows, and log what was not logged yet."""
        self.log_counts()
        self._limits.tend()

    def _count_stored(self) -> None:
        held, chosen = self._held, self._chosen
        self._forget()
        self._is_untrimmed = True
        for dead_letter in chosen:
            why = dead_letter.refusal
            self._stats.set_aside(why.sink_id, why.processor_id, why.error_kind)
        self._limits.count(len(chosen), len(held) - len(chosen))


_Known = tuple[str, str | None, str | None]
_MARK, _LENGTH = b'"event_id":"', 36
_COPIED = b',"source_cursor":null,"event":'


class StoredEntries:
    """Leaves out what is in the queue already. Used by one thread.

    Entries are stored before a sink holds the rest of their batch. Killed between the two, the
    batch comes again, and the same events are refused again. Sent again before that, an entry would
    arrive in front of what is older: so each one holds where the sinks stood.

    Args:
        context: the opened job; where no sink holds the position itself, nothing is left out.
    """

    def __init__(self, context: TaskContext) -> None:
        spec, self._context = context.pipeline.spec, context
        self._wanted = any(sink.holds_position for sink in spec.sinks)
        self._known: set[_Known] = set()

    def begin(self) -> None:
        """Forget what is there: the queue is read again."""
        self._known = set()

    def know(self, dead_letter: DeadLetter) -> None:
        """Take note of an entry of the queue."""
        if self._wanted:
            self._known.add(
                (dead_letter.event_id, dead_letter.meta.sink_id, dead_letter.meta.processor_id)
            )

    def unknown(self, dead_letters: list[PreparedDeadLetter]) -> list[PreparedDeadLetter]:
        """Return the entries that are not there yet; from now on they are known."""
        if not self._wanted:
            return dead_letters
        found = [dead_letter for dead_letter in dead_letters if _of(dead_letter) not in self._known]
        self._known.update(map(_of, found))
        return found

    def texts(self, dead_letters: Sequence[PreparedDeadLetter], *, early: bool) -> list[bytes]:
        """Return what is stored of entries.

        Args:
            dead_letters: the entries.
            early: they are stored before sinks hold their batch.

        Raises:
            RetryableError: the store is away.
        """
        if not early or not dead_letters or not self._wanted:
            return [dead_letter.text for dead_letter in dead_letters]
        source_id = self._context.pipeline.spec.source.id
        positions = Checkpoints(self._context.store, self._context.pipeline.name, source_id).load()
        # The rows of a snapshot have no place in the log.
        return [
            each.text if _COPIED in each.text else stored_early(each.text, positions)
            for each in dead_letters
        ]


def _of(dead_letter: PreparedDeadLetter) -> _Known:
    start = dead_letter.text.index(_MARK) + len(_MARK)
    event_id = dead_letter.text[start : start + _LENGTH].decode()
    return event_id, dead_letter.refusal.sink_id, dead_letter.refusal.processor_id
