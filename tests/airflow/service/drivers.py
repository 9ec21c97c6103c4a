"""The two kinds of drivers a case can run with; a pipeline's name says which.

``spark-…`` is what users have. ``plain-…`` is the same engine, launched the same way and in the
same kind of session, without a JVM: it starts at once, so that a matrix of many cases ends.
"""

import sys
from collections.abc import Sequence

from airflow_provider_deltaforge.control.launching import spark_submit
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec

KINDS = ("plain", "spark")

_RUN = (
    "import sys; from airflow_provider_deltaforge.engine.driver.local import run_local; "
    "from airflow_provider_deltaforge.storage.location import StoreLocation; "
    "sys.exit(run_local(sys.argv[2], StoreLocation.from_environment(), int(sys.argv[4])))"
)


def compose(job: LaunchSpec) -> Sequence[str]:
    """Return the command line of a driver."""
    if not job.pipeline.startswith("plain"):
        return spark_submit.command(job)
    words = ("--pipeline", job.pipeline, "--generation", str(job.generation))
    return [sys.executable, "-c", _RUN, *words]
