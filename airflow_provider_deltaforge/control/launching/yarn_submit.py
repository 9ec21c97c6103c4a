"""``spark-submit`` of a driver to YARN: what it uploads, what its command line says, and never."""

import logging
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.launching.spark_submit import (
    script_path,
    spark_home,
    words_of,
)
from airflow_provider_deltaforge.engine.spark.container_secrets import TOKEN_FILE, token_file
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.location import (
    ENVIRONMENT,
    EXECUTOR_VARIABLES,
    JOB,
    StoreLocation,
)
from airflow_provider_deltaforge.telemetry.redaction import redacted

log = logging.getLogger(__name__)

_UNPACKED = "deltaforge"
_CONF_DIRS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_HANDED_ON = frozenset({"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH"})
"""Variables of the submitter that Spark would give to the driver: paths of another machine."""
_ERROR = re.compile(
    r"^(?:Exception in thread \S+ |Error: |.* ERROR \S+: )(?P<words>.*)", re.MULTILINE
)

_DEFAULTS = {
    # The page is off, as with every driver of ours, and no row ever crosses the JVM.
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.cores": "1",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",
    # Python works beside the heaps, and YARN ends a container that outgrows its memory.
    "spark.driver.memoryOverhead": "1g",
    "spark.executor.instances": "1",
    "spark.executor.cores": "2",
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": "1g",
    # A stream lasts for months: executors that were lost long ago must not end it.
    "spark.executor.failuresValidityInterval": "1h",
    "spark.dynamicAllocation.enabled": "false",
}
_OF_ARCHIVE = {
    # Its kernels were compiled elsewhere, so for any processor of the architecture.
    "spark.yarn.appMasterEnv.NUMBA_CPU_NAME": "generic",
    "spark.executorEnv.NUMBA_CPU_NAME": "generic",
}
SET_BY_US = frozenset(
    {
        "spark.archives",
        "spark.pyspark.driver.python",
        "spark.pyspark.python",
        "spark.yarn.dist.archives",
        "spark.yarn.maxAppAttempts",
        "spark.yarn.submit.waitAppCompletion",
        "spark.yarn.tags",
    }
)
"""Spark settings that a connection may not hold, because this module makes them."""


@dataclass(frozen=True, slots=True)
class Submission:
    """How drivers are submitted to a cluster.

    Attributes:
        python: interpreter on the nodes, if the environment is there.
        archive: address of the environment, if it travels.
        user: on whose behalf; None: this process's.
        conf_dir: directory with the cluster's addresses; None: what the environment says.
        conf: further Spark settings.
    """

    python: str | None
    archive: str | None
    user: str | None
    conf_dir: str | None
    conf: Mapping[str, str]

    def check(self) -> None:
        """Refuse a machine that cannot submit.

        Raises:
            SpecError: Spark, its YARN client or the cluster's addresses are missing.
        """
        home = spark_home()
        if home is None or not any(home.glob("jars/spark-yarn_*.jar")):
            raise SpecError(
                "the launch backend `yarn` submits with a Spark that has the YARN client "
                f"(jars/spark-yarn_*.jar), which {home or 'this machine'} has not: install "
                "airflow-provider-deltaforge[spark] on the worker, or set SPARK_HOME"
            )
        directory = self.conf_dir or next(filter(None, map(os.environ.get, _CONF_DIRS)), None)
        if directory is None or not (Path(directory) / "yarn-site.xml").is_file():
            where = f"{directory} has none" if directory else "neither is set"
            raise SpecError(
                "the launch backend `yarn` needs the cluster's yarn-site.xml on the worker: name "
                "its directory in HADOOP_CONF_DIR, or in the extra `hadoop_conf_dir` of the "
                f"connection; {where}"
            )
        if os.environ.get(TOKEN_FILE):
            raise SpecError(
                f"the launch backend `yarn` hands its variables over in {TOKEN_FILE}, which is set "
                "already: unset it for the worker, and name its file in hadoop.token.files of "
                "core-site.xml"
            )

    def command(self, job: LaunchSpec, tag: str) -> list[str]:
        """Return the command line that submits ``job``; it never holds a secret."""
        python = self.python or f"./{_UNPACKED}/bin/python"
        conf = {
            **_DEFAULTS,
            **(_OF_ARCHIVE if self.archive else {}),
            **self.conf,
            "spark.pyspark.python": python,
            "spark.pyspark.driver.python": python,
            "spark.yarn.tags": f"{_UNPACKED},{tag}",
            # One restarter only: control/supervise.py.
            "spark.yarn.maxAppAttempts": "1",
            "spark.yarn.submit.waitAppCompletion": "false",
        }
        if self.archive:
            conf["spark.yarn.dist.archives"] = f"{self.archive}#{_UNPACKED}"
        return [
            str((spark_home() or Path()) / "bin" / "spark-submit"),
            *("--master", job.master, "--deploy-mode", "cluster", "--name", job.name),
            *words_of(conf),
            str(script_path(job.script)),
            *("--pipeline", job.pipeline, "--generation", str(job.generation)),
            *job.arguments,
        ]

    def run(self, job: LaunchSpec, tag: str, wait_s: float) -> str:
        """Submit; return in words what ``spark-submit`` says, if it failed or took too long."""
        command = self.command(job, tag)
        with _in_memory(token_file(_variables(job))) as (descriptor, path):
            process = subprocess.Popen(  # noqa: S603 - words of ours, no shell
                command,
                env=self._environment(path),
                pass_fds=(descriptor,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                output, _ = process.communicate(timeout=wait_s)
            except subprocess.TimeoutExpired:
                return f"spark-submit did not end within {wait_s:.0f} s"
            finally:
                process.kill()
                process.wait()
        printed = redacted(output.decode(errors="replace"))
        if process.returncode:
            log.warning(
                "spark-submit of %s ended with %s:\n%s", job.name, process.returncode, printed
            )
        return f"spark-submit ended with {process.returncode}: {_reason(printed)}"

    def _environment(self, tokens: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in _HANDED_ON}
        directory = {"HADOOP_CONF_DIR": self.conf_dir} if self.conf_dir else {}
        user = {"HADOOP_USER_NAME": self.user} if self.user else {}
        return {**kept, "SPARK_HOME": str(spark_home()), **directory, **user, TOKEN_FILE: tokens}


def _variables(job: LaunchSpec) -> dict[str, str]:
    """Return what the driver finds in its environment; the executors get all but its name."""
    shared = {**job.environment, ENVIRONMENT: StoreLocation.from_dsn(job.store).to_dsn()}
    return {**shared, EXECUTOR_VARIABLES: ",".join(sorted(shared)), JOB: job.name}


@contextmanager
def _in_memory(content: bytes) -> Iterator[tuple[int, str]]:
    """Yield a file that is on no disk: its descriptor, and its path in a process that inherits it.

    Raises:
        SpecError: this system has no such files.
    """
    if not hasattr(os, "memfd_create"):
        raise SpecError("the launch backend `yarn` submits from Linux only")
    descriptor = os.memfd_create("deltaforge")
    try:
        os.write(descriptor, content)
        yield descriptor, f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _reason(output: str) -> str:
    """Return the line in which Spark or YARN says why."""
    found = [match["words"].strip() for match in _ERROR.finditer(output)]
    lines = output.strip().splitlines()
    return (found[-1] if found else lines[-1] if lines else "it printed nothing")[:300]
