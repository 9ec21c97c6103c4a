"""Places of the log by time, offset and GTID: between two transactions, with their GTIDs."""

import json
import time
from contextlib import closing

import pytest

from airflow_provider_deltaforge.errors import PositionLostError, SpecError
from tests.servers import sql
from tests.sources.mysql.reading import fresh_database, log_unclear_statement
from tests.sources.mysql.stream_reading import rows, source_of

DATABASE = "searched"
PAUSE_S = 1.1
"""MariaDB's log knows whole seconds."""


@pytest.fixture(params=["mysql_server", "mariadb_server"])
def server(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def searched(server):
    """A source with rows 1 to 4 in two files of its log, a time between, and the places behind."""
    fresh_database(server, DATABASE, "CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(server, DATABASE)
    log_unclear_statement(server)
    heads = []
    for number in range(1, 5):
        sql.execute(server, f"INSERT INTO t VALUES ({number})", database=DATABASE)
        heads.append(source.head())
        if number == 2:
            time.sleep(PAUSE_S)
            flushed_s = int(time.time())
            sql.execute(server, "FLUSH BINARY LOGS")
            between_ms = int(time.time() * 1000)
    return source, between_ms, heads, flushed_s


def ids(source, place):
    events = rows(source, place)
    return [json.loads(event["after"])["id"] for event in events if event["op"] == "c"]


def end_of_last(source, head):
    """Return where the last transaction before a place ends."""
    with closing(source.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINLOG EVENTS IN %s", (head["file"],))
        events = cursor.fetchall()
    return max(end for _, _, kind, _, end, _ in events if kind == "Xid" and end <= head["pos"])


def test_what_lies_behind_a_place_was_committed_later(searched, server):
    source, between_ms, heads, _ = searched
    place = source.place_at_time(between_ms)
    assert ids(source, place) == [3, 4]
    assert source.covers(place, heads[1])
    assert not source.covers(place, heads[2])
    assert ids(source, source.place_at_time(int(time.time() * 1000) + 1000)) == []
    source.reach(place)
    # Exactly at a commit: MySQL does not deliver that again, MariaDB all of its second.
    third_ms, fourth_ms = (event["ts_ms"] for event in rows(source, place))
    later = [] if fourth_ms == third_ms else [4]
    is_mariadb = "gtid_pos" in heads[0]
    assert ids(source, source.place_at_time(third_ms)) == ([3, 4] if is_mariadb else later)
    assert is_mariadb or ids(source, source.place_at_time(third_ms - 1)) == [3, 4]

    third = heads[2]
    offset = f"{third['file']}:{third['pos']}"
    # MariaDB writes something behind a transaction.
    assert source.compare(source.place_at(offset), third) == 0
    inside = source.place_at(f"{third['file']}:{end_of_last(source, third) - 1}")
    assert ids(source, inside) == [3, 4]
    assert source.place_at(json.dumps(third)) == third

    if "gtid_set" in third:
        # Other tests leave transactions of other servers in the set.
        sets = f"'{third['gtid_set']}', '{heads[1]['gtid_set']}'"
        [(gtid,)] = sql.execute(server, f"SELECT GTID_SUBTRACT({sets})")
    else:
        gtid = third["gtid_pos"].rpartition(",")[2]
    assert ids(source, source.place_at(gtid)) == [3, 4]

    with pytest.raises(PositionLostError, match="the server's log begins at"):
        source.place_at_time(1_000_000_000_000)
    with pytest.raises(PositionLostError, match="has no file"):
        source.place_at("binlog.999999:4")
    with pytest.raises(SpecError, match="is no place"):
        source.place_at("yesterday")
    with pytest.raises(SpecError, match="is no position"):
        source.place_at("{")


def test_of_the_second_in_which_the_first_file_begins_a_part_may_be_gone(server, searched):
    source, _, heads, flushed_s = searched
    file = heads[2]["file"]
    left = sql.execute(server, f"PURGE BINARY LOGS TO '{file}'", "SHOW BINARY LOGS")
    assert left[0][0] == file
    with pytest.raises(PositionLostError, match="the server's log begins at"):
        source.place_at_time(flushed_s * 1000 + 999)
    assert ids(source, source.place_at_time((flushed_s + 2) * 1000)) in ([], [3, 4], [4])
