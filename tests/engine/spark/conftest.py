"""A Spark session inside the test process leaves nothing behind for the next file."""

import logging
import signal
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _no_gateway_stays() -> Iterator[None]:
    """End what PySpark keeps beyond a stopped session: its JVM, and its handler of SIGINT."""
    # It says goodbye at the interpreter's exit, when nobody listens to a log any more.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    if context is None or context._gateway is None:
        return
    jvm = context._gateway.proc
    context._gateway.shutdown()
    context._gateway = context._jvm = None
    jvm.stdin.close()
    jvm.wait(60)
