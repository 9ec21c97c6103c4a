"""PostgreSQL under load into a real broker: every change arrives, in order, and nothing else."""

import pytest

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from tests.e2e import postgres_shop as shop
from tests.e2e.postgres_run import run_in
from tests.engine.scripted_run import kill


# The kills at every border run on 15.
@pytest.fixture(params=[pytest.param("postgres", marks=pytest.mark.long), "postgres18"])
def server(request):
    return request.getfixturevalue(f"{request.param}_server")


def test_a_snapshot_and_the_stream_after_it_lose_nothing(tmp_path, server, kafka_server):
    with run_in(tmp_path, server, kafka_server, f"whole_{server.port}") as run:
        with shop.Writers(server, run.name):
            driver = run.start()
            run.wait_status("running")
        with shop.Writers(server, run.name):
            run.wait_events(200)
            shop.write_much(server, run.name, 10_000)
            run.wait_events(10_000)
            assert run.stop(driver) == 0

            driver = run.start()
            run.wait_status("running")
            run.wait_events(200)
        run.wait_caught_up()
        assert run.stop(driver) == 0

        assert run.judge(at_least=10_500, each_row_once=True) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "master",
    [None, pytest.param("local[2]", marks=pytest.mark.spark)],
    ids=["process", "spark"],
)
def test_a_kill_in_a_large_transaction_loses_nothing(
    tmp_path, postgres_server, kafka_server, master
):
    name = f"large_kill_{'spark' if master else 'process'}"
    with run_in(tmp_path, postgres_server, kafka_server, name, master=master) as run:
        with shop.Writers(postgres_server, name):
            driver = run.start()
            run.wait_status("running")
            assert run.stop(driver) == 0
        with shop.Writers(postgres_server, name):
            driver = run.start(hold=(CrashPoint.SINK_WRITTEN, 6))
            run.wait_status("running")
            shop.write_much(postgres_server, name, 10_000)
            kill(run.wait_held())
            if master is None:
                driver.wait()
                driver = run.start()
            # On Spark it was the worker: the driver goes on with another one.
            run.wait_status("running")
            run.wait_events(200)
        run.wait_caught_up()
        assert run.stop(driver) == 0

        assert run.judge(at_least=10_200) == []
