"""The kinds of drivers a case can run with, and of Airflow's workers; a pipeline's name says which.

``spark-…`` is what users have who run drivers beside Airflow. ``plain-…`` is the same engine,
launched the same way and in the same kind of session, without a JVM: it starts at once, so that a
matrix of many cases ends. ``standalone-…`` are submissions to a cluster of Spark, and
``standalone-pods-…`` the same from workers of Airflow that end with each task.
"""

import sys
from collections.abc import Sequence

from airflow_provider_deltaforge.control.launching import spark_submit
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec

PLAIN, SPARK, STANDALONE, PODS = "plain", "spark", "standalone", "standalone-pods"
KINDS = (PLAIN, SPARK, STANDALONE, PODS)
ON_A_CLUSTER = (STANDALONE, PODS)

_RUN = (
    "import sys; from airflow_provider_deltaforge.engine.driver.local import run_local; "
    "from airflow_provider_deltaforge.storage.location import StoreLocation; "
    "sys.exit(run_local(sys.argv[2], StoreLocation.from_environment(), int(sys.argv[4])))"
)


def compose(job: LaunchSpec) -> Sequence[str]:
    """Return the command line of a driver beside Airflow."""
    if not job.pipeline.startswith(PLAIN):
        return spark_submit.command(job)
    words = ("--pipeline", job.pipeline, "--generation", str(job.generation))
    return [sys.executable, "-c", _RUN, *words]
