"""Servers that keep names in small letters and log statements as they were written."""

import json
import time
from collections.abc import Iterator

import pytest

from airflow_provider_deltaforge.errors import SpecError, TableError
from tests.servers import mariadb, mysql, sql
from tests.servers.process import Server
from tests.sources.mysql.reading import fresh_database
from tests.sources.mysql.stream_reading import rows, source_of

NAME = "without_case"
CREATE = "CREATE TABLE Orders (Id int PRIMARY KEY, A int, B int)"
SWAP = "ALTER TABLE ORDERS RENAME COLUMN A TO B, RENAME COLUMN B TO A"


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "mysql":
        server = mysql.start(directory, row_metadata="MINIMAL", lower_case_table_names=True)
    else:
        server = mariadb.start(
            directory, row_metadata="NO_LOG", args=["--lower-case-table-names=1"]
        )
    yield server
    server.discard()


@pytest.fixture
def server(started: Server) -> Iterator[Server]:
    """A server whose log names no columns, with a table."""
    fresh_database(started, NAME, CREATE)
    return started


def test_statements_in_another_case_are_about_the_table(server: Server) -> None:
    source = source_of(server, NAME, tables=[f"{NAME}.orders"])
    position, found = source.head(), []
    reader = source.open(position)
    deadline = time.monotonic() + 120
    try:
        for step in [
            ("INSERT INTO Orders VALUES (1, 10, 20)",),
            (SWAP, "INSERT INTO Orders VALUES (2, 30, 40)"),
            (f"TRUNCATE TABLE {NAME.upper()}.Orders", "CREATE TABLE Orders_New LIKE oRDERS"),
            ("RENAME TABLE Orders TO Old, Orders_New TO ORDERS",),
            ("INSERT INTO Orders VALUES (3, 50, 60)",),
        ]:
            sql.execute(server, *step, database=NAME)
            end = source.head()
            while source.compare(position, end) < 0:
                assert time.monotonic() < deadline, f"still at {position}, not at {end}"
                segment = reader.read(0.5)
                if segment is not None:
                    batch = reader.decode(segment)
                    position = batch.end
                    found += batch.rows.to_pylist()
    finally:
        reader.close()

    assert [row["op"] for row in found] == ["c", "ddl", "c", "t", "ddl", "c"]
    first, _, second, truncated, renamed, last = found
    assert json.loads(first["after"]) == {"Id": 1, "A": 10, "B": 20}
    assert json.loads(second["after"]) == {"Id": 2, "B": 30, "A": 40}
    assert (truncated["db"], truncated["table"]) == (NAME, "orders")
    assert json.loads(renamed["ddl"])["copies"] == [f"{NAME}.orders"]
    assert json.loads(last["after"]) == {"Id": 3, "B": 50, "A": 60}


def test_a_change_ahead_in_another_case_is_found(server: Server) -> None:
    source = source_of(server, NAME)
    start = source.head()
    sql.execute(server, "INSERT INTO Orders VALUES (1, 10, 20)", SWAP, database=NAME)

    with pytest.raises(TableError, match="RENAME COLUMN A TO B") as stopped:
        rows(source, start)

    assert stopped.value.table == f"{NAME}.orders"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"tables": [f"{NAME}.orders", f"{NAME}.Customers"]}, "source.tables: "),
        ({"outbox": {"tables": [f"{NAME.upper()}.orders"]}}, "source.outbox.tables: "),
    ],
)
def test_patterns_in_capitals_are_refused(server: Server, settings: dict, key: str) -> None:
    source = source_of(server, NAME, **settings)
    snapshotter = source.open_snapshot()
    try:
        with pytest.raises(SpecError, match=key):
            snapshotter.begin()
    finally:
        snapshotter.close()
    with pytest.raises(SpecError, match=key):
        source.open(None)
    (finding,) = [f for f in source.preflight() if f.check == "lower_case_table_names"]
    assert (finding.verdict, finding.message[: len(key)]) == ("fail", key)


def test_a_database_in_capitals_in_the_address_is_refused(server: Server) -> None:
    dsn = server.dsn(NAME.upper())
    with pytest.raises(SpecError, match=r"source\.dsn"):
        source_of(server, NAME, dsn=dsn, tables=["orders"]).open(None)
