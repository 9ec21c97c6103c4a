"""What is compiled ahead is all that a pipeline needs."""

import os
import subprocess
import sys

from tests.architecture.probe import CHECKOUT
from tests.sources.postgres.stream_reading import drop, fresh

COUNT = """
import gc, os
from numba.core.dispatcher import Dispatcher
from airflow_provider_deltaforge.sources.postgres.source import PostgresSource
from tests.sources.postgres.copying import copied
from tests.sources.postgres.stream_reading import rows

def compiled():
    return {
        (kernel.py_func.__module__, kernel.py_func.__name__, str(signature))
        for kernel in gc.get_objects()
        if isinstance(kernel, Dispatcher) and kernel.py_func.__module__.startswith("airflow_p")
        for signature in kernel.signatures
    }

dsn = os.environ["DSN"]
source = PostgresSource(id="warm", dsn=dsn, tables=("t",), publication="df", slot="warm_kernels")
source.warm()
before = compiled()
start = source.beginning()
copied(source)
import psycopg
with psycopg.connect(dsn, autocommit=True) as connection:
    connection.execute("UPDATE t SET name = 'b', tags = '{x}'")
    connection.execute("DELETE FROM t")
assert len(rows(source, start)) == 2
print(*sorted(compiled() - before), sep="\\n")
"""


def test_a_snapshot_and_a_stream_compile_nothing_more(postgres_server):
    fresh(
        postgres_server,
        "warm_kernels",
        "CREATE TABLE t (id int PRIMARY KEY, name text, price numeric(8,2), at timestamptz, "
        "tags text[], data bytea, score float8)",
        "INSERT INTO t VALUES (1, 'a', 1.50, now(), '{a}', '\\x00', 0.1)",
    )
    outcome = subprocess.run(
        [sys.executable, "-c", COUNT],
        env={
            **os.environ,
            "DSN": postgres_server.dsn("warm_kernels"),
            "PYTHONPATH": str(CHECKOUT),
        },
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    drop(postgres_server, "warm_kernels")

    assert outcome.returncode == 0, outcome.stderr[-3000:]
    assert outcome.stdout.strip() == ""
