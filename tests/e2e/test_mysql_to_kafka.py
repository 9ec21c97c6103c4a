"""The main job, without Spark and Airflow around it: a database under load into a real broker."""

import pytest

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from tests.e2e import shop
from tests.e2e.pipeline_run import run_in
from tests.engine.scripted_run import kill

BORDERS = [CrashPoint.SINK_WRITTEN, pytest.param(CrashPoint.CHUNK_WRITTEN, marks=pytest.mark.long)]
"""Where a kill repeats what was delivered. ``tests/engine/test_kills.py`` has all the others, and
``test_snapshot_interrupted.py`` one that leaves a half-copied snapshot."""


@pytest.fixture(params=["mysql", "mariadb"])
def server(request):
    return request.getfixturevalue(f"{request.param}_server")


def test_a_snapshot_and_the_stream_after_it_lose_nothing(tmp_path, server, kafka_server, request):
    name = f"whole_{server.port}"
    run = run_in(tmp_path, server, kafka_server, name)
    with shop.Writers(server, name):
        driver = run.start()
        run.wait_status("running")
        run.wait(lambda: (run.control.progress().events or 0) > 3000)
    shop.settle()
    run.wait_caught_up()
    code = run.stop(driver)

    assert run.judge(each_row_once=True) == []
    assert code == 0


@pytest.mark.parametrize("crash_point", BORDERS, ids=["sink_written", "chunk_written"])
def test_a_kill_under_load_loses_nothing(tmp_path, mysql_server, kafka_server, crash_point):
    name = f"kill_{crash_point.value}"
    run = run_in(tmp_path, mysql_server, kafka_server, name)
    with shop.Writers(mysql_server, name):
        driver = run.start(hold=(crash_point, 3))
        kill(run.wait_held())
        driver.wait()
        driver = run.start()
        run.wait_status("running")
        run.wait(lambda: (run.control.progress().events or 0) > 500)
    shop.settle()
    run.wait_caught_up()
    run.stop(driver)

    assert run.judge() == []
