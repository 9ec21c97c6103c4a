"""What tests ask of Airflow's public REST API."""

import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import httpx

_POLL_S = 1.0


class RestError(AssertionError):
    """Airflow refused, or did not come to what was waited for."""


class Rest:
    """A client of one Airflow.

    Args:
        url: of its API server.
        token: of a user; not needed where everybody is an administrator.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        # Two slow cores are shared by many: an answer may take its time.
        # An idle connection is left before the server does, which does so after five seconds.
        limits = httpx.Limits(keepalive_expiry=2)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(
            base_url=f"{url}/api/v2", timeout=60, limits=limits, headers=headers
        )

    def close(self) -> None:
        """Release the connections."""
        self._client.close()

    def get(self, path: str, **query: Any) -> Any:
        """Return the decoded answer to GET."""
        return self._ask("GET", path, params=query)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the decoded answer to POST."""
        return self._ask("POST", path, json=dict(body))

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the decoded answer to PATCH."""
        return self._ask("PATCH", path, json=dict(body))

    def wait_for_dag(self, dag_id: str, patience_s: float = 240) -> dict[str, Any]:
        """Wait until the DAG processor has read a DAG.

        Raises:
            RestError: it did not; the text holds Airflow's import errors.
        """
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return dict(self.get(f"/dags/{dag_id}"))
            except RestError:
                errors = self.get("/importErrors")["import_errors"]
                if errors or time.monotonic() > deadline:
                    traces = "\n".join(error["stack_trace"] for error in errors)
                    raise RestError(f"no DAG {dag_id}; import errors: {traces}") from None
            time.sleep(_POLL_S)

    def unpause(self, dag_id: str) -> None:
        """Let a DAG run."""
        self.patch(f"/dags/{dag_id}", {"is_paused": False})

    def pause(self, dag_id: str) -> None:
        """Let no new run of a DAG start."""
        self.patch(f"/dags/{dag_id}", {"is_paused": True})

    def parse_again(self, dag_id: str) -> None:
        """Have the DAG processor read a DAG's file once more."""
        token = self.get(f"/dags/{dag_id}/details")["file_token"]
        self._ask("PUT", f"/parseDagFile/{token}")

    def trigger(
        self, dag_id: str, conf: Mapping[str, Any] | None = None, run_id: str | None = None
    ) -> str:
        """Start a run; return its id."""
        body: dict[str, Any] = {"logical_date": None, "conf": dict(conf or {})}
        if run_id is not None:
            body["dag_run_id"] = run_id
        return str(self.post(f"/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Return the runs of a DAG, oldest first."""
        found = self.get(f"/dags/{dag_id}/dagRuns", limit=100, order_by="run_after")
        return list(found["dag_runs"])

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Return one run."""
        return dict(self.get(_run_path(dag_id, run_id)))

    def wait_run(
        self,
        dag_id: str,
        run_id: str,
        states: Collection[str] = ("success", "failed"),
        patience_s: float = 300,
    ) -> str:
        """Wait until a run is in one of these states; return it."""
        deadline = time.monotonic() + patience_s
        while (state := str(self.run(dag_id, run_id)["state"])) not in states:
            if time.monotonic() > deadline:
                tasks = self.get(f"{_run_path(dag_id, run_id)}/taskInstances")["task_instances"]
                told = {task["task_id"]: task["state"] for task in tasks}
                raise RestError(f"run {run_id} is {state}, not one of {states}; tasks: {told}")
            time.sleep(_POLL_S)
        return state

    def task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """Return a task instance."""
        return dict(self.get(_task_path(dag_id, run_id, task_id)))

    def wait_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        states: Collection[str],
        patience_s: float = 240,
    ) -> dict[str, Any]:
        """Wait until a task instance is in one of these states; return it."""
        deadline = time.monotonic() + patience_s
        while (task := self.task(dag_id, run_id, task_id))["state"] not in states:
            if time.monotonic() > deadline:
                raise RestError(
                    f"task {task_id} of {run_id} is {task['state']} after {patience_s:.0f} s, not "
                    f"one of {states}; its log:\n{self._log_or_reason(dag_id, run_id, task)}"
                )
            time.sleep(_POLL_S)
        return task

    def set_task_state(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Mark a task instance, as the buttons of the UI do."""
        self.patch(_task_path(dag_id, run_id, task_id), {"new_state": state})

    def clear(self, dag_id: str, run_id: str, task_ids: Sequence[str]) -> None:
        """Clear task instances of a run."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": list(task_ids),
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self.post(f"/dags/{dag_id}/clearTaskInstances", body)

    def backfill(
        self, dag_id: str, from_date: datetime | str, to_date: datetime | str, **options: Any
    ) -> int:
        """Create a backfill; return its id. Its runs stay queued while the DAG is paused."""
        body = {
            "dag_id": dag_id,
            "from_date": _moment(from_date),
            "to_date": _moment(to_date),
            **options,
        }
        return int(self.post("/backfills", body)["id"])

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """Return the value of an XCom."""
        path = f"{_task_path(dag_id, run_id, task_id)}/xcomEntries/{quote(key, safe='')}"
        return self.get(path, stringify=False)["value"]

    def links(self, dag_id: str, run_id: str, task_id: str) -> dict[str, str]:
        """Return the extra links of a task instance: label to address."""
        return dict(self.get(f"{_task_path(dag_id, run_id, task_id)}/links")["extra_links"])

    def log(self, dag_id: str, run_id: str, task_id: str, attempt: int | None = None) -> str:
        """Return the log of an attempt, the triggerer's part included, one event a line.

        By default of the last one: where a machine is busy, Airflow may try a task again.
        """
        if attempt is None:
            attempt = self.task(dag_id, run_id, task_id)["try_number"]
        path = f"{_task_path(dag_id, run_id, task_id)}/logs/{attempt}"
        content = self.get(path, full_content=True)["content"]
        return "\n".join(line if isinstance(line, str) else _told(line) for line in content)

    def variable(self, key: str) -> str:
        """Return the value of a Variable."""
        return str(self.get(f"/variables/{quote(key, safe='')}")["value"])

    def _log_or_reason(self, dag_id: str, run_id: str, task: Mapping[str, Any]) -> str:
        try:
            return self.log(dag_id, run_id, task["task_id"], task["try_number"])[-3000:]
        except RestError as error:
            return str(error)

    def _ask(self, method: str, path: str, **more: Any) -> Any:
        answer = self._client.request(method, path, **more)
        if answer.is_error:
            told = f"{method} {path}: {answer.status_code} {answer.text[:2000]}"
            raise RestError(told)
        return answer.json() if answer.content else None


def _told(line: Mapping[str, Any]) -> str:
    """Return a structured log line as text, its error included."""
    error = line.get("error_detail") or line.get("exception")
    return f"{line.get('event', '')} {error}" if error else str(line.get("event", ""))


def _moment(told: datetime | str) -> str:
    return told.isoformat() if isinstance(told, datetime) else told


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}"


def _task_path(dag_id: str, run_id: str, task_id: str) -> str:
    return f"{_run_path(dag_id, run_id)}/taskInstances/{task_id}"
