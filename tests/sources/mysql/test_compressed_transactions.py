"""Compressed MySQL transactions that are larger than a segment once they are not compressed."""

from itertools import pairwise

import pytest

from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.sources.mysql.positions import (
    TX_START,
    TX_STOP,
    LogPosition,
    visible_in,
)
from airflow_provider_deltaforge.sources.mysql.source import MySqlSource
from tests.servers import sql
from tests.servers.process import Server
from tests.sources.mysql.reading import fresh_database
from tests.sources.mysql.stream_reading import batches, source_of

NAME = "compressed"
LEAD, ROWS = 8, 30


def written(server: Server, *, gtids: bool) -> tuple[MySqlSource, list[Position]]:
    """Write almost a segment, then 14 MB in one transaction, then a row.

    Returns the log's ends before, between and behind them.
    """
    fresh_database(server, NAME, "CREATE TABLE t (id int PRIMARY KEY, v longtext)")
    source = source_of(server, NAME)
    ends = [source.head()]
    lead = [f"INSERT INTO t VALUES ({id}, REPEAT('x', 480000))" for id in range(LEAD)]
    sql.execute(server, *lead, database=NAME)
    ends.append(source.head())
    compressed = "SET SESSION binlog_transaction_compression = ON"
    large = [f"INSERT INTO t VALUES ({id}, REPEAT('y', 480000))" for id in range(LEAD, LEAD + ROWS)]
    sql.execute(server, compressed, "BEGIN", *large, "COMMIT", database=NAME)
    ends.append(source.head())
    sql.execute(server, "INSERT INTO t VALUES (1000, 'end')", database=NAME)
    ends.append(source.head())
    kept = {"file", "pos", "server_uuid"} | ({"gtid_set"} if gtids else set())
    return source, [{k: v for k, v in end.items() if k in kept} for end in ends]


def starts_and_stops(parts: list[ChangeBatch], first_id: int) -> set[tuple[int, int]]:
    """Return where the transaction of a row begins and ends, as each of its parts knows it."""
    found = set()
    for part in parts:
        for row in part.rows.to_pylist():
            if first_id <= int(row["key"][6:-1]) < first_id + ROWS:
                entry = part.positions.transactions[row["tx"]]
                found.add((int(entry[TX_START]), int(entry[TX_STOP])))
    return found


@pytest.mark.parametrize("gtids", [True, False])
def test_all_parts_of_a_compressed_transaction_lie_where_it_lies(
    mysql_server: Server, gtids: bool
) -> None:
    source, (start, begin, end, last) = written(mysql_server, gtids=gtids)

    parts = list(batches(source, start, last))

    assert sum(part.open_tx for part in parts) >= 3
    assert starts_and_stops(parts, LEAD) == {(begin["pos"], -1), (begin["pos"], end["pos"])}
    cut = LogPosition.from_json({**begin, "gtid_set": None})
    contained = [flag for part in parts for flag in visible_in(cut, part.positions).tolist()]
    assert contained == [True] * LEAD + [False] * (len(contained) - LEAD)
    ends = [part.end["pos"] for part in parts]
    assert all(before <= after for before, after in pairwise(ends))
    assert parts[-1].end["pos"] == last["pos"]


@pytest.mark.parametrize("gtids", [True, False])
def test_a_compressed_transaction_has_the_same_ids_wherever_reading_began(
    mysql_server: Server, gtids: bool
) -> None:
    source, (start, begin, _, last) = written(mysql_server, gtids=gtids)

    def ids(start: Position) -> list[bytes]:
        found = [row for part in batches(source, start, last) for row in part.rows.to_pylist()]
        assert [row["key"] for row in found[-1 - ROWS :]] == [
            b'{"id":%d}' % id for id in [*range(LEAD, LEAD + ROWS), 1000]
        ]
        return [row["event_id"] for row in found[-1 - ROWS :]]

    assert ids(start) == ids(begin)
