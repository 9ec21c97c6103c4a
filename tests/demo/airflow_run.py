"""Airflow in a home of its own, for one test run of one DAG."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

DAGS = Path(__file__).parents[2] / "dags"


class DagError(RuntimeError):
    """The DAG did not succeed; the text holds the end of its log."""


def environment(home: Path, store: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an Airflow that knows the state store and our DAGs."""
    connection = {"conn_type": "deltaforge", "extra": {"path": str(store)}}
    return {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
        "AIRFLOW_CONN_DELTAFORGE_DEFAULT": json.dumps(connection),
        **variables,
    }


def prepare(env: Mapping[str, str]) -> None:
    """Create Airflow's own database."""
    _run(["db", "migrate"], env, Path(env["AIRFLOW_HOME"]) / "migrate.log")


def run_dag(dag_id: str, env: Mapping[str, str]) -> Path:
    """Run a DAG once, as ``airflow dags test`` does; return its log.

    Raises:
        DagError: a task failed.
    """
    log = Path(env["AIRFLOW_HOME"]) / "dag.log"
    _run(["dags", "test", dag_id], env, log)
    return log


def _run(words: list[str], env: Mapping[str, str], log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow", *words],
            env=dict(env),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait()
        except BaseException:
            _end(process)
            raise
    text = log.read_text(errors="replace")
    # `dags test` exits with 0 in some versions although a task failed.
    if code != 0 or "state=failed" in text or "Dag run in failure state" in text:
        tail = "\n".join(text.splitlines()[-40:])
        raise DagError(f"airflow {' '.join(words)} ended with {code}; {log}:\n{tail}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End Airflow and the tasks of its session; a deferred task does not heed SIGTERM."""
    for number, patience_s in ((signal.SIGTERM, 3), (signal.SIGKILL, 10)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
            return
