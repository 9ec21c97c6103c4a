"""What the tests of control, faces and roof share: a store, a document, and the fake driver."""

import sys
from pathlib import Path

from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from tests.waiting import wait_until

__all__ = ["DOCUMENT", "fake_driver", "job_of", "wait_until"]

DRIVER = Path(__file__).with_name("driver.py")

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {name: orders, tenant: acme}
spec:
  source:
    type: scripted
    config: {id: shop-db, transactions: 10, rows: 3}
  sinks:
    - type: file
      config: {id: files, path: "${OUTPUT}/${source.table}.jsonl"}
"""


def fake_driver(job: LaunchSpec) -> list[str]:
    """Compose the command line of the fake driver in place of spark-submit's."""
    words = ["--pipeline", job.pipeline, "--generation", str(job.generation)]
    return [sys.executable, str(DRIVER), *words, *job.arguments]


def job_of(store: str, behaviour: str = "run", script: str = "stream_job.py") -> LaunchSpec:
    """Return a job for the fake driver."""
    return LaunchSpec("orders", 0, script, store, environment={"FAKE_DRIVER": behaviour})
