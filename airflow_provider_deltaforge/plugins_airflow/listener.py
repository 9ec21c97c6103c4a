"""Notices failed tasks of this provider, so that no DAG has to name a callback.

Every component of Airflow imports this module, and every task calls it: it imports next to nothing.
"""

import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from airflow.listeners import hookimpl
from airflow.sdk.configuration import conf


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: Any) -> None:
    """Post a failure to ``[deltaforge] failure_webhook_conn_id``, if there is one.

    It is called for each attempt that failed: in the task's own process, or, when that was killed
    or a user marked the task, in the scheduler or the API server, which must not wait for it.
    """
    del previous_state
    conn_id = conf.get("deltaforge", "failure_webhook_conn_id", fallback="")
    task = getattr(task_instance, "task", None)
    if not conn_id or not hasattr(task, "deltaforge_conn_id"):
        return
    from airflow.sdk import BaseOperator

    if isinstance(task, BaseOperator):
        _post(conn_id, {"ti": task_instance, "task": task, "exception": error})
        return
    # Read here: the instance belongs to a session of the database, which this thread uses.
    names = ("dag_id", "task_id", "run_id", "try_number")
    instance = SimpleNamespace(**{name: getattr(task_instance, name, None) for name in names})
    context = {"ti": instance, "task": task, "exception": error}
    threading.Thread(target=_post, args=(conn_id, context), daemon=True, name="notify").start()


def _post(conn_id: str, context: Any) -> None:
    from airflow_provider_deltaforge.notifications.webhook import DeltaForgeNotifier

    with suppress(Exception):  # The notifier has logged it.
        DeltaForgeNotifier(conn_id)(context)
