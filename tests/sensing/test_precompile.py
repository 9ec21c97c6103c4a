"""What is compiled ahead is all that sensing needs."""

from tests.compiling import compiled_late

PROGRAM = """
import pyarrow as pa
from airflow_provider_deltaforge.sensing import structures
from airflow_provider_deltaforge.sensing.data_drift.detector import precompile
from tests.sensing.drift_rows import detector, rows

precompile()
structures.precompile()
precompiled()
batch = rows({"id": None, "state": "old", "flags": "a,x", "new": {"a": [1.5]}}, None, b"[]")
for given in (batch, batch.slice(1, 2), batch.slice(0, 0)):
    detector().examine(given, given)
    detector(processors=True, hidden=("n",)).examine(batch, given, range(given.num_rows))
texts = pa.array([b'{"a":[1,{"b":2}]}', b"[]", b"x"], pa.binary())
for maps in ({}, {("a",): ["b"], (): []}):
    numbers = structures.StructureNumbers(3, ["a"], maps)
    numbers.of(texts)
    numbers.of(texts.slice(1))
"""


def test_no_kernel_is_compiled_while_rows_wait():
    assert compiled_late(PROGRAM) == []
