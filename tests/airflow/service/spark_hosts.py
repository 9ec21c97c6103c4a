"""A cluster of Spark for drivers: a master and two workers, users and directories of their own."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_deltaforge.control.launching.backends import LaunchBackends
from airflow_provider_deltaforge.control.launching.local import LocalBackend
from airflow_provider_deltaforge.control.launching.standalone import NAME, StandaloneBackend
from tests.servers import spark
from tests.servers.cluster_python import cluster_python
from tests.servers.process import HOST, Server, family, free_port

_MASTER, _WORKER = "daemon", "games"
"""Users that every Debian has. Drivers on either worker write the same file, which takes one."""


@dataclass(frozen=True)
class SparkHosts:
    """A running cluster, and how Airflow's connection describes it."""

    master: Server
    workers: tuple[Server, ...]
    extra: Mapping[str, Any]

    def backends(self, directory: Path) -> LaunchBackends:
        """Return where drivers are launched, as the connection says."""
        standalone = StandaloneBackend.from_extra(self.extra)
        return LaunchBackends(LocalBackend(directory / "jobs"), standalone, chosen=NAME)

    def worker_of(self, pid: int) -> Server:
        """Return the worker that runs a process."""
        return next(worker for worker in self.workers if pid in family(worker.pid))


@contextlib.contextmanager
def spark_hosts(directory: Path) -> Iterator[SparkHosts]:
    """Start a cluster below a directory; its Python is an environment of its own with the wheel."""
    (directory / "opt").mkdir(parents=True)
    for place in directory.parents:
        if place.is_relative_to(tempfile.gettempdir()) and not place.stat().st_mode & 0o001:
            place.chmod(place.stat().st_mode | 0o011)  # The users must come to their directories.
    python = cluster_python(directory / "opt")
    rest_port = free_port()
    with contextlib.ExitStack() as ending:
        master = spark.start_master(directory / "master", rest_port=rest_port, account=_MASTER)
        ending.callback(master.stop, 10)
        workers = []
        for name in ("one", "two"):
            place = directory / name
            environment = {"PYTHONPATH": "", "SPARK_LOCAL_DIRS": str(place / "local")}
            worker = spark.start_worker(
                place, master, cores=4, memory="4g", environment=environment, account=_WORKER
            )
            ending.callback(worker.stop, 10)
            workers.append(worker)
        extra = {
            "launch_backend": NAME,
            "spark_python": str(python),
            "spark_rest_url": f"http://{HOST}:{rest_port}",
            "spark_conf": {"spark.cores.max": "1", "spark.executor.memory": "512m"},
        }
        yield SparkHosts(master, tuple(workers), extra)
