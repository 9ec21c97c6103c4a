"""Notices failed tasks of this provider, so that no DAG has to name a callback.

Every component of Airflow imports this module, and every task calls it: it imports next to nothing.
"""

from contextlib import suppress
from typing import Any

from airflow.listeners import hookimpl
from airflow.sdk.configuration import conf


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: Any) -> None:
    """Post a failure to ``[deltaforge] failure_webhook_conn_id``, if there is one.

    It is called in the task's own process, for each attempt that failed.
    """
    del previous_state
    conn_id = conf.get("deltaforge", "failure_webhook_conn_id", fallback="")
    task = getattr(task_instance, "task", None)
    if not conn_id or not hasattr(task, "deltaforge_conn_id"):
        return
    from airflow_provider_deltaforge.notifications.webhook import DeltaForgeNotifier

    with suppress(Exception):  # The notifier has logged it.
        DeltaForgeNotifier(conn_id)({"ti": task_instance, "task": task, "exception": error})
