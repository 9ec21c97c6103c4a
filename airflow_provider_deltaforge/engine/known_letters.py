"""What is set aside already, where that is stored before a sink holds the rest of its batch.

Killed between the two, the batch comes again, and what is refused of it is refused again.
"""

from airflow_provider_deltaforge.engine.letters import Letter
from airflow_provider_deltaforge.engine.sinking import holds_position
from airflow_provider_deltaforge.spec.document import Spec
from airflow_provider_deltaforge.storage.dead_letters import DeadLetters

_Known = tuple[str, str | None, str | None]
_MARK, _LENGTH = b'"event_id":"', 36


class KnownLetters:
    """Leaves out what is in the queue. Used by one thread.

    Args:
        queue: the pipeline's.
        spec: the document; where no sink holds the position itself, nothing is left out.
    """

    def __init__(self, queue: DeadLetters, spec: Spec) -> None:
        self._queue = queue
        self._wanted = any(map(holds_position, spec.sinks))
        self._known: set[_Known] | None = None

    def begin(self) -> None:
        """Read the queue again when something is to be set aside next."""
        self._known = None

    def unknown(self, letters: list[Letter]) -> list[Letter]:
        """Return the entries that are not there yet; from now on they are known.

        Raises:
            RetryableError: the store is away.
        """
        if not self._wanted or not letters:
            return letters
        if self._known is None:
            self._known = {
                (one.letter.event_id, one.letter.meta.sink_id, one.letter.meta.processor_id)
                for one in self._queue.stored(damaged=False)
            }
        found = [letter for letter in letters if _of(letter) not in self._known]
        self._known.update(map(_of, found))
        return found


def _of(letter: Letter) -> _Known:
    start = letter.text.index(_MARK) + len(_MARK)
    event_id = letter.text[start : start + _LENGTH].decode()
    return event_id, letter.refusal.sink_id, letter.refusal.processor_id
