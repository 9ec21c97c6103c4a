"""What is compiled ahead is all that a pipeline needs."""

from tests.compiling import compiled_late
from tests.sources.postgres.stream_reading import drop, fresh

PROGRAM = """
import os
from airflow_provider_deltaforge.sources.postgres.source import PostgresSource
from tests.sources.postgres.copying import copied
from tests.sources.postgres.stream_reading import rows

dsn = os.environ["DSN"]
source = PostgresSource(id="ahead", dsn=dsn, tables=("t",), publication="df", slot="ahead_kernels")
source.precompile()
precompiled()
start = source.beginning()
copied(source)
import psycopg
with psycopg.connect(dsn, autocommit=True) as connection:
    connection.execute("UPDATE t SET name = 'b', tags = '{x}'")
    connection.execute("DELETE FROM t")
assert len(rows(source, start)) == 2
"""


def test_a_snapshot_and_a_stream_compile_nothing_more(postgres_server):
    fresh(
        postgres_server,
        "ahead_kernels",
        "CREATE TABLE t (id int PRIMARY KEY, name text, price numeric(8,2), at timestamptz, "
        "tags text[], data bytea, score float8)",
        "INSERT INTO t VALUES (1, 'a', 1.50, now(), '{a}', '\\x00', 0.1)",
    )
    late = compiled_late(PROGRAM, DSN=postgres_server.dsn("ahead_kernels"))
    drop(postgres_server, "ahead_kernels")

    assert late == []
