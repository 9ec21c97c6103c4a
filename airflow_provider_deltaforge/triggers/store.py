"""Wait until a state store answers."""

import time

from airflow.triggers.base import TriggerEvent

from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.triggers.polling_trigger import PollingTrigger

STORE_BACK = "store_back"
_MOST_S = 60.0


class StoreTrigger(PollingTrigger):
    """Fires ``{"event": "store_back"}`` when the state store answers.

    Also after a minute: a store that was never made is there only once the task has made it.

    Args:
        deltaforge_conn_id: connection of the state store.
        pipeline: what is waited for, for the log.
        poll_s: seconds between two looks at the store.
        until_ms: when the task's time is up, in ms since the epoch; it travels with the event.
    """

    def __init__(
        self,
        deltaforge_conn_id: str,
        pipeline: str,
        poll_s: float = 5.0,
        until_ms: int | None = None,
    ) -> None:
        super().__init__()
        self.deltaforge_conn_id, self.pipeline, self.poll_s = deltaforge_conn_id, pipeline, poll_s
        self.until_ms = until_ms
        self._began_s = time.monotonic()

    def look(self) -> tuple[TriggerEvent | None, str]:
        """Return the event if the store answers. Blocking."""
        try:
            error = store_trouble(self.deltaforge_conn_id)
        except DeltaForgeError:
            error = None  # It answers, and the task says what is wrong; here its words were lost.
        over = self.until_ms is not None and time.time() * 1000 >= self.until_ms
        if error is None or over or time.monotonic() - self._began_s > _MOST_S:
            bound = {} if self.until_ms is None else {"until_ms": self.until_ms}
            return TriggerEvent({"event": STORE_BACK, **bound}), "the state store answers"
        return None, f"the state store is away: {error}"


def store_trouble(conn_id: str) -> RetryableError | None:
    """Return why a state store does not answer; None if it does.

    Raises:
        DeltaForgeError: it refuses us, or cannot be read.
    """
    try:
        with DeltaForgeHook(conn_id).store() as store:
            Control.list_pipelines(store)
    except RetryableError as error:
        return error
    return None
