"""What a killed task means for the stream it watches.

``on_kill`` runs when a user marks the task failed or successful, when he clears it, and also when
another triggerer took the trigger over. Only the first two mean *stop*; the state of the task
instance tells them apart, at the first look: a later attempt may end before it adopts the stream,
which is no word about this one. Where Airflow cannot be asked, the owner token decides after a
grace (``[deltaforge] kill_grace_seconds``): an attempt that was cleared and run again has written
its own by then.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_provider_deltaforge.control.pipelines import ask_to_stop_if_owner, stop_if_owner
from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError
from airflow_provider_deltaforge.hooks.connections import LOOKUP_ERRORS
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.hooks.jobs import TriggerArguments
from airflow_provider_deltaforge.storage.records.control import Control

_GRACE_S = 3.0
PATIENCE_S = 60.0
"""How long the state store or Airflow may be away before nobody waits for it here."""

_POLL_S = 0.5
_WORKER_PATIENCE_S = 4.0  # Airflow sends SIGKILL 5 s after SIGTERM.

_OVER = frozenset({"failed", "success", "skipped", "upstream_failed", "removed"})

log = logging.getLogger(__name__)


def is_over(instance: Any) -> bool | None:
    """Return whether a task instance has ended for good; None when Airflow does not know."""
    if instance is None:
        return None
    try:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        mapped = instance.map_index if instance.map_index >= 0 else None
        states = RuntimeTaskInstance.get_task_states(
            instance.dag_id, mapped, task_ids=[instance.task_id], run_ids=[instance.run_id]
        )
    except Exception:  # Outside a task or triggerer there is nobody to ask.
        log.warning("Airflow does not tell the state of the task", exc_info=True)
        return None
    run_states = states.get(instance.run_id)
    # A task instance that was deleted together with its run or DAG has ended, too.
    return not run_states or set(run_states.values()) <= _OVER


def stop_unless_adopted(conn_id: str, watch: TriggerArguments, instance: Any) -> bool:
    """Stop the stream when its task has ended, unless another attempt adopts it; say if it did.

    Blocking. Tries again while the state store is away.
    """
    return once_over(
        instance,
        held=lambda: _is_owner(conn_id, watch),
        act=lambda: _stop(conn_id, watch),
        otherwise=_runs_on(watch),
    )


def ask_to_stop_from_worker(conn_id: str, watch: TriggerArguments, instance: Any) -> None:
    """Ask the stream to end if a user ended the task whose process is about to be killed."""

    def ask() -> None:
        with DeltaForgeHook(conn_id).store() as store:
            ask_to_stop_if_owner(store, watch.pipeline, watch.owner)

    if_over_from_worker(instance, ask, otherwise=_runs_on(watch))


async def in_thread(act: Callable[[], object]) -> None:
    """Act in a thread of its own, for ``on_kill`` of a trigger.

    The triggerer cancels a coroutine that awaits after about a second, and the threads it shares
    among triggers are few.
    """
    acting = threading.Thread(target=act, name="deltaforge-on-kill")
    acting.start()
    while acting.is_alive():
        await asyncio.sleep(0.1)


def once_over(
    instance: Any, *, held: Callable[[], bool] | None, act: Callable[[], bool], otherwise: str
) -> bool:
    """Act once a task has ended, while what it ``held`` is not another attempt's; say if it did.

    Blocking. Tries again while the state store or Airflow is away; logs ``otherwise`` when that
    lasts.

    Args:
        instance: the task instance.
        held: asks whether no other attempt has taken over; None: nothing shows that, so that only
            Airflow's word counts.
        act: says whether it did something.
        otherwise: what it means when nothing is done.
    """
    began = time.monotonic()
    grace_s = conf.getfloat("deltaforge", "kill_grace_seconds", fallback=_GRACE_S)
    failure: Exception | None = None
    while (waited_s := time.monotonic() - began) < PATIENCE_S:
        over = is_over(instance)
        if over is False:
            return False
        try:
            if held is not None and not held():
                return False
            if over or (held is not None and waited_s >= grace_s):
                return act()
            failure = None
        except (RetryableError, *LOOKUP_ERRORS) as error:
            failure = error
        if not threading.main_thread().is_alive():
            break  # The triggerer ends; nobody may keep it waiting.
        time.sleep(_POLL_S)
    log.warning("%s: %s", otherwise, failure or "Airflow does not tell whether its task has ended")
    return False


def if_over_from_worker(instance: Any, act: Callable[[], object], *, otherwise: str) -> None:
    """Act if the task has ended for good whose process is about to be killed.

    A user ended it, its run timed out, or its last attempt did. A worker that is only drained or
    evicted sends the same signal: then the task still counts as running, and the next attempt goes
    on. In a thread, because the signal may have interrupted a call that holds Airflow's channel.
    """
    gives_up = _timed_out_for_good(instance)

    def look() -> None:
        try:
            if gives_up or is_over(instance):
                act()
        except DeltaForgeError as error:
            log.warning("%s: %s", otherwise, error)

    looking = threading.Thread(target=look, daemon=True, name="deltaforge-on-kill")
    looking.start()
    looking.join(_WORKER_PATIENCE_S)


def _timed_out_for_good(instance: Any) -> bool:
    """Return whether ``execution_timeout`` ends the last attempt of a task.

    Airflow calls ``on_kill`` while it handles that error, and the task still counts as running.
    """
    is_timeout = isinstance(sys.exc_info()[1], AirflowTaskTimeout)
    return is_timeout and instance.try_number > instance.max_tries


def _runs_on(watch: TriggerArguments) -> str:
    return f"{watch.pipeline} runs on without a supervisor; `deltaforge stop` ends it"


def _is_owner(conn_id: str, watch: TriggerArguments) -> bool:
    with DeltaForgeHook(conn_id).store() as store:
        record = Control(store, watch.pipeline).read()
    return record is not None and record.owner == watch.owner


def _stop(conn_id: str, watch: TriggerArguments) -> bool:
    hook = DeltaForgeHook(conn_id)
    with hook.store() as store:
        return stop_if_owner(store, watch.pipeline, hook.backend(), watch.owner)
