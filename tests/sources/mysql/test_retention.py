"""How long the server keeps its log, and how much of it lies before and behind a position."""

import time

import pytest

from airflow_provider_deltaforge.errors import DeltaForgeError
from tests.servers import sql
from tests.sources.mysql.reading import fresh_database, source_of


@pytest.fixture
def source(mysql_server):
    fresh_database(mysql_server, "kept", "CREATE TABLE t (id int PRIMARY KEY)")
    sql.execute(mysql_server, "SET GLOBAL binlog_expire_logs_seconds = 3600")
    yield source_of(mysql_server, "kept")
    sql.execute(
        mysql_server,
        "SET GLOBAL binlog_expire_logs_seconds = DEFAULT",
        "SET GLOBAL binlog_expire_logs_auto_purge = ON",
    )


def test_a_log_is_kept_from_its_last_change_on(mysql_server, source):
    start = source.head()
    now_ms = int(time.time() * 1000)
    in_use = source.log_retention(start, now_ms - 1_000_000)
    assert (in_use.left_s, in_use.behind_bytes, in_use.kept_bytes) == (3600, 0, None)

    sql.execute(mysql_server, "INSERT INTO t VALUES (1)", database="kept")
    sql.execute(mysql_server, "FLUSH BINARY LOGS")
    older = source.log_retention(start, now_ms - 1_000_000)
    assert older.left_s == pytest.approx(2600, abs=60)
    assert older.behind_bytes > 200
    assert source.log_retention(start, None).left_s is None  # Nothing was read before.
    assert source.log_retention(start, now_ms - 4_000_000).left_s == 0
    assert source.log_retention(source.head(), now_ms).left_bytes >= older.behind_bytes

    sql.execute(mysql_server, "SET GLOBAL binlog_expire_logs_auto_purge = OFF")
    assert source.log_retention(start, now_ms - 1_000_000).left_s is None


def test_of_a_position_without_a_file_nothing_is_reported(source):
    position = {**source.head(), "file": "binlog.999999"}
    assert source.log_retention(position, 0) is None
    assert source.log_retention({**position, "file": ""}, 0) is None


def test_a_server_that_refuses_says_so(mysql_server, source):
    sql.execute(
        mysql_server,
        "CREATE USER IF NOT EXISTS nobody IDENTIFIED BY 'x'",
        "GRANT SELECT ON kept.* TO nobody",
    )
    refused = source_of(mysql_server, "kept", user="nobody:x")
    with pytest.raises(DeltaForgeError, match="asking what is kept of the log"):
        refused.log_retention(source.head(), 0)
