"""What a killed task means for the copy it asked for: nobody wants it any more.

The stream that serves it is never stopped. As with streams (``triggers.killed``), the state of the
task instance tells *marked failed* from *cleared*, and the owner token guards an attempt that asked
again meanwhile.
"""

import logging
import threading
import time
from typing import Any

from airflow_provider_deltaforge.control.snapshots import cancel, request_state
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.hooks.jobs import Watch
from airflow_provider_deltaforge.triggers import killed

REASON = "its task was ended by a user"

_POLL_S = 0.5
_WORKER_PATIENCE_S = 4.0  # Airflow sends SIGKILL 5 s after SIGTERM.

_log = logging.getLogger(__name__)


def withdraw_unless_adopted(conn_id: str, watch: Watch, request_id: str, instance: Any) -> bool:
    """Withdraw a request when its task has ended, unless another attempt holds it; say if it did.

    Blocking. Tries again while the state store is away.
    """
    began = time.monotonic()
    while (waited_s := time.monotonic() - began) < killed.PATIENCE_S:
        try:
            if not _holds(conn_id, watch, request_id):
                return False
            over = killed.is_over(instance)
            if over or (over is None and waited_s >= killed.GRACE_S):
                return _withdraw(conn_id, watch, request_id)
        except RetryableError as error:
            _log.warning("request %s not withdrawn yet: %s", request_id, error)
        if not threading.main_thread().is_alive():
            break  # The triggerer ends; nobody may keep it waiting.
        time.sleep(_POLL_S)
    _log.warning("request %s of %s stays: nobody withdrew it", request_id, watch.pipeline)
    return False


def withdraw_from_worker(conn_id: str, watch: Watch, request_id: str, instance: Any) -> None:
    """Withdraw the request of a task whose process is about to be killed, if a user ended it."""

    def withdraw() -> None:
        if killed.is_over(instance):
            _withdraw(conn_id, watch, request_id)

    thread = threading.Thread(target=withdraw, daemon=True, name="deltaforge-on-kill")
    thread.start()
    thread.join(_WORKER_PATIENCE_S)


def _holds(conn_id: str, watch: Watch, request_id: str) -> bool:
    with DeltaForgeHook(conn_id).store() as store:
        state = request_state(store, watch.pipeline, request_id)
    return state is not None and not state.settled and state.by == watch.owner


def _withdraw(conn_id: str, watch: Watch, request_id: str) -> bool:
    with DeltaForgeHook(conn_id).store() as store:
        return cancel(store, watch.pipeline, request_id, REASON, by=watch.owner)
