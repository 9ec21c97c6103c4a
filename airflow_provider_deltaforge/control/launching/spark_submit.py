"""The ``spark-submit`` command line of a driver."""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import airflow_provider_deltaforge
from airflow_provider_deltaforge.control.launching import class_archive
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.location import ENVIRONMENT, JOB, StoreLocation

_PACKAGE = Path(airflow_provider_deltaforge.__file__).parent
_LOOPBACK = "127.0.0.1"
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -Xms48m"
"""No row crosses the JVM, so it is never hot: without the optimising compiler it starts in about
half the CPU time, and with a small heap. What the user's own options say comes later on the command
line, and wins; so no collector is chosen here: the JVM does not start with two."""


_MASTER = re.compile(
    r"local(\[(\*|[1-9][0-9]{0,3})(,[1-9][0-9]{0,3})?\])?"
    r"|spark://[^\s:/,@]+:[0-9]{1,5}(,[^\s:/,@]+:[0-9]{1,5})*"
)
_CLUSTERS = (("k8s://", "Kubernetes", "kubernetes"), ("yarn", "YARN", "yarn"))
_WORKS = "write local[*], local[4] or spark://host:7077, a standalone cluster (docs/airflow.md)"


def check_master(master: str, store: str) -> None:
    """Refuse a Spark master that drivers cannot run on, before a JVM is started.

    Args:
        master: its URL.
        store: the DSN of the state store, which its executors must reach.

    Raises:
        SpecError: it is refused; the text says what works.
    """
    if not _MASTER.fullmatch(master):
        for prefix, cluster, backend in _CLUSTERS:
            if master.startswith(prefix):
                raise SpecError(
                    f"the Spark master {master!r} is refused: this launch backend does not launch "
                    f"drivers on {cluster}, `{backend}` does; set the extra launch_backend of "
                    f"Airflow's connection (docs/airflow.md, 'On {cluster}'), or {_WORKS}"
                )
        if master.startswith("mesos://"):
            raise SpecError(
                f"the Spark master {master!r} is refused: this release does not launch drivers on "
                f"Mesos; {_WORKS}"
            )
        raise SpecError(f"the Spark master {master!r} is not one that drivers run on: {_WORKS}")
    StoreLocation.from_dsn(store).require_reachable(master)


def script_path(script: str) -> Path:
    """Return where ``stream_job.py`` or ``snapshot_job.py`` lies, in a wheel or in a checkout.

    Raises:
        SpecError: neither place has it.
    """
    shipped = _PACKAGE / "engine" / "spark" / "jobs" / script
    checkout = _PACKAGE.parent / "spark_jobs" / script
    for path in (shipped, checkout):
        if path.is_file():
            return path
    raise SpecError(f"{script} is not installed; looked in {shipped.parent} and {checkout.parent}")


def spark_home() -> Path | None:
    """Return the Spark that this Python's ``pyspark`` belongs to, else ``SPARK_HOME``."""
    found = find_spec("pyspark")
    if found is not None and found.submodule_search_locations:
        home = Path(next(iter(found.submodule_search_locations)))
        if (home / "bin" / "spark-submit").is_file():
            return home
    configured = os.environ.get("SPARK_HOME")
    return Path(configured) if configured else None


def command(job: LaunchSpec) -> list[str]:
    """Return the command line that runs ``job``; it never holds a secret.

    Raises:
        SpecError: no ``spark-submit`` was found.
    """
    home = spark_home()
    submit = str(home / "bin" / "spark-submit") if home else shutil.which("spark-submit")
    if submit is None:
        raise SpecError(
            "spark-submit was not found; install airflow-provider-deltaforge[spark] or set "
            "SPARK_HOME"
        )
    return [
        submit,
        *("--master", job.master, "--name", job.name),
        *words_of(configuration(job.master)),
        str(script_path(job.script)),
        *("--pipeline", job.pipeline, "--generation", str(job.generation)),
        *job.arguments,
    ]


def environment(job: LaunchSpec) -> dict[str, str]:
    """Return the driver's environment: ours, the job's, and the way to the state store.

    A driver has a working directory of its own, so the path of a SQLite store becomes absolute.
    """
    home = spark_home()
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "JDK_JAVA_OPTIONS": java_options(),
        **({"SPARK_HOME": str(home)} if home else {}),
        **job.environment,
        JOB: job.name,
        ENVIRONMENT: StoreLocation.from_dsn(job.store).to_dsn(),
    }


def configuration(master: str) -> Mapping[str, str]:
    """Return the settings of Spark for drivers at a master.

    They close what Spark opens to every interface by default, and keep the heap small.
    The page is off, a local driver stays on loopback, and no row ever crosses the JVM.
    """
    settings: Mapping[str, str] = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
    }
    if master.startswith("local"):
        settings = {
            **settings,
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
        }
    return settings


def java_options() -> str:
    """Return the value of ``JDK_JAVA_OPTIONS`` for Spark's JVM: ours, then the user's own."""
    archive = class_archive.options(spark_home())
    return " ".join([JAVA_OPTIONS, *archive, os.environ.get("JDK_JAVA_OPTIONS", "")]).strip()


def words_of(settings: Mapping[str, str]) -> list[str]:
    """Return Spark settings as words of a command line."""
    return [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
