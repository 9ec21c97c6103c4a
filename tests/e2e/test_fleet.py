"""Many pipelines in one process, or in one Spark application: what happens to one is its own."""

import contextlib
import os
import signal

import pytest

from airflow_provider_deltaforge.cli.exit_codes import RETRY
from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.status import statuses
from tests.e2e.fleet_run import FleetPipeline, FleetRun
from tests.servers import spark
from tests.waiting import PATIENCE_S, wait_for


@pytest.fixture
def fleet_run(tmp_path):
    with contextlib.ExitStack() as ending:

        def begin(*words):
            run = FleetRun(tmp_path, *words)
            ending.callback(run.close)
            return run

        def pipeline(run, name, *more, **settings):
            made = FleetPipeline(run, name, *more, **settings)
            ending.callback(made.shop.close)
            return made

        begin.pipeline = pipeline
        yield begin


def journey(begin, words, sources=("turso", "turso", "turso"), servers=None, sink="file"):
    """Fail, pause, add, replace and stop pipelines beside one that flows; kill all, start again."""
    run = begin(*words)
    flowing, paused, added = (
        begin.pipeline(run, name, source, servers, sink)
        for name, source in zip(("flowing", "paused", "added"), sources, strict=True)
    )
    run.write_broken()
    flowing.write()
    paused.write()
    fleet = run.start()
    failed = run.wait("broken", "failed")
    assert failed.error_class == "fatal", failed
    run.wait("flowing", "running")
    run.wait("paused", "running")

    undisturbed = run.epoch("flowing")
    change_the_others(run, added)
    flowing.wait_events()
    assert run.epoch("flowing") == undisturbed, "the pipeline beside the others was begun again"
    shown = statuses(run.store, run.backend)
    assert {present.name: present.status for present in shown} == {
        "added": "stopped",
        "broken": "failed",
        "flowing": "running",
        "paused": "paused",
    }
    assert_logs_are_apart(run)

    fleet.kill()
    fleet.wait()
    begun_again(run, flowing, added)


def change_the_others(run, added):
    """Pause one pipeline; add another, replace it and take it away."""
    pipelines.pause(run.store, "paused")
    run.wait("paused", "paused")
    added.write()
    run.wait("added", "running")
    added.wait_events()
    added.write(batch=40)
    wait_for("another generation", lambda: run.status("added").generation == 2)
    run.wait("added", "running")
    added.wait_events()
    added.take_away()
    run.wait("added", "stopped")


def begun_again(run, flowing, added):
    """Start a fleet where one was killed: it goes on with each pipeline as it was wanted."""
    events = flowing.events()
    run.wait("flowing", "lost")
    fleet = run.start()
    assert run.wait("flowing", "running").generation == 2
    wait_for("more events", lambda: flowing.events() > events)
    run.wait("paused", "paused")
    pipelines.resume(run.store, "paused")
    run.wait("paused", "running")
    added.write()
    run.wait("added", "running")

    assert run.command("stop", "paused").returncode == 0
    assert fleet.poll() is None, "ended for one of its pipelines"
    assert run.status("paused").status == "stopped"
    for pipeline in (flowing, added):
        assert pipeline.wait_whole() == []
    assert run.stop(fleet) == 0
    for name in ("flowing", "added"):
        present = run.status(name)
        assert (present.status, present.desired) == ("stopped", "running")


def assert_logs_are_apart(run):
    """Each driver's file has its lines, and no other's."""
    for name in ("flowing", "paused", "broken"):
        log = run.backend.logs_tail(run.status(name).handle, 1000)
        assert f"pipeline={name}" in log
        assert all(f"pipeline={name}" in line for line in log.splitlines() if " INFO " in line)


def test_what_happens_to_one_pipeline_does_not_touch_the_others(fleet_run):
    journey(fleet_run, ["--local"])


@pytest.mark.long
@pytest.mark.spark
def test_neither_in_one_spark_application(fleet_run):
    journey(fleet_run, ["--master", "local[6]"])


@pytest.mark.long
@pytest.mark.spark
def test_a_fleet_whose_jvm_is_killed_ends_and_the_next_one_goes_on(fleet_run):
    run = fleet_run("--master", "local[4]")
    shops = [fleet_run.pipeline(run, name) for name in ("one", "two")]
    for shop in shops:
        shop.write()
    fleet = run.start()
    for shop in shops:
        run.wait(shop.name, "running")
        shop.wait_events()

    os.kill(spark.jvm_of(fleet.pid), signal.SIGKILL)

    assert fleet.wait(PATIENCE_S) == RETRY
    assert "start the fleet again" in run.log_of(0).read_text()
    again = run.start()
    for shop in shops:
        run.wait(shop.name, "running")
        assert shop.wait_whole() == []
    assert run.stop(again) == 0


@pytest.mark.long
def test_nor_between_servers_and_kafka(fleet_run, mysql_server, postgres_server, kafka_server):
    servers = {"mysql": mysql_server, "postgres": postgres_server, "kafka": kafka_server}
    journey(fleet_run, ["--local"], ("mysql", "postgres", "turso"), servers, "kafka")


@pytest.mark.long
def test_of_two_fleets_one_drives_a_pipeline_and_the_other_takes_over(fleet_run):
    run = fleet_run("--local")
    shops = [fleet_run.pipeline(run, name) for name in ("one", "two")]
    for shop in shops:
        shop.write()
    first = run.start()
    for shop in shops:
        run.wait(shop.name, "running")
    second = run.start()
    for shop in shops:
        wait_for(
            "the second to wait",
            lambda shop=shop: f"{shop.name}: is running elsewhere" in run.log_of(1).read_text(),
        )
    epochs = [run.epoch(shop.name) for shop in shops]
    for shop in shops:
        shop.wait_events(60)
    assert [run.epoch(shop.name) for shop in shops] == epochs, "two drivers fought for a pipeline"
    first.kill()
    first.wait()
    for shop in shops:
        present = run.wait(shop.name, "running")
        wait_for("the second", lambda shop=shop: run.status(shop.name).handle["pid"] == second.pid)
        assert present.name == shop.name
    for shop in shops:
        assert shop.wait_whole() == []
    assert run.stop(second) == 0
