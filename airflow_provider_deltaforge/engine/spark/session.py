"""Spark sessions for drivers, with the settings the engine relies on."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from airflow_provider_deltaforge.engine.base.process_memory import without_pandas
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.storage.location import EXECUTOR_VARIABLES
from airflow_provider_deltaforge.telemetry.redaction import redacted

SETTINGS = {
    # A lane's task must not be repeated behind the driver's back: the driver starts another
    # query, under a new epoch.
    "spark.task.maxFailures": "1",
    "spark.speculation": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.session.timeZone": "UTC",
    # The page shows settings and plans to whoever can reach the port.
    "spark.ui.enabled": os.environ.get("DELTAFORGE_SPARK_UI", "false"),
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.killWorkerOnFlushFailure": "true",
}


def session(app_name: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return the application's session; ``spark-submit`` or ``settings`` decide where it runs."""
    with without_pandas(), suppress(ImportError):
        # With its first call into the JVM, PySpark imports its tools for tests, which load pandas.
        import_module("pyspark.testing.utils")
    builder = SparkSession.builder.appName(app_name)
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(os.environ.get("DELTAFORGE_SPARK_LOG", "WARN"))
    return spark


def share_variables(spark: SparkSession, more: Iterable[str] = ()) -> None:
    """Hand the variables that the driver was started with to the Python workers of executors.

    They travel with the tasks, between Spark's own processes: not in its settings, plans, event log
    or pages. ``DELTAFORGE_EXECUTOR_VARIABLES`` names them; without it executors have what their
    Spark worker has.

    Args:
        spark: the application.
        more: names of others.
    """
    for name in (*os.environ.get(EXECUTOR_VARIABLES, "").split(","), *more):
        if name in os.environ:
            spark.sparkContext.environment[name] = os.environ[name]


@contextmanager
def jvm_may_die() -> Iterator[None]:
    """Raise the end of Spark's JVM as a retryable error: a restart cures it.

    It may have been killed, by hand, by a host that runs out of memory or that goes down. Its
    Python then meets refused, reset or half-read connections, wherever it was.

    Raises:
        RetryableError: the JVM does not answer any more.
    """
    try:
        yield
    except (Py4JError, ConnectionError, EOFError) as error:
        text = redacted(str(error).strip().partition("\n")[0])[:300]
        raise RetryableError(
            "Spark's JVM does not answer; it was killed, or ran out of memory "
            f"({text or type(error).__name__})"
        ) from error
