"""What is compiled ahead is all that data drift needs."""

from tests.compiling import compiled_late

PROGRAM = """
from airflow_provider_deltaforge.sensing.data_drift.detector import precompile
from tests.sensing.drift_rows import detector, rows

precompile()
precompiled()
batch = rows({"id": None, "state": "old", "flags": "a,x", "new": {"a": [1.5]}}, None, b"[]")
for given in (batch, batch.slice(1, 2), batch.slice(0, 0)):
    detector().examine(given, given)
    detector(processors=True, hidden=("n",)).examine(batch, given, range(given.num_rows))
"""


def test_no_kernel_is_compiled_while_rows_wait():
    assert compiled_late(PROGRAM) == []
