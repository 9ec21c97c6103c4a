"""What is compiled ahead is all that a pipeline needs."""

import pytest

from tests.compiling import compiled_late
from tests.sources.mysql.reading import fresh_database

PROGRAM = """
import os
from airflow_provider_deltaforge.sources.mysql.source import MySqlSource
from tests.sources.mysql.reading import copied
from tests.sources.mysql.stream_reading import rows

source = MySqlSource(id="ahead", dsn=os.environ["DSN"], tables=["ahead_kernels.*"])
source.precompile()
precompiled()
start = source.head()
copied(source)
with source.connect() as connection, connection.cursor() as cursor:
    cursor.execute("UPDATE ahead_kernels.t SET name = 'b', price = 2.50")
    connection.commit()
assert len(rows(source, start)) == 1
"""


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_snapshot_and_a_stream_compile_nothing_more(request, kind):
    server = request.getfixturevalue(f"{kind}_server")
    fresh_database(
        server,
        "ahead_kernels",
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), price DECIMAL(8,2), at DATETIME(3),"
        " note TEXT, kind ENUM('a','b'), data BLOB, score DOUBLE)",
        "INSERT INTO t VALUES (1, 'a', 1.50, NOW(3), 'ö', 'a', x'00', 0.1)",
    )
    dsn = f"mysql://root@{server.host}:{server.port}/ahead_kernels"
    assert compiled_late(PROGRAM, DSN=dsn) == []
