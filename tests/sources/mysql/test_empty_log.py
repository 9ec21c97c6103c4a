"""A MariaDB whose log holds nothing yet."""

from collections.abc import Iterator

import pytest

from tests.servers import mariadb, sql
from tests.servers.process import Server
from tests.sources.mysql.stream_reading import batches, source_of


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = mariadb.start(tmp_path_factory.mktemp("empty"))
    yield server
    server.discard()


def test_a_copy_that_begins_on_an_empty_log_is_followed_by_gtid(server: Server) -> None:
    """By file and offset, the stream could never go on at another server."""
    sql.execute(server, "SET sql_log_bin = 0", "CREATE DATABASE shop")
    source = source_of(server, "shop")
    assert sql.execute(server, "SELECT @@GLOBAL.gtid_binlog_pos") == [("",)]
    snapshotter = source.open_snapshot()
    begin = snapshotter.begin()
    snapshotter.close()

    sql.execute(
        server, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", database="shop"
    )
    parts = list(batches(source, begin, source.head()))

    assert parts[-1].end["gtid_pos"] == "0-1-2"
    assert parts[-1].rows.to_pylist()[-1]["key"] == b'{"id":1}'
