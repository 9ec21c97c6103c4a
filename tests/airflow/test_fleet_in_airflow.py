"""A fleet under a running Airflow: killed, adopted by the next run, left alone by a triggerer."""

import json
import os
import signal
import time

import pytest

from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.fleets import record_name
from tests.e2e.fleet_run import FleetPipeline, FleetRun
from tests.servers import airflow
from tests.servers.process import python_path
from tests.waiting import wait_for

_TRIGGER_BEGINS_S = 10.0
"""A trigger that a triggerer has taken is run a moment later, and only then hears of a kill."""

pytestmark = [pytest.mark.airflow, pytest.mark.long, pytest.mark.timeout(900)]

RECORD = record_name("shops")
DAGS = """
from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_deltaforge.operators.fleet import DeltaForgeFleetOperator

for name, window in {"windowed": timedelta(seconds=60), "pinned": None}.items():
    with DAG(name, schedule=None) as dag:
        DeltaForgeFleetOperator(
            task_id="fleet",
            documents="{{ dag_run.conf['documents'] }}",
            fleet="shops",
            without_spark=True,
            window=window,
            poll_interval=timedelta(seconds=1),
            retries=2,
            retry_delay=timedelta(seconds=1),
        )
    globals()[name] = dag
"""


@pytest.fixture
def run(tmp_path):
    run = FleetRun(tmp_path)
    yield run
    for handle in tmp_path.glob("jobs/df-fleet@*/handle.json"):
        run.backend.stop(json.loads(handle.read_text()), 0)
    run.close()


@pytest.fixture
def running(tmp_path, run, postgres_server):
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "fleets.py").write_text(DAGS)
    store = {"conn_type": "deltaforge", "extra": {"path": f"{tmp_path}/state.db"}}
    environment = {
        "AIRFLOW_CONN_DELTAFORGE_DEFAULT": json.dumps(store),
        "PYTHONPATH": python_path(),
    }
    running = airflow.start(tmp_path, dags=folder, env=environment, metadata=postgres_server)
    try:
        for dag in ("windowed", "pinned"):
            running.rest.wait_for_dag(dag)
            running.rest.unpause(dag)
        yield running
    finally:
        running.stop()


def test_a_fleet_outlives_runs_triggerers_and_its_own_process(run, running):
    shop = FleetPipeline(run, "flowing")
    shop.write()
    rest, conf = running.rest, {"documents": str(run.folder)}
    first = rest.trigger("windowed", conf=conf)
    rest.wait_task("windowed", first, "fleet", {"deferred"})
    run.wait("flowing", "running")
    shop.wait_events()
    former = pid(run)
    os.kill(former, signal.SIGKILL)
    wait_for("the fleet to be started again", lambda: pid(run) != former)
    state = rest.wait_run("windowed", first)
    task = rest.task("windowed", first, "fleet")
    assert (state, task["try_number"]) == ("success", 1), rest.log("windowed", first, "fleet")
    summary = rest.xcom("windowed", first, "fleet")
    assert summary["pipelines"]["flowing"]["status"] == "running"
    assert "flowing: started, generation 1" in rest.log("windowed", first, "fleet")

    second = rest.trigger("pinned", conf=conf)
    rest.wait_task("pinned", second, "fleet", {"deferred"})
    adopted, former = pid(run), triggerer_of(rest, second)
    running.kill("triggerer")
    running.start_again("triggerer")
    shop.wait_events()
    wait_for(
        "the triggerer to watch again", lambda: triggerer_of(rest, second) not in {None, former}
    )
    time.sleep(_TRIGGER_BEGINS_S)
    assert (pid(run), Control(run.store, RECORD).read().generation) == (adopted, 1)

    rest.set_task_state("pinned", second, "fleet", "failed")
    run.wait(RECORD, "stopped")
    assert run.status("flowing").desired == "running"

    third = rest.trigger("pinned", conf=conf)
    rest.wait_task("pinned", third, "fleet", {"deferred"})
    run.wait("flowing", "running")
    assert shop.wait_whole() == []
    shop.shop.close()


def pid(run):
    progress = Control(run.store, RECORD).progress()
    return progress.pid if progress is not None else None


def triggerer_of(rest, run_id):
    """Return which triggerer has the trigger of the task."""
    return (rest.task("pinned", run_id, "fleet").get("triggerer_job") or {}).get("id")
