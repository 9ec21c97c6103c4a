"""What MariaDB alone logs: statements behind settings, and an ALTER in two phases."""

import json

import pymysql
import pytest

from tests.servers import sql
from tests.servers.process import Server
from tests.sources.mysql.reading import fresh_database
from tests.sources.mysql.stream_reading import source_of

NAME = "mariadb_statements"
CREATE = "CREATE TABLE t (id int PRIMARY KEY, a int, b int)"


@pytest.fixture(params=["FULL", "NO_LOG"])
def server(request: pytest.FixtureRequest, mariadb_server: Server):
    """A server whose log names columns, or does not."""
    fresh_database(mariadb_server, NAME, CREATE)
    metadata = "SET GLOBAL binlog_row_metadata = "
    sql.execute(mariadb_server, metadata + request.param)
    yield mariadb_server
    sql.execute(mariadb_server, metadata + "FULL", "SET GLOBAL binlog_alter_two_phase = OFF")


class Followed:
    """A stream that is read on after each step."""

    def __init__(self, server: Server, *tables: str) -> None:
        self.server = server
        self.source = source_of(server, NAME, tables=[f"{NAME}.{table}" for table in tables])
        self.position = self.source.head()
        self.reader = self.source.open(self.position)

    def after(self, *statements: str) -> list[dict]:
        """Return the events of some statements."""
        sql.execute(self.server, *statements, database=NAME)
        end, found = self.source.head(), []
        while self.source.compare(self.position, end) < 0:
            segment = self.reader.read(1)
            if segment is not None:
                batch = self.reader.decode(segment)
                self.position = batch.end
                found += batch.rows.to_pylist()
        return found


@pytest.fixture
def followed(server: Server):
    stream = Followed(server, "t")
    yield stream
    stream.reader.close()


def image(row: dict) -> dict:
    return json.loads(row["after"])


def test_a_statement_behind_settings_is_understood(followed: Followed) -> None:
    settings = (
        "SET STATEMENT max_statement_time = 0, lock_wait_timeout = (SELECT 5 FOR UPDATE) FOR "
    )
    followed.after("INSERT INTO t VALUES (1, 10, 20)")

    swapped = followed.after(
        settings + "ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a",
        "INSERT INTO t VALUES (2, 30, 40)",
    )
    assert [row["op"] for row in swapped] == ["ddl", "c"]
    assert image(swapped[1]) == {"id": 2, "b": 30, "a": 40}

    (truncated,) = followed.after(settings + "TRUNCATE TABLE t")
    assert (truncated["op"], truncated["table"]) == ("t", "t")

    followed.after("CREATE TABLE incoming LIKE t")
    (renamed,) = followed.after(settings + "RENAME TABLE t TO gone, incoming TO t")
    assert json.loads(renamed["ddl"])["copies"] == [f"{NAME}.t"]


def test_an_alter_that_is_logged_twice_is_one_change(followed: Followed) -> None:
    followed.after("SET GLOBAL binlog_alter_two_phase = ON", "INSERT INTO t VALUES (1, 10, 20)")

    swapped = followed.after(
        "ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a, ADD c int FIRST",
        "INSERT INTO t VALUES (3, 2, 30, 40)",
    )

    assert [row["op"] for row in swapped] == ["ddl", "c"]
    assert image(swapped[1]) == {"c": 3, "id": 2, "b": 30, "a": 40}


def test_an_alter_that_failed_is_no_change(followed: Followed) -> None:
    followed.after(
        "SET GLOBAL binlog_alter_two_phase = ON", "INSERT INTO t VALUES (1, 10, 20), (2, 10, 20)"
    )
    logged = followed.source.head()

    with pytest.raises(pymysql.err.IntegrityError):
        followed.after("ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a, ADD UNIQUE (b)")

    assert followed.source.compare(followed.source.head(), logged) > 0, "the server logged nothing"
    (row,) = followed.after("INSERT INTO t VALUES (3, 30, 40)")
    assert image(row) == {"id": 3, "a": 30, "b": 40}
