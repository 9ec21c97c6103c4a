"""An executor of Airflow that gives every attempt of a task a host of its own, as a pod is one.

What Airflow's KubernetesExecutor puts into a pod, this one puts into namespaces: its own process
ids, host name and home. When the attempt ends, or its task defers, the kernel kills what is left
there, and its home is removed.
"""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow.configuration import conf
from airflow.executors.base_executor import BaseExecutor

from tests.airflow.service.stage import HISTORY

_UNSHARE = ("unshare", "--pid", "--mount", "--uts", "--fork", "--kill-child", "--mount-proc")
_BEGIN = 'hostname "$0" && exec "$@"'
# Not by the scheduler, which may be dead by then.
_REMOVED = f"""
"$@"
code=$?
echo "${{HOME##*/}} $code" >> "${{HOME%/*}}/{HISTORY}"
rm -rf "$HOME"
exit $code
"""
_EXECUTE = ("-m", "airflow.sdk.execution_time.execute_workload", "--json-string")


class PodExecutor(BaseExecutor):
    """Runs each attempt in a pod of its own."""

    def start(self) -> None:
        """Begin without pods."""
        self._directory = Path(os.environ["DELTAFORGE_TEST_PODS"])
        self._pods: dict[Any, subprocess.Popen[bytes]] = {}

    def _process_workloads(self, workload_items: Sequence[Any]) -> None:
        for workload in workload_items:
            self.queued_tasks.pop(workload.key)
            self.running.add(workload.key)
            if workload.key in self._pods:  # It deferred, and goes on before we have looked.
                self._pods.pop(workload.key).wait()
            home = self._directory / f"pod-{secrets.token_hex(4)}"
            self._pods[workload.key] = _pod(home, workload)

    def sync(self) -> None:
        """Report pods that have ended."""
        for key in [key for key, pod in self._pods.items() if pod.poll() is not None]:
            (self.fail if self._pods.pop(key).returncode else self.success)(key)

    def end(self) -> None:
        """End every pod."""
        self.terminate()

    def terminate(self) -> None:
        """End every pod."""
        while self._pods:
            pod = self._pods.popitem()[1]
            os.killpg(pod.pid, signal.SIGKILL)
            pod.wait()


def _pod(home: Path, workload: Any) -> "subprocess.Popen[bytes]":
    """Start an attempt; its process ends when nothing of it is left, with its exit code."""
    home.mkdir(parents=True)
    environment = {
        **os.environ,
        "HOME": str(home),
        "TMPDIR": str(home),
        "AIRFLOW_HOME": str(home / "airflow"),
        # Logs outlive pods, on a volume of their own.
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": conf.get("logging", "base_log_folder"),
        "AIRFLOW__CORE__HOSTNAME_CALLABLE": "socket.gethostname",
        "AIRFLOW_IS_K8S_EXECUTOR_POD": "True",
    }
    words = [sys.executable, *_EXECUTE, workload.model_dump_json()]
    with (home / "output").open("wb") as output:
        return subprocess.Popen(
            ["sh", "-c", _REMOVED, "sh", *_UNSHARE, "sh", "-c", _BEGIN, home.name, *words],
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # It outlives the scheduler.
        )
