"""What a Python that a test starts does first: it saves CPU time, and changes nothing else.

This folder is on the ``PYTHONPATH`` of all of them; see ``docs/decisions/tests.md``.
"""

import gc
import os
import sys
from pathlib import Path


def _is_doubled(entry: str) -> bool:
    """Say whether an entry of the path is an archive of PySpark whose folder is there, too.

    Spark puts ``pyspark.zip`` first, and Python keeps no bytecode of an archive: each of the six
    Pythons of an application would compile PySpark anew.
    """
    path = Path(entry)
    if path.suffix != ".zip" or path.parts[-4:-1] != ("pyspark", "python", "lib"):
        return False
    return str(path.parents[3]) in sys.path


sys.path[:] = [entry for entry in sys.path if not _is_doubled(entry)]

if "DELTAFORGE_TEST_SELDOM_COLLECT" in os.environ:
    # A third of what Airflow's API server takes to start is looking at objects that all stay.
    gc.set_threshold(100_000, 20, 20)
