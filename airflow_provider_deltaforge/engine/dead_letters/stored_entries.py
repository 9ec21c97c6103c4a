"""What is set aside already, where that is stored before a sink holds the rest of its batch.

Killed between the two, the batch comes again, and what is refused of it is refused again. Sent
again before that, it would arrive in front of what is older: so it tells where the sinks stood.
"""

from collections.abc import Sequence

from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.dead_letters.dead_letter import PreparedDeadLetter
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetter, stored_early

_Known = tuple[str, str | None, str | None]
_MARK, _LENGTH = b'"event_id":"', 36
_COPIED = b',"source_cursor":null,"event":'


class StoredEntries:
    """Leaves out what is in the queue. Used by one thread.

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
        stood = Checkpoints(self._context.store, self._context.pipeline.name, source_id).load()
        # The rows of a snapshot have no place in the log.
        return [
            each.text if _COPIED in each.text else stored_early(each.text, stood)
            for each in dead_letters
        ]


def _of(dead_letter: PreparedDeadLetter) -> _Known:
    start = dead_letter.text.index(_MARK) + len(_MARK)
    event_id = dead_letter.text[start : start + _LENGTH].decode()
    return event_id, dead_letter.refusal.sink_id, dead_letter.refusal.processor_id
