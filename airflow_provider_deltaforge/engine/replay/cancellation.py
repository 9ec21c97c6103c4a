"""Whether a replay is still wanted: it may be withdrawn at any time."""

import time
from collections.abc import Callable
from contextlib import suppress

from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.errors import RetryableError

_LOOK_S = 1.0


class Cancellation:
    """Looks for it in the control record. Used by one thread at a time.

    Args:
        context: the open job.
        ticket: of the replay.
    """

    def __init__(self, context: TaskContext, ticket: str) -> None:
        self._control, self._ticket = context.control, ticket
        self._looked_at = time.monotonic()
        self.reason: str | None = None
        """Why it was withdrawn, as far as we have looked."""

    def look(self) -> str | None:
        """Return why it was withdrawn, if it was.

        Raises:
            RetryableError: the store is away.
        """
        record = self._control.read()
        asked = (
            [request for request in record.replays if request.ticket == self._ticket]
            if record
            else []
        )
        self.reason = asked[0].cancelled if asked else "withdrawn"
        self._looked_at = time.monotonic()
        return self.reason

    def is_known(self) -> bool:
        """Return whether it was, while something else is waited for: looks only now and then."""
        if self.reason is None and time.monotonic() - self._looked_at >= _LOOK_S:
            self._looked_at = time.monotonic()
            with suppress(RetryableError):
                self.look()
        return self.reason is not None

    def outlives(self, call: Callable[[], object]) -> bool:
        """Do something; return False if it does not work now, and is not wanted any more.

        Raises:
            RetryableError: it does not work now, and is still wanted.
        """
        try:
            call()
        except RetryableError:
            if not self.is_known():
                raise
            return False
        return True
