"""What a killed task means for the copy it asked for: nobody wants it any more.

The stream that serves it is never stopped. As with streams (``triggers.killed``), the state of the
task instance tells *marked failed* from *cleared*, and the owner token guards an attempt that asked
again meanwhile.
"""

from typing import Any

from airflow_provider_deltaforge.control.snapshots import cancel, request_state
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.hooks.jobs import TriggerArguments
from airflow_provider_deltaforge.triggers import killed

REASON = "its task was ended by a user"


def withdraw_unless_adopted(
    conn_id: str, watch: TriggerArguments, request_id: str, instance: Any
) -> bool:
    """Withdraw a request when its task has ended, unless another attempt holds it; say if it did.

    Blocking. Tries again while the state store is away.
    """
    return killed.once_over(
        instance,
        held=lambda: _holds(conn_id, watch, request_id),
        act=lambda: _withdraw(conn_id, watch, request_id),
        otherwise=_stays(watch, request_id),
    )


def withdraw_from_worker(
    conn_id: str, watch: TriggerArguments, request_id: str, instance: Any
) -> None:
    """Withdraw the request of a task whose process is about to be killed, if a user ended it."""
    killed.if_over_from_worker(
        instance,
        lambda: _withdraw(conn_id, watch, request_id),
        otherwise=_stays(watch, request_id),
    )


def _stays(watch: TriggerArguments, request_id: str) -> str:
    return f"request {request_id} of {watch.pipeline} is not withdrawn, and will be served"


def _holds(conn_id: str, watch: TriggerArguments, request_id: str) -> bool:
    with DeltaForgeHook(conn_id).store() as store:
        state = request_state(store, watch.pipeline, request_id)
    return state is not None and not state.settled and state.by == watch.owner


def _withdraw(conn_id: str, watch: TriggerArguments, request_id: str) -> bool:
    with DeltaForgeHook(conn_id).store() as store:
        return cancel(store, watch.pipeline, request_id, REASON, by=watch.owner)
