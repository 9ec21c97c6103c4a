"""A standby is promoted: what it has can be followed, and what it lacks is said."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.errors import FatalError, PositionLostError, RetryableError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.postgres.failover import branches
from airflow_provider_deltaforge.sources.postgres.positions import lsn_text, parse_lsn
from airflow_provider_deltaforge.sources.postgres.source import PostgresSource
from tests.servers import postgres
from tests.servers.process import Server
from tests.sources.failover_run import FailoverRun
from tests.sources.postgres import test_snapshot_seam
from tests.sources.postgres.stream_reading import execute, fresh, source_of, tuned
from tests.waiting import wait_for

DATABASE = "shop"


@dataclass
class Promotion:
    """A primary that lives on, and its standby, which was promoted."""

    primary: Server
    promoted: Server
    shared: Position
    """Read from the primary; the standby had it."""
    beyond: Position
    """Read from the primary after the standby had left it."""


def wal_position(server: Server, database: str = DATABASE) -> Position:
    return source_of(server, database).head()


def caught_up(primary: Server, standby: Server) -> None:
    """Wait until a standby has replayed what its primary has written."""
    head = execute(primary, "SELECT pg_current_wal_flush_lsn()")[0][0]
    seen = f"SELECT pg_last_wal_replay_lsn() >= '{head}'"
    wait_for("the standby", lambda: execute(standby, seen) == [(True,)])


def promote(standby: Server) -> None:
    execute(standby, "SELECT pg_promote()")
    wait_for("promotion", lambda: execute(standby, "SELECT pg_is_in_recovery()") == [(False,)])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Return a primary with one table and its standby."""
    primary = postgres.start(tmp_path_factory.mktemp("primary"))
    try:
        fresh(primary, DATABASE, "CREATE TABLE t (id int PRIMARY KEY)")
        source_of(primary, DATABASE).beginning()
        standby = postgres.standby(primary, tmp_path_factory.mktemp("standby"))
        try:
            yield primary, standby
        finally:
            standby.discard()
    finally:
        primary.discard()


@pytest.fixture(scope="module")
def behind(pair: tuple[Server, Server]) -> str:
    """Return what is said of a standby that has not replayed what was read."""
    primary, standby = pair
    caught_up(primary, standby)
    execute(standby, "SELECT pg_wal_replay_pause()")
    execute(primary, "INSERT INTO t VALUES (1)", database=DATABASE)
    position = wal_position(primary)
    with pytest.raises(RetryableError) as waiting:
        source_of(standby, DATABASE).reach(position)
    execute(standby, "SELECT pg_wal_replay_resume()")
    caught_up(primary, standby)
    return str(waiting.value)


@pytest.fixture(scope="module")
def promotion(pair: tuple[Server, Server], behind: str) -> Promotion:
    primary, standby = pair
    shared = wal_position(primary)
    caught_up(primary, standby)
    promote(standby)
    # The former primary goes on by itself: what it writes now, nobody else has.
    execute(primary, "INSERT INTO t VALUES (2)", database=DATABASE)
    execute(primary, "SELECT pg_switch_wal()")
    execute(primary, "INSERT INTO t VALUES (3)", database=DATABASE)
    beyond = wal_position(primary)
    wait_for("the timeline", lambda: source_of(standby, DATABASE).identity()["timeline"] == 2)
    return Promotion(primary, standby, shared, beyond)


def lost(source: PostgresSource, position: Position) -> str:
    with pytest.raises(PositionLostError, match="Re-snapshot required") as refused:
        source.reach(position)
    return str(refused.value)


# The first ones: later the standby is promoted.
def test_rows_are_read_at_a_standby_once_it_has_replayed_the_start(
    pair: tuple[Server, Server],
) -> None:
    primary, standby = pair
    source = source_of(primary, DATABASE).copied_from(f"{standby.host}:{standby.port}")
    execute(standby, "SELECT pg_wal_replay_pause()")
    execute(primary, "INSERT INTO t VALUES (101)", database=DATABASE)
    with closing(source.open_snapshot()) as snapshotter:
        begun = snapshotter.begin()
        resumed = threading.Timer(0.5, execute, (standby, "SELECT pg_wal_replay_resume()"))
        resumed.start()
        (chunk,) = snapshotter.plan(100)
        resumed.join()
        execute(primary, "INSERT INTO t VALUES (102)", database=DATABASE)
        caught_up(primary, standby)
        execute(standby, "SELECT pg_wal_replay_pause()")
        execute(primary, "INSERT INTO t VALUES (103)", database=DATABASE)
        (batch,) = list(snapshotter.read(chunk, "run"))
        execute(standby, "SELECT pg_wal_replay_resume()")
        snapshotter.guard(begun)
    assert batch.rows.column("key").to_pylist() == [b'{"id":101}', b'{"id":102}']

    # The log is the primary's, and what was replayed before the view opened is known to be in it.
    found: dict[str, bool] = {}
    with closing(source.open(begun)) as reader:
        while len(found) < 3:
            segment = reader.read(1)
            if segment is not None:
                changes = reader.decode(segment)
                keys = [key.decode() for key in changes.rows.column("key").to_pylist()]
                common = source.common_cut([batch.end, batch.end])
                assert common is not None
                visible = source.visible(common, changes).tolist()
                found |= dict(zip(keys, visible, strict=True))
    assert found == {'{"id":101}': True, '{"id":102}': True, '{"id":103}': False}
    assert not source.knows_views(begun)
    assert source.preflight()[-1].message == "snapshot.dsn: rows can be read there"
    execute(primary, "DELETE FROM t", database=DATABASE)


def test_a_standbys_rows_and_the_log_behind_its_views_make_the_whole(
    pair: tuple[Server, Server],
) -> None:
    """Beside writers: what a view is said to contain is left out of the log."""
    primary, standby = pair
    fresh(
        primary,
        test_snapshot_seam.NAME,
        "CREATE TABLE t (id bigint PRIMARY KEY, note text, big text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t SELECT i, 'old', 'o' FROM generate_series(1, 2000) i",
    )
    source = source_of(primary, test_snapshot_seam.NAME).copied_from(
        f"{standby.host}:{standby.port}"
    )
    found, cuts = {}, []
    writing = test_snapshot_seam.writing(primary, test_snapshot_seam.NAME)
    with writing, closing(source.open_snapshot()) as snapshotter:
        begun = snapshotter.begin()
        time.sleep(0.5)  # Some of the log lies before every view.
        for chunk in list(snapshotter.plan(150)):
            for batch in snapshotter.read(chunk, "run"):
                cuts.append(batch.end)
                rows = batch.rows.to_pylist()
                found |= {row["key"].decode(): json.loads(row["after"]) for row in rows}
    execute(
        primary,
        f"INSERT INTO t VALUES ({test_snapshot_seam.LAST})",
        database=test_snapshot_seam.NAME,
    )
    common = source.common_cut(cuts)
    assert common is not None
    left_out: list[int] = []

    class Unshown:
        """Reads what no view is said to contain."""

        def __init__(self) -> None:
            self._reader = source.open(begun)
            self.read, self.close = self._reader.read, self._reader.close

        def decode(self, segment: Any) -> ChangeBatch:
            batch = self._reader.decode(segment)
            shown = source.visible(common, batch)
            left_out.append(int(shown.sum()))
            return replace(batch, rows=batch.rows.filter(pa.array(~shown)))

    test_snapshot_seam.replay(Unshown(), found)
    (whole,) = execute(primary, "SELECT json_agg(t) FROM t", database=test_snapshot_seam.NAME)[0]
    assert {row["id"]: row for row in found.values()} == {row["id"]: row for row in whole}
    assert sum(left_out) > 0


def test_what_is_no_standby_of_the_server_is_refused(pair: tuple[Server, Server]) -> None:
    primary, standby = pair
    for dsn, why in (
        (primary.dsn(DATABASE), "it is no standby"),
        (standby.dsn("postgres"), "data"),
    ):
        source = source_of(primary, DATABASE).copied_from(dsn)
        with pytest.raises(FatalError, match=f"snapshot.dsn: .*{why}"):
            list(source.open_snapshot().plan(100))
        assert source.preflight()[-1].verdict == "fail"


def test_a_standby_that_does_not_follow_is_named_with_what_it_lacks(
    pair: tuple[Server, Server],
) -> None:
    primary, standby = pair
    hasty = source_of(primary, DATABASE, kind=tuned(replica_s=0.3))
    source = hasty.copied_from(standby.dsn(DATABASE))
    execute(standby, "SELECT pg_wal_replay_pause()")
    try:
        execute(primary, "INSERT INTO t VALUES (104)", database=DATABASE)
        with pytest.raises(RetryableError, match=r"snapshot\.dsn: the standby has replayed"):
            list(source.open_snapshot().plan(100))
    finally:
        execute(standby, "SELECT pg_wal_replay_resume()")
    execute(primary, "DELETE FROM t", database=DATABASE)


def test_a_standby_that_is_behind_is_waited_for(behind: str) -> None:
    assert "has replayed its log up to" in behind
    assert "waiting until it has" in behind


def test_a_promotion_keeps_the_cluster_and_begins_a_timeline(promotion: Promotion) -> None:
    former = source_of(promotion.primary, DATABASE).identity()
    now = source_of(promotion.promoted, DATABASE).identity()
    assert former["type"] == "postgres"
    assert former["system_identifier"] == now["system_identifier"]
    assert (former["timeline"], now["timeline"]) == (1, 2)


def test_without_its_slot_a_promoted_server_cannot_be_followed(promotion: Promotion) -> None:
    text = lost(source_of(promotion.promoted, DATABASE), promotion.shared)
    assert "position lost after failover: replication slot 'shop' does not exist" in text
    assert "Before PostgreSQL 17 no logical slot survives a promotion" in text


def test_a_slot_that_was_created_after_the_promotion_has_a_gap(promotion: Promotion) -> None:
    execute(promotion.promoted, "INSERT INTO t VALUES (9)", database=DATABASE)
    recreated = source_of(promotion.promoted, DATABASE, slot="recreated")
    begun = recreated.beginning()
    text = lost(recreated, promotion.shared)
    assert "slot 'recreated' was confirmed up to" in text
    assert str(promotion.shared["lsn"]) in text
    # From where the new slot begins there is none.
    recreated.reach(begun)


def test_what_only_the_former_primary_wrote_has_not_happened(promotion: Promotion) -> None:
    text = lost(source_of(promotion.promoted, DATABASE), promotion.beyond)
    assert "had it only up to" in text
    assert str(promotion.beyond["lsn"]) in text


def test_a_reader_is_not_opened_there_either(promotion: Promotion) -> None:
    execute(promotion.promoted, "INSERT INTO t VALUES (10)", database=DATABASE)
    other = source_of(promotion.promoted, DATABASE, slot="for_a_reader")
    begun = other.beginning()
    for lsn in (promotion.beyond["lsn"], begun["lsn"]):
        with pytest.raises(PositionLostError, match="position lost after failover"):
            other.open({**promotion.beyond, "lsn": lsn})
    other.open(begun).close()


def test_the_catalog_shows_how_captured_tables_look_now(promotion: Promotion) -> None:
    source = source_of(promotion.primary, DATABASE, tables=("public.t", "public.gone"))
    asked = [TableSchema(DATABASE, "public", name, ()) for name in ("t", "gone", "other")]
    (t, gone) = source.catalog(asked).items()
    assert t[0] == "public.t"
    assert t[1] is not None
    assert (t[1].primary_key, [c.data_type for c in t[1].columns]) == (("id",), ["integer"])
    assert gone == ("public.gone", None)


def test_the_former_primary_that_comes_back_is_refused(promotion: Promotion) -> None:
    position = wal_position(promotion.promoted)
    text = lost(source_of(promotion.primary, DATABASE), position)
    assert "on timeline 2, but the server is on timeline 1" in text


def test_another_cluster_has_another_log(promotion: Promotion, postgres_server: Server) -> None:
    fresh(postgres_server, "elsewhere")
    text = lost(source_of(postgres_server, "elsewhere"), promotion.shared)
    assert "position lost after failover" in text
    assert str(promotion.shared["system_id"]) in text


@pytest.mark.long
def test_a_pipeline_goes_on_with_a_slot_that_was_made_for_failover(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    primary = postgres.start(tmp_path_factory.mktemp("primary18"), version=18)
    try:
        fresh(primary, DATABASE, "CREATE TABLE t (id int PRIMARY KEY)")
        slot = {"name": "shop", "failover": True}
        run = FailoverRun(primary, DATABASE, kind="postgres", publication="df", slot=slot)
        driving = run.start()
        follows = ["sync_replication_slots=on", "hot_standby_feedback=on"]
        directory = tmp_path_factory.mktemp("standby18")
        standby = postgres.standby(primary, directory, slot="physical", args=follows)
        execute(primary, "INSERT INTO t VALUES (1), (2), (3)", database=DATABASE)
        run.wait_for_keys(1, 2, 3)
        synced = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE failover"
        nudge = "SELECT pg_logical_emit_message(false, 'nudge', '', true)"
        wait_for(
            "the slot's copy",
            lambda: (execute(primary, nudge), execute(standby, synced))[1] == [(True,)],
        )
        execute(primary, "INSERT INTO t VALUES (4)", database=DATABASE)
        caught_up(primary, standby)
        primary.kill()
        standby.stop()
        # The address follows too early: a copy of a slot can be read from after the promotion.
        promoted = postgres.start(directory, primary.port, version=18, args=follows)
        try:
            wait_for("the promotion to be waited for", lambda: "promoted" in run.reason())
            assert run.status() == "blocked"
            promote(promoted)
            execute(promoted, "INSERT INTO t VALUES (5), (6)", database=DATABASE)
            run.wait_for_keys(4, 5, 6)
            assert run.stop(driving).why == "stopped"
            assert run.position()["timeline"] == 2
            driving = run.start()
            execute(promoted, "INSERT INTO t VALUES (7)", database=DATABASE)
            run.wait_for_keys(7)
            assert run.stop(driving).why == "stopped"
        finally:
            promoted.stop()
        assert sorted(set(run.keys())) == [1, 2, 3, 4, 5, 6, 7]
        (settled,) = run.settled()
        assert settled.state == "done"
        assert (settled.former["timeline"], settled.present["timeline"]) == (1, 2)
    finally:
        primary.stop()


@pytest.mark.long
def test_a_pipeline_fails_with_what_was_lost_and_goes_on_anew(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    primary = postgres.start(tmp_path_factory.mktemp("primary15"))
    try:
        fresh(primary, DATABASE, "CREATE TABLE t (id int PRIMARY KEY)")
        run = FailoverRun(primary, DATABASE, kind="postgres", publication="df", slot="shop")
        driving = run.start()
        directory = tmp_path_factory.mktemp("standby15")
        standby = postgres.standby(primary, directory)
        execute(primary, "INSERT INTO t VALUES (1)", database=DATABASE)
        run.wait_for_keys(1)
        caught_up(primary, standby)
        primary.kill()
        promote(standby)
        standby.stop()
        promoted = postgres.start(directory, primary.port)
        try:
            ended = driving.end()
            assert (ended.why, ended.error_class) == ("failed", "position_lost")
            assert "slot 'shop' does not exist" in ended.reason
            assert f"deltaforge reset {run.name} --confirm {run.name}" in ended.reason
            run.want("stopped")
            pipelines.reset_checkpoint(run.store, run.name, confirm=run.name)
            driving = run.start()
            execute(promoted, "INSERT INTO t VALUES (2)", database=DATABASE)
            run.wait_for_keys(2)
            assert run.stop(driving).why == "stopped"
        finally:
            promoted.stop()
        assert [record.state for record in run.settled()] == ["failed", "done"]
    finally:
        primary.stop()


def test_a_history_says_where_each_timeline_was_left() -> None:
    text = "1\t0/3000110\tno recovery target specified\n\n# a remark\n2\t1A/0\tbefore 5\n"
    assert branches(text) == {1: parse_lsn("0/3000110"), 2: 0x1A << 32}
    assert lsn_text(branches(text)[2]) == "1A/0"
