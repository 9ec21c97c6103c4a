import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

NO_NETWORK = """
import socket, sys, runpy
def refuse(*arguments, **named):
    raise AssertionError(f"a DAG file opened a connection: {arguments}")
import airflow.sdk  # noqa: F401 - Airflow's own start is not the DAG's
socket.socket.connect = refuse
socket.create_connection = refuse
from airflow.sdk import BaseHook, Variable
BaseHook.get_connection = classmethod(refuse)
Variable.get = refuse
found = runpy.run_path(sys.argv[1])["dag"]
print(*sorted(task.task_id for task in found.tasks))
first, then = found.get_task("snapshot"), found.get_task("stream")
print(*sorted(first.upstream_task_ids | then.upstream_task_ids))
"""


def test_the_example_dag_parses_without_a_connection_or_a_network(tmp_path):
    outcome = subprocess.run(
        [sys.executable, "-c", NO_NETWORK, str(ROOT / "dags" / "orders_pipeline.py")],
        env={"PATH": "/usr/bin:/bin", "AIRFLOW_HOME": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.splitlines()[-2:] == ["preflight snapshot stream", "preflight snapshot"]
