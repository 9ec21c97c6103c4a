"""MariaDB's sequences: tables to the log, and to nobody else."""

import pytest

from tests.servers import sql
from tests.servers.process import Server
from tests.sources.mysql.reading import copied, events
from tests.sources.mysql.stream_reading import rows, source_of

NAME = "sequences"


@pytest.mark.parametrize("metadata", ["FULL", "NO_LOG"])
def test_sequences_are_no_tables(mariadb_server: Server, metadata: str) -> None:
    server = mariadb_server
    sql.execute(server, f"DROP DATABASE IF EXISTS {NAME}", f"CREATE DATABASE {NAME}")
    sql.execute(
        server,
        "CREATE SEQUENCE s",
        "CREATE TABLE t (id int PRIMARY KEY DEFAULT nextval(s), v int)",
        # A table all the same, whatever its columns are called.
        "CREATE TABLE alike AS SELECT * FROM s",
        database=NAME,
    )
    sql.execute(server, f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        source = source_of(server, NAME)
        start = source.head()
        sql.execute(
            server,
            "INSERT INTO t (v) VALUES (1)",
            "DO SETVAL(s, 5000)",
            "BEGIN",
            "INSERT INTO t (v) VALUES (2)",
            "INSERT INTO alike SELECT * FROM s",
            "COMMIT",
            "CREATE SEQUENCE later",
            "DO NEXTVAL(later)",
            "INSERT INTO t (v) VALUES (3)",
            database=NAME,
        )
        found = rows(source, start)
    finally:
        sql.execute(server, "SET GLOBAL binlog_row_metadata = FULL")
    assert [row["table"] for row in found] == ["t", "t", "alike", "t"]
    assert len({row["event_id"] for row in found}) == len(found)
    assert {row["table"] for row in events(copied(source))} == {"t", "alike"}


def test_a_sequence_that_is_gone_is_none_either(mariadb_server: Server) -> None:
    sql.execute(mariadb_server, f"DROP DATABASE IF EXISTS {NAME}", f"CREATE DATABASE {NAME}")
    source = source_of(mariadb_server, NAME)
    start = source.head()
    sql.execute(
        mariadb_server, "CREATE SEQUENCE s", "DO NEXTVAL(s)", "DROP SEQUENCE s", database=NAME
    )
    assert rows(source, start) == []
