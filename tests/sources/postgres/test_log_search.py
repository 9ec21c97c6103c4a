"""Places of the log by time and LSN: those that the slot still holds, and no others."""

import time

import pytest

from airflow_provider_deltaforge.errors import PositionLostError, SpecError
from tests.servers.process import Server
from tests.sources.postgres import stream_reading as postgres

DATABASE = "df_searched"


def test_only_what_the_slot_holds_has_a_place(postgres_server: Server) -> None:
    postgres.fresh(postgres_server, DATABASE, "CREATE TABLE t (id int PRIMARY KEY)")
    source = postgres.source_of(postgres_server, DATABASE)
    begin = source.beginning()

    def insert(number: int) -> int:
        statement = f"INSERT INTO t VALUES ({number})"
        postgres.execute(postgres_server, statement, database=DATABASE)
        time.sleep(0.02)
        return int(time.time() * 1000)

    first_ms, before_ms = insert(1), int(time.time() * 1000) - 60_000
    here = source.head()
    insert(2)

    place = source.place_at_time(first_ms)
    assert source.covers(place, begin)
    assert source.covers(here, place)
    assert not source.covers(begin, place)
    assert source.place_at(here["lsn"])["lsn"] == here["lsn"]
    # Exactly at a commit, that is not delivered again.
    behind = postgres.rows(source, place, source.head())
    [second_ms] = [event["ts_ms"] for event in behind]
    assert not source.covers(place, source.place_at_time(second_ms))
    assert source.place_at_time(second_ms - 1) == place
    with pytest.raises(PositionLostError, match="the first change was committed at"):
        source.place_at_time(before_ms)
    with pytest.raises(PositionLostError, match="lies before that: a server sends nothing"):
        source.place_at("0/1")
    with pytest.raises(SpecError, match=r"^to: 'x' is no place"):
        source.place_at("x")

    # Of what was confirmed, nobody knows when it was committed.
    slot = source.slot_settings.name
    advance = f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())"
    postgres.execute(postgres_server, advance, database=DATABASE)
    with pytest.raises(PositionLostError, match="there is no change, and"):
        source.place_at_time(first_ms)
    postgres.drop(postgres_server, DATABASE)
