"""One run of the example DAG in a real Airflow, over its REST API."""

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from tests.servers import airflow
from tests.servers.airflow import Airflow
from tests.servers.airflow_rest import RestError

DAG_ID = "orders_pipeline"
TASKS = ("preflight", "snapshot", "stream")
_DAG_FILE = Path(__file__).parents[2] / "dags" / f"{DAG_ID}.py"
_LOOK_S = 0.5
_LOG_LINES = 40


class DagError(RuntimeError):
    """The DAG did not succeed; the text holds the end of the log that says why."""


def start_airflow(place: Path, store: Path, variables: Mapping[str, str]) -> Airflow:
    """Start an Airflow that knows the state store and the example DAG, and nothing else."""
    dags = place / "dags"
    dags.mkdir()
    shutil.copy(_DAG_FILE, dags)
    scratch = place / "tmp"
    scratch.mkdir()
    connection = {"conn_type": "deltaforge", "extra": {"path": str(store)}}
    env = {
        "AIRFLOW_CONN_DELTAFORGE_DEFAULT": json.dumps(connection),
        # Whatever a killed Spark leaves there goes with the demo.
        "TMPDIR": str(scratch),
        "SPARK_LOCAL_DIRS": str(scratch),
        **variables,
    }
    return airflow.start(place, dags=dags, env=env, parallelism=2)


def end_airflow(service: Airflow) -> None:
    """End every process of Airflow at once: nobody needs it again, and asked it takes its time."""
    for name in airflow.COMPONENTS:
        with contextlib.suppress(KeyError):  # That one has been ended before.
            service.kill(name)
    service.stop()


class DagRun:
    """The first run that the DAG's schedule makes."""

    def __init__(self, service: Airflow) -> None:
        self._service, self._rest = service, service.rest
        self._id = ""
        self.page = _page(service)
        self.state = ""
        self.tasks: dict[str, str] = dict.fromkeys(TASKS, "")

    @property
    def url(self) -> str:
        """Return where the UI shows the run."""
        return f"{self._service.url}/dags/{DAG_ID}/runs/{quote(self._id, safe='')}"

    @property
    def _api_path(self) -> str:
        return f"/dags/{DAG_ID}/dagRuns/{quote(self._id, safe='')}"

    def begin(self, patience_s: float = 300) -> None:
        """Let the DAG work: its schedule begins a run at once, and the next when that is over.

        Raises:
            DagError: no run came in time.
        """
        self._rest.wait_for_dag(DAG_ID, patience_s)
        self._rest.unpause(DAG_ID)
        deadline = time.monotonic() + patience_s
        while not (runs := self._rest.runs(DAG_ID)):
            if time.monotonic() > deadline:
                raise DagError(f"the scheduler made no run within {patience_s:.0f} s")
            time.sleep(_LOOK_S)
        self._id = runs[0]["dag_run_id"]

    def follow(self, enough: Callable[[], bool], patience_s: float = 600) -> None:
        """Look at the run until it has ended or ``enough`` says so.

        Raises:
            DagError: a task failed, or nothing of this came in time.
        """
        deadline = time.monotonic() + patience_s
        while not enough():
            self._look()
            if self.state == "success":
                return
            if self.state == "failed":
                raise DagError(self._why())
            if time.monotonic() > deadline:
                raise DagError(f"the run is not over after {patience_s:.0f} s: {self.tasks}")
            time.sleep(_LOOK_S)

    def pause(self) -> None:
        """Keep the schedule from starting a next run."""
        self._rest.pause(DAG_ID)

    def _look(self) -> None:
        path = self._api_path
        try:
            found = self._rest.get(f"{path}/taskInstances")["task_instances"]
            self.state = str(self._rest.get(path)["state"])
        except (RestError, httpx.HTTPError):
            return  # It may be busy; the deadline bounds our patience.
        for task in found:
            # The example may hold its tasks in a group.
            self.tasks[task["task_id"].rpartition(".")[2]] = task["state"] or ""

    def _why(self) -> str:
        path = f"{self._api_path}/taskInstances"
        failed = [
            task
            for task in self._rest.get(path)["task_instances"]
            if task["state"] in {"failed", "skipped"}
        ]
        texts = [self._log_end(task["task_id"], task["try_number"]) for task in failed]
        return "\n".join(texts) or "the run failed, but no task of it; read the scheduler's log"

    def _log_end(self, name: str, attempt: int) -> str:
        path = f"{self._api_path}/taskInstances/{name}/logs/{attempt}"
        content = self._rest.get(path, full_content=True)["content"]
        lines = [text for event in content if (text := _told(event))]
        return "\n".join([f"task {name} failed; the end of its log:", *lines[-_LOG_LINES:]])


def _told(event: Mapping[str, Any]) -> str:
    """Return a log event as people read it: its text, and what was raised without the frames."""
    text = str(event.get("event", ""))
    if text.startswith("::") or "sources" in event:
        return ""
    raised = [f"  {e['exc_type']}: {e['exc_value']}" for e in event.get("error_detail") or ()]
    return "\n".join([text, *raised])


def _page(service: Airflow) -> str | None:
    """Return the address of DeltaForge's own page, if this Airflow has loaded it."""
    plugins = [plugin["name"] for plugin in service.rest.get("/plugins")["plugins"]]
    return f"{service.url}/plugin/deltaforge?pipeline=shop" if "deltaforge" in plugins else None
