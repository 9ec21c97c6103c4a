"""A column's affinity is that which the engine itself gives it."""

import itertools
import sqlite3

import pytest

from airflow_provider_deltaforge.encodings.avro.column_types import Modes, type_of
from airflow_provider_deltaforge.events.schema import Column
from airflow_provider_deltaforge.sources.turso.column_types import BY_NAME, affinity

WORDS = ("", "INT", "char", "CLOB", "Text", "BLOB", "REAL", "floa", "DOUB", "DECIMAL", "x")
STORED = {
    "integer": ["integer", "integer", "real"],
    "text": ["text", "text", "text"],
    "blob": ["text", "integer", "real"],
    "real": ["real", "real", "real"],
    "numeric": ["integer", "integer", "real"],
}
"""As what the text '7' and the numbers 7 and 7.5 are stored; whole numbers and numeric alike."""


@pytest.mark.parametrize("declared", sorted({"".join(p) for p in itertools.product(WORDS, WORDS)}))
def test_a_declared_type_has_the_affinity_of_the_engine(declared):
    memory = sqlite3.connect(":memory:")
    memory.execute(f"CREATE TABLE t (c {declared})")
    memory.executemany("INSERT INTO t VALUES (?)", [("7",), (7,), (7.5,)])
    stored = [kind for (kind,) in memory.execute("SELECT typeof(c) FROM t")]
    memory.close()
    assert stored == STORED[affinity(declared)]


def test_every_affinity_has_an_avro_type():
    for name in BY_NAME:
        type_of(Column("c", name, name), "turso", Modes())
