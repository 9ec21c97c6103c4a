"""Snapshots that are killed half-way, and that lose the log they must meet."""

import time
from collections import Counter

import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from tests.e2e import shop
from tests.e2e.pipeline_run import PATIENCE_S, run_in
from tests.engine.scripted_run import kill
from tests.oracle.mysql_history import new_file
from tests.servers import sql


@pytest.fixture(params=["mysql", pytest.param("mariadb", marks=pytest.mark.long)])
def server(request):
    return request.getfixturevalue(f"{request.param}_server")


def lose_the_log(server):
    """Make the server forget its log up to now."""
    last = new_file(server)
    deadline = time.monotonic() + PATIENCE_S
    # MariaDB keeps a file, and says nothing, until the engine has synced what is in it.
    while sql.execute(server, f"PURGE BINARY LOGS TO '{last}'", "SHOW BINARY LOGS")[0][0] != last:
        assert time.monotonic() < deadline, "the server keeps its log"
        time.sleep(0.2)


@pytest.mark.long
def test_a_killed_snapshot_goes_on_at_the_next_chunk(tmp_path, mysql_server, kafka_server):
    run = run_in(tmp_path, mysql_server, kafka_server, "half_way", parallel=False)
    records = Snapshots(run.store, run.name)
    with shop.Writers(mysql_server, run.name):
        driver = run.start(hold=(CrashPoint.CHUNK_STORED, 5))
        kill(run.wait_held())
        driver.wait()
        before = records.current()
        done = records.done(before.id)
        assert 0 < len(done) < before.chunk_count

        driver = run.start()
        run.wait_status("running")
        run.wait_events(200)
    shop.settle()
    run.wait_caught_up()
    assert run.stop(driver) == 0

    after = records.current()
    assert (after.id, after.start_position) == (before.id, before.start_position)
    assert after.finished_at_ms is not None
    finished = records.done(after.id)
    assert len(finished) == after.chunk_count
    assert {chunk: finished[chunk] for chunk in done} == done
    # Only a chunk that was under way in each table may come twice; none that was done does.
    read = Counter(event.key for event in run.seen() if event.name is None)
    again = Counter(table for (table, _), times in read.items() if times > 1)
    assert all(times <= 2 for times in read.values())
    assert all(rows <= 101 for rows in again.values())
    assert run.judge() == []


def test_a_log_purged_under_a_snapshot_cancels_it(tmp_path, server, kafka_server):
    run = run_in(tmp_path, server, kafka_server, f"purged_{server.port}", parallel=False)
    records = Snapshots(run.store, run.name)
    driver = run.start(hold=(CrashPoint.CHUNK_STORED, 2))
    run.wait_held()
    with shop.Writers(server, run.name) as writers:
        run.wait(lambda: writers.transactions > 20)
    lose_the_log(server)
    run.let_go()
    failed = run.wait_status("failed")

    assert failed.error_class == "position_lost"
    assert "snapshot" in failed.reason
    assert driver.wait(PATIENCE_S) == 4
    lost = records.current()
    assert lost.cancelled
    assert lost.finished_at_ms is None
    assert not run.healthy()

    # The cancelled run's rows no longer meet the log: a new start begins another.
    with shop.Writers(server, run.name):
        driver = run.start()
        run.wait_status("running")
        run.wait_events(200)
    shop.settle()
    run.wait_caught_up()
    assert run.stop(driver) == 0
    assert records.current().id != lost.id
    # Rows deleted in the lost part of the log have no event: consumers of a lost log keep them.
    assert run.judge(tables=False) == []


def test_a_position_purged_while_stopped_is_shown_with_its_remedy(tmp_path, server, kafka_server):
    run = run_in(tmp_path, server, kafka_server, f"stale_{server.port}")
    records = Snapshots(run.store, run.name)
    with shop.Writers(server, run.name):
        driver = run.start()
        run.wait_status("running")
        assert run.stop(driver) == 0
        first = records.current()
        lose_the_log(server)

        driver = run.start()
        failed = run.wait_status("failed")
        assert driver.wait(PATIENCE_S) == 4
        assert failed.error_class == "position_lost"
        assert f"deltaforge reset {run.name} --confirm {run.name}" in failed.reason

        pipelines.ask_to_stop(run.store, run.name)
        pipelines.reset_checkpoint(run.store, run.name, confirm=run.name)
        # What came before stands in a part of the log that no oracle can read any more.
        run.apply(topic=f"{run.name}.anew.${{source.table}}")
        driver = run.start()
        run.wait_status("running")
        run.wait_events(200)
    shop.settle()
    run.wait_caught_up()
    assert run.stop(driver) == 0
    assert records.current().id != first.id
    assert run.judge() == []
