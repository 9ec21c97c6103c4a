"""A chunk that no sink takes at once is split, so that a kill between its parts repeats no row."""

from collections import Counter

import pytest

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from tests.e2e.pipeline_run import PipelineRun
from tests.engine.scripted_run import kill
from tests.servers import sql
from tests.sources.mysql.reading import fresh_database

ROWS = 44
WIDE = "REPEAT('x', 400000)"


@pytest.mark.long
def test_between_the_parts_of_a_large_chunk_a_kill_repeats_no_row(
    mysql_server, kafka_server, tmp_path
):
    values = ", ".join(f"({row}, {WIDE})" for row in range(ROWS))
    name = "large_chunks"
    fresh_database(
        mysql_server,
        name,
        "CREATE TABLE t (id int PRIMARY KEY, v mediumtext)",
        f"INSERT INTO t VALUES {values}",
    )
    run = PipelineRun(
        tmp_path, name, mysql_server, kafka_server.dsn(), name, ["t"], sink={"exactly_once": True}
    )
    driver = run.start(hold=(CrashPoint.CHUNK_RENDERED, 2))
    kill(run.wait_held())
    driver.wait()
    changes = "UPDATE t SET v = 'short' WHERE id IN (0, 43)", "DELETE FROM t WHERE id IN (1, 42)"
    sql.execute(mysql_server, *changes, "INSERT INTO t VALUES (100, 'new')", database=name)
    driver = run.start()
    run.wait_caught_up()
    assert run.stop(driver) == 0

    copies = Counter(event.key[1] for event in run.seen() if event.name is None)
    assert copies == dict.fromkeys([*range(42), 43, 100], 1)
    assert run.judge(at_least=5, each_row_once=True) == []
    progress = Snapshots(run.store, name).progress()
    assert progress["chunks_done"] == progress["chunks"] > 2
