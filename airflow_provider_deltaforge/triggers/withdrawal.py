"""What a killed task means for what it asked for and waits for: nobody wants it any more.

A copy, a replay or a rewind is withdrawn; the stream that serves it is never stopped. As with
streams (``triggers.killed``), the state of the task instance tells *marked failed* from *cleared*.
For copies, the owner token guards an attempt that asked again meanwhile. A worker that is only
drained leaves everything to the next attempt.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from airflow_provider_deltaforge.control import replays, rewind
from airflow_provider_deltaforge.control.snapshots import cancel, request_state
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.hooks.jobs import TriggerArguments
from airflow_provider_deltaforge.triggers import killed

REASON = "its task was ended by a user"

_WITHDRAWALS: Mapping[str, Callable[..., None]] = {
    "replay": partial(replays.cancel, reason=REASON),
    "rewind": rewind.withdraw,
}


def withdraw_unless_adopted(
    conn_id: str, watch: TriggerArguments, request_id: str, instance: Any
) -> bool:
    """Withdraw a request when its task has ended, unless another attempt holds it; say if it did.

    Blocking. Tries again while the state store is away.
    """
    return killed.once_over(
        instance,
        held=lambda: _holds(conn_id, watch, request_id),
        act=lambda: _withdraw_copy(conn_id, watch, request_id),
        otherwise=_copy_stays(watch, request_id),
    )


def withdraw_once_over(
    conn_id: str, pipeline: str, request: Mapping[str, str], instance: Any
) -> bool:
    """Withdraw a request that every attempt of its task waits for, once the task has ended.

    Blocking. Tries again while the state store is away.

    Args:
        conn_id: connection of the state store.
        pipeline: the pipeline's name.
        request: ``{"replay": ticket}``, or ``{"rewind": who requested it}``.
        instance: the task instance.
    """
    act = partial(_withdraw, conn_id, pipeline, request)
    otherwise = _stays(pipeline, request)
    return killed.once_over(instance, held=None, act=act, otherwise=otherwise)


def withdraw_from_worker(
    conn_id: str, pipeline: str, request: Mapping[str, str], instance: Any
) -> None:
    """Do what ``withdraw_once_over`` does, if a user ended the task whose process is being killed.

    Blocking, for a few seconds at most.
    """
    act = partial(_withdraw, conn_id, pipeline, request)
    killed.if_over_from_worker(instance, act, otherwise=_stays(pipeline, request))


def withdraw_copy_from_worker(
    conn_id: str, watch: TriggerArguments, request_id: str, instance: Any
) -> None:
    """Withdraw a copy if a user ended the task whose process is being killed, as above."""
    killed.if_over_from_worker(
        instance,
        lambda: _withdraw_copy(conn_id, watch, request_id),
        otherwise=_copy_stays(watch, request_id),
    )


def _withdraw(conn_id: str, pipeline: str, request: Mapping[str, str]) -> bool:
    with DeltaForgeHook(conn_id).store() as store:
        for kind, name in request.items():
            _WITHDRAWALS[kind](store, pipeline, name)
    return True


def _stays(pipeline: str, request: Mapping[str, str]) -> str:
    return f"the {' and '.join(request)} of {pipeline} is not withdrawn, and will be served"


def _copy_stays(watch: TriggerArguments, request_id: str) -> str:
    return f"request {request_id} of {watch.pipeline} is not withdrawn, and will be served"


def _holds(conn_id: str, watch: TriggerArguments, request_id: str) -> bool:
    with DeltaForgeHook(conn_id).store() as store:
        state = request_state(store, watch.pipeline, request_id)
    return state is not None and not state.settled and state.by == watch.owner


def _withdraw_copy(conn_id: str, watch: TriggerArguments, request_id: str) -> bool:
    with DeltaForgeHook(conn_id).store() as store:
        return cancel(store, watch.pipeline, request_id, REASON, by=watch.owner)
