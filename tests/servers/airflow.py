"""Airflow as a service: scheduler, DAG processor, triggerer and API server, four processes.

Everything listens on loopback and everybody is an administrator. A component and its children,
running tasks included, are one session, so ``kill`` ends a component as the death of its container
would. Drivers of pipelines lead sessions of their own and are untouched: whoever starts a pipeline
stops it.
"""

import base64
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tests.servers.airflow_rest import Rest, RestError
from tests.servers.keeper import Keeper, kill_session, members
from tests.servers.process import HOST, Server, ServerError, free_port, python_path
from tests.servers.undisturbed import undisturbed

# Log servers would listen on every interface; here everybody reads the files themselves.
COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
_HEALTH_NAMES = {
    "scheduler": "scheduler",
    "dag-processor": "dag_processor",
    "triggerer": "triggerer",
}
METADATA = "DELTAFORGE_TEST_METADATA"
"""Names the DSN of Airflow's own database in the environment of its components."""

_START_PATIENCE_S = 300.0
_STOP_PATIENCE_S = 5.0


@dataclass
class Airflow:
    """A running Airflow; ``rest`` speaks its public API."""

    home: Path
    url: str
    environment: Mapping[str, str]
    rest: Rest
    _processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    _keeper: Keeper | None = None

    def pid(self, name: str) -> int:
        """Return the process id of a component's first process."""
        if name not in self._processes:
            raise ServerError(f"{name} is not running; of {', '.join(COMPONENTS)}")
        return self._processes[name].pid

    def processes(self) -> list[int]:
        """Return every living process of every component."""
        return members({process.pid for process in self._processes.values()})

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a component: SIGKILL takes its whole session, another signal is a polite request."""
        process = self._processes[name]
        if number != signal.SIGKILL:
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_START_PATIENCE_S)
        self._end(process)
        del self._processes[name]

    def start_again(self, name: str) -> None:
        """Start a component that was killed, and return when it is healthy."""
        if name in self._processes:
            raise ServerError(f"{name} is still running; kill() it first")
        self._launch(name)
        self._wait_healthy([name])

    def stop(self) -> None:
        """Ask every component to end, and kill what does not; no process stays."""
        # An open connection would keep the API server waiting.
        self.rest.close()
        ordered = sorted(self._processes, key=lambda name: name == "api-server")
        for name in ordered:
            self._processes[name].send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_PATIENCE_S
        for name in ordered:
            process = self._processes.pop(name)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            self._end(process)
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def log_tail(self, name: str, line_count: int = 30) -> str:
        """Return the last lines of a component's own log."""
        text = (self.home / f"{name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-line_count:])

    def start(self) -> None:
        """Create the database and start every component."""
        migrated = subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"],
            env=dict(self.environment),
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        (self.home / "migrate.log").write_text(migrated.stdout)
        if migrated.returncode:
            raise ServerError(f"airflow db migrate failed:\n{migrated.stdout[-3000:]}")
        self._keeper = Keeper()
        for name in COMPONENTS:
            self._launch(name)
        self._wait_healthy(list(COMPONENTS))

    def _launch(self, name: str) -> None:
        with undisturbed(), (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "airflow", *COMPONENTS[name]],
                cwd=self.home,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._processes[name] = process
            if self._keeper is not None:
                self._keeper.add(process.pid)

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        kill_session(process.pid)
        process.wait()
        if self._keeper is not None:
            self._keeper.forget(process.pid)

    def _wait_healthy(self, names: list[str]) -> None:
        began = datetime.now(timezone.utc) - timedelta(seconds=1)
        deadline = time.monotonic() + _START_PATIENCE_S
        while sick := [name for name in names if not self._is_healthy(name, began)]:
            ended = [name for name in names if self._processes[name].poll() is not None]
            if ended or time.monotonic() > deadline:
                what = "ended at once" if ended else f"not healthy in {_START_PATIENCE_S:.0f} s"
                name = (ended or sick)[0]
                told = f"{name} {what}; the end of {self.home / name}.log:\n{self.log_tail(name)}"
                raise ServerError(told)
            time.sleep(0.2)

    def _is_healthy(self, name: str, since: datetime) -> bool:
        """Say whether a component has beaten its heart since then: an old beat looks healthy."""
        try:
            health = self.rest.get("/monitor/health")
        except (httpx.HTTPError, RestError):
            return False
        if name == "api-server":
            return health["metadatabase"]["status"] == "healthy"
        told = health[_HEALTH_NAMES[name]]
        beat = told[f"latest_{_HEALTH_NAMES[name]}_heartbeat"]
        return told["status"] == "healthy" and datetime.fromisoformat(beat) >= since


def start(
    directory: Path,
    *,
    dags: Path,
    env: Mapping[str, str] | None = None,
    parallelism: int = 4,
    metadata: Server | None = None,
) -> Airflow:
    """Start Airflow in a home of its own below ``directory``.

    Args:
        directory: an own directory; the home is ``directory/airflow``.
        dags: the DAGs folder.
        env: more environment of every component, such as ``AIRFLOW_CONN_…``.
        parallelism: task slots; each is a process that lives from the start on.
        metadata: a PostgreSQL server for Airflow's own database. Without one it is a SQLite file,
            which several busy components lock against each other.

    Raises:
        ServerError: a component ended or was not healthy in time; the text holds its log's end.
    """
    home = directory / "airflow"
    home.mkdir(parents=True, exist_ok=True)
    port = free_port()
    url = f"http://{HOST}:{port}"
    database = _database(metadata) if metadata is not None else {}
    settings = {**_settings(home, dags, port, parallelism), **database, **(env or {})}
    # Nothing of another Airflow that this process may be configured for.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")}
    airflow = Airflow(home, url, {**inherited, **settings}, Rest(url))
    try:
        airflow.start()
    except BaseException:
        airflow.stop()
        raise
    return airflow


def _database(server: Server) -> dict[str, str]:
    """Create a database, and return the settings that make it Airflow's."""
    name = f"airflow_{secrets.token_hex(4)}"
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    place = server.dsn(name).partition("://")[2]
    return {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg://{place}",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": f"postgresql+psycopg_async://{place}",
        METADATA: server.dsn(name),
    }


def _settings(home: Path, dags: Path, port: int, parallelism: int) -> dict[str, str]:
    url = f"http://{HOST}:{port}"
    told: dict[str, Any] = {
        "core": {
            "load_examples": False,
            "dags_folder": dags,
            "parallelism": parallelism,
            "execution_api_server_url": f"{url}/execution/",
            "simple_auth_manager_all_admins": True,
            "test_connection": "Enabled",
            "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        },
        "api": {"host": HOST, "port": port, "base_url": url, "workers": 1},
        "api_auth": {"jwt_secret": secrets.token_hex(64)},
        "dag_processor": {
            "refresh_interval": 2,
            "bundle_refresh_check_interval": 1,
            "parsing_processes": 1,
            # No test changes a DAG file, and each pass over the examples costs seconds of CPU.
            "min_file_process_interval": 600,
        },
        # What is dead is noticed within seconds, so that a test can wait for it.
        "scheduler": {
            "scheduler_health_check_threshold": 15,
            "orphaned_tasks_check_interval": 15,
            "task_instance_heartbeat_timeout": 60,
        },
        "triggerer": {"job_heartbeat_sec": 2, "triggerer_health_check_threshold": 10},
        # A task on a busy machine waits for the API server rather than failing.
        "workers": {"socket_cleanup_timeout": 5, "execution_api_timeout": 60},
        "usage_data_collection": {"enabled": False},
    }
    options = {
        f"AIRFLOW__{section}__{option}".upper(): str(value)
        for section, found in told.items()
        for option, value in found.items()
    }
    return {
        "AIRFLOW_HOME": str(home),
        "SCARF_ANALYTICS": "false",
        "PYTHONPATH": python_path(),
        "DELTAFORGE_TEST_SELDOM_COLLECT": "1",
        **options,
    }
