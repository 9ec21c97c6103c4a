"""DAGs with one stream task each. A test can hold the task at a chosen place, and kill it there."""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_provider_deltaforge.control.launching.backends import LaunchBackends
from airflow_provider_deltaforge.control.launching.contract import Handle, LaunchSpec
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator
from tests.airflow.service.drivers import compose

_HOLDS = Path(os.environ["DELTAFORGE_TEST_HOLDS"])
_MASTER = os.environ.get("DELTAFORGE_TEST_MASTER", "local[1]")
_submit = LaunchBackends.submit


def hold(pipeline: str, place: str) -> None:
    """Wait here while a test asks for it; the first process that comes is held, others pass."""
    asked = _HOLDS / f"{pipeline}.{place}.asked"
    held = asked.with_suffix(".held")
    try:
        asked.rename(held)
    except FileNotFoundError:
        return
    namespace = Path("/proc/self/ns/pid").readlink()
    held.write_text(f"{namespace} {os.getpid()}")
    deadline = time.monotonic() + 300
    while held.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def _held_submit(self: LaunchBackends, job: LaunchSpec) -> Handle:
    hold(job.pipeline, "before_submit")
    handle = _submit(replace(self, local=replace(self.local, compose=compose)), job)
    hold(job.pipeline, "after_submit")
    return handle


LaunchBackends.submit = _held_submit  # type: ignore[method-assign]


class HeldStream(DeltaForgeStreamOperator):
    """Our stream operator; a test can hold it before it defers and after it was resumed."""

    def hand_over(self, context: Mapping[str, Any], trigger: Any) -> Any:
        hold(trigger.watch["pipeline"], "before_defer")
        return super().hand_over(context, trigger)

    def execute_complete(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> Any:
        hold(event["pipeline"], "complete")
        return super().execute_complete(context, event)


_KINDS: Mapping[str, Mapping[str, Any]] = {
    "stream_stop": {},
    "stream_leave": {"on_kill": "leave"},
    "stream_budget": {"restarts_max": 1},
    "stream_other": {},
    "stream_local": {"launch_backend": "local"},
    # Long enough that the scheduler has heard of the deferral when the trigger fires: 3.3 fails a
    # task that runs again before (apache/airflow #71580).
    "stream_window": {"window": timedelta(seconds=20)},
}

for _name, _options in _KINDS.items():
    with DAG(_name, schedule=None) as _dag:
        HeldStream(
            task_id="stream",
            document="{{ dag_run.conf['document'] }}",
            master=_MASTER,
            poll_interval=timedelta(seconds=1),
            retries=2,
            retry_delay=timedelta(seconds=1),
            **{"window": None, **_options},
        )
    globals()[_name] = _dag
