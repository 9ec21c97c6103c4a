"""A fleet under an Airflow task: real processes, which a test kills and a next task adopts."""

import json
import os
import signal
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.fleet_application import fleet_summary, named_after
from airflow_provider_deltaforge.control.launching.contract import JobState
from airflow_provider_deltaforge.control.launching.local import LocalBackend
from airflow_provider_deltaforge.operators.fleet import DeltaForgeFleetOperator
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.fleets import read_contents, record_name
from tests.airflow.bench import airflow_says, context, deferred, fired, travelled
from tests.e2e.fleet_run import FleetPipeline, FleetRun
from tests.servers import spark
from tests.servers.process import family
from tests.waiting import wait_for

RECORD = record_name("shops")

IDLE = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {name: NAME, tenant: tests}
spec:
  source:
    type: scripted
    config: {id: NAME-source, transactions: 3, rows: 3}
  sinks: [{type: file, config: {id: out, path: 'PLACE/NAME.jsonl'}}]
"""


class Task:
    """The tasks of a test, and the fleet that they supervise."""

    def __init__(self, run):
        self.run = run
        self.shops = []

    def operator(self, **more):
        asked = {
            "documents": str(self.run.folder),
            "fleet": "shops",
            "without_spark": True,
            "poll_interval": timedelta(seconds=0.1),
            **more,
        }
        return DeltaForgeFleetOperator(task_id="fleet", **asked)

    def begin(self, **more):
        """Execute the task; return its context and its trigger, as a triggerer has it."""
        told = context()
        trigger = travelled(deferred(lambda: self.operator(**more).execute(told)))
        trigger.task_instance = told["ti"]
        return told, trigger

    def shop(self, name):
        shop = FleetPipeline(self.run, name)
        self.shops.append(shop)
        shop.write()
        return shop

    def idle(self, name):
        text = IDLE.replace("NAME", name).replace("PLACE", str(self.run.directory))
        (self.run.folder / f"{name}.yaml").write_text(text)

    @property
    def record(self):
        return Control(self.run.store, RECORD).read()

    @property
    def pid(self):
        """Return the process that is the fleet: its leader is a shell."""
        return Control(self.run.store, RECORD).progress().pid

    def wait(self, word="running", name=RECORD):
        return self.run.wait(name, word)

    def wait_failed(self, name):
        wait_for(
            f"the fleet to give {name} up",
            lambda: name in fleet_summary(self.run.store, RECORD, self.run.backend)["failed"],
        )

    def restarted(self, trigger, **more):
        """Go on as Airflow does after the fleet died; return the trigger that watches on."""
        event = fired(trigger)
        assert event["event"] == "ended", event
        waiting = travelled(
            deferred(lambda: self.operator(**more).execute_complete(context(), event))
        )
        event = fired(waiting)
        assert event["event"] == "resubmit"
        return travelled(deferred(lambda: self.operator(**more).execute_complete(context(), event)))

    def log(self):
        return "\n".join(
            file.read_text(errors="replace")[-6000:]
            for file in sorted(self.run.directory.glob("jobs/df-fleet@*/driver.log"))
        )


@pytest.fixture
def task(tmp_path, monkeypatch):
    run = FleetRun(tmp_path)
    extra = {"path": str(tmp_path / "state.db")}
    value = json.dumps({"conn_type": "deltaforge", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", value)
    monkeypatch.setenv("AIRFLOW__DELTAFORGE__KILL_GRACE_SECONDS", "0.2")
    task = Task(run)
    yield task
    for handle in tmp_path.glob("jobs/df-fleet@*/handle.json"):
        run.backend.stop(json.loads(handle.read_text()), 0)
    for shop in task.shops:
        shop.shop.close()
    run.close()


def test_a_fleet_starts_once_and_the_next_run_adopts_it(task):
    shop = task.shop("flowing")
    first, trigger = task.begin()
    task.wait("running", "flowing")
    epoch = task.run.epoch("flowing")
    second, watching = task.begin()

    assert first["pushed"]["driver"]["pid"] == second["pushed"]["driver"]["pid"]
    assert fired(trigger)["event"] == "taken_over"
    with pytest.raises(AirflowFailException, match="taken over by airflow:"):
        task.operator().execute_complete(first, fired(trigger))
    shop.wait_events()
    assert task.run.epoch("flowing") == epoch, "begun again by the second run"
    assert watching.watched.generation == 1


def test_a_window_ends_with_how_each_pipeline_is_and_the_fleet_goes_on(task):
    task.idle("still")
    task.run.write_broken()
    (task.run.folder / "wrong.yaml").write_text("apiVersion: deltaforge/v1\nkind: Nothing\n")
    _, trigger = task.begin()
    task.wait("running", "still")
    task.wait_failed("broken")
    event = {**trigger.watch, "event": "window_over"}
    summary = task.operator().execute_complete(context(), event)

    assert summary["status"] == "running"
    assert summary["pipelines"]["still"]["status"] == "running"
    assert summary["pipelines"]["broken"]["error_class"] == "fatal"
    assert summary["failed"] == ["broken"]
    assert list(summary["troubles"]) == [str(task.run.folder / "wrong.yaml")]
    assert json.loads(json.dumps(summary)) == summary
    wait_for("the reason", lambda: "failed: broken" in (task.run.status(RECORD).reason or ""))

    told = context()
    with pytest.raises(AirflowFailException, match=r"broken: .*wrong\.yaml: "):
        task.operator(fail_on="pipeline").execute_complete(told, event)
    assert told["pushed"]["summary"]["failed"] == ["broken"]
    assert task.run.status(RECORD).status == task.run.status("still").status == "running"


def test_what_the_fleet_says_is_in_the_log_of_the_task(task):
    task.idle("still")
    _, trigger = task.begin()
    task.wait("running", "still")
    lines = []

    def shown():
        lines.extend(trigger._driver_log.new_lines(task.run.store))
        return any("still: started, generation 1" in line for line in lines)

    wait_for("the fleet's line", shown)
    assert not any("pipeline=still" in line for line in lines), "each pipeline has its own log"


@pytest.mark.parametrize("victim", ["fleet", "session"])
def test_a_killed_fleet_is_restarted_without_an_airflow_retry(task, victim):
    shop = task.shop("flowing")
    _, trigger = task.begin()
    task.wait("running", "flowing")
    shop.wait_events()
    former = task.pid
    if victim == "fleet":
        os.kill(former, signal.SIGKILL)
    else:
        os.killpg(task.record.handle["pid"], signal.SIGKILL)
    watching = task.restarted(trigger)

    wait_for("another process", lambda: task.pid != former)
    task.wait("running", "flowing")
    assert watching.watched.generation == task.record.generation == 1
    assert len(task.record.restarts) == 1
    assert shop.wait_whole() == []


def test_a_fleet_that_is_ended_by_somebody_else_comes_back(task):
    task.idle("still")
    _, trigger = task.begin()
    task.wait("running", "still")
    os.kill(task.pid, signal.SIGTERM)
    task.restarted(trigger)

    assert task.wait("running", "still").generation == 2


def test_the_task_fails_when_the_restarts_are_spent_and_shows_the_log(task):
    task.idle("still")
    _, trigger = task.begin(restarts_max=0)
    task.wait("running", "still")
    os.kill(task.pid, signal.SIGKILL)
    event = fired(trigger)

    with pytest.raises(AirflowFailException, match="0 restarts") as caught:
        task.operator(restarts_max=0).execute_complete(context(), event)
    assert "still: started" in str(caught.value)


def test_a_task_that_a_user_ends_drains_the_fleet(task, monkeypatch):
    shop = task.shop("flowing")
    _, trigger = task.begin()
    task.wait("running", "flowing")
    shop.wait_events()
    airflow_says(monkeypatch, "failed")

    trigger.stop_if_still_owner()

    assert task.run.status(RECORD).status == "stopped", task.log()
    assert task.run.backend.status(task.record.handle).exit_code == 0, task.log()
    present = task.run.status("flowing")
    assert (present.status, present.desired) == ("stopped", "running")
    task.begin()
    task.wait("running", "flowing")
    assert shop.wait_whole() == []


def test_a_person_stops_the_fleet_and_its_pipelines_by_name(task):
    task.idle("still")
    task.idle("other")
    _, trigger = task.begin()
    task.wait("running", "still")
    task.wait("running", "other")
    task.wait("running")
    epoch = task.run.epoch("other")

    assert task.run.command("stop", "still").returncode == 0
    assert task.run.status("still").status == "stopped"
    assert task.run.status("other").status == task.run.status(RECORD).status == "running"
    assert task.run.epoch("other") == epoch
    refused = task.run.command("pause", RECORD)
    assert refused.returncode == 2
    assert "pause and resume its pipelines" in refused.stderr
    assert task.run.command("status", RECORD).returncode == 0

    assert task.run.command("stop", RECORD).returncode == 0
    assert fired(trigger)["event"] == "ended"
    with pytest.raises(AirflowSkipException, match="stopped by request"):
        task.operator().execute_complete(context(), fired(trigger))

    assert task.run.command("delete", RECORD, "--confirm", RECORD).returncode == 0
    assert task.record is None
    assert read_contents(task.run.store, RECORD).pipelines == []


def test_a_task_killed_before_it_kept_the_handle_leaves_no_second_fleet(task, monkeypatch):
    shop = task.shop("flowing")
    submit = LocalBackend.submit

    def killed_after(backend, job):
        submit(backend, job)
        raise KeyboardInterrupt

    with monkeypatch.context() as patches:
        patches.setattr(LocalBackend, "submit", killed_after)
        with pytest.raises(KeyboardInterrupt):
            task.operator().execute(context())
    assert task.record.handle is None
    task.wait("running", "flowing")
    orphan = task.pid

    _, trigger = task.begin()
    assert trigger.watched.generation == 2
    wait_for("the orphan to end by itself", lambda: not psutil.pid_exists(orphan))
    wait_for("the second fleet", lambda: task.run.status("flowing").generation == 2)
    task.wait("running", "flowing")
    assert task.pid != orphan
    assert shop.wait_whole() == []


@pytest.mark.parametrize("other", ["documents", "connections"])
def test_a_task_with_other_arguments_replaces_the_fleet_of_its_name(task, monkeypatch, other):
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", "file:///place")
    task.idle("still")
    task.idle("other")
    asked = {
        "documents": [str(task.run.folder / "still.yaml")],
        "connections": {"PLACE": "place"},
    }
    first, _ = task.begin()
    task.wait("running", "other")
    second, trigger = task.begin(**{other: asked[other]})

    assert trigger.watched.generation == 2
    assert task.run.backend.status(first["pushed"]["driver"]).state is JobState.ENDED
    wait_for("the second", lambda: task.run.status("still").generation == 2)
    if other == "documents":
        assert task.run.status("other").status == "stopped"
    assert second["pushed"]["driver"]["pid"] != first["pushed"]["driver"]["pid"]


def test_the_same_documents_have_the_same_fleet(tmp_path):
    folder, other = tmp_path / "Pipelines of 2026", tmp_path / "others"

    assert named_after([folder]) == named_after([folder])
    assert named_after([folder]).startswith("Pipelines-of-2026-")
    assert named_after([folder]) != named_after([other]) != named_after([other, folder])


@pytest.mark.parametrize("backend", ["standalone", "yarn", "kubernetes"])
@pytest.mark.parametrize("by", ["operator", "connection"])
def test_a_backend_that_takes_no_documents_along_is_refused(task, monkeypatch, backend, by):
    task.idle("still")
    more = {"launch_backend": backend}
    if by == "connection":
        extra = {"path": str(task.run.directory / "state.db"), **more}
        value = json.dumps({"conn_type": "deltaforge", "extra": extra})
        monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", value)
        more = {}

    with pytest.raises(AirflowFailException, match=f"launch_backend: '{backend}' .*'local'"):
        task.operator(**more).execute(context())
    assert task.record is None


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"documents": "/nowhere/at-all"}, "documents: /nowhere/at-all is not there"),
        ({"documents": []}, "documents: name a folder"),
        ({"documents": "kind: Pipeline\nspec: {}\n"}, "documents: a fleet reads files"),
        ({"documents": [{"kind": "Pipeline"}]}, "documents: a fleet reads files"),
        ({"fleet": "a/b"}, "fleet: 'a/b' is no name"),
        ({"master": "mesos://host:5050", "without_spark": False}, "mesos://"),
        ({"master": "spark://host:7077", "without_spark": False}, "a file of this host"),
    ],
)
def test_what_no_fleet_can_be_started_with_is_refused(task, more, reason):
    with pytest.raises(AirflowFailException, match=reason):
        task.operator(**more).execute(context())
    assert not list(task.run.directory.glob("jobs/*"))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"fail_on": "never"}, "fail_on must be"),
        ({"fail_on": "pipeline", "window": None}, "fail_on: 'pipeline'"),
        ({"on_kill": "restart"}, "on_kill must be"),
        ({"without_spark": True, "spark_conn_id": "spark"}, "without_spark: leave"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(more, reason):
    with pytest.raises(ValueError, match=reason):
        DeltaForgeFleetOperator(task_id="fleet", documents="/etc/pipelines", **more)


def test_secrets_are_in_the_environment_of_the_fleet_and_nowhere_else(task, monkeypatch):
    secret = "planted-secret-5f2c"
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", f"mysql://df:{secret}@127.0.0.1:9/shop")
    monkeypatch.setenv("DELTAFORGE_LOCAL", "true")
    task.idle("still")
    text = (task.run.folder / "still.yaml").read_text()
    away = text.replace("still", "away").replace(
        "type: scripted\n    config: {id: away-source, transactions: 3, rows: 3}",
        "type: mysql\n    config: {id: away-source, dsn: '${SHOP_DSN}', tables: ['shop.*']}",
    )
    (task.run.folder / "away.yaml").write_text(away)
    told, trigger = task.begin(connections={"SHOP_DSN": "place"})
    task.wait("running", "still")
    wait_for("the other to try", lambda: task.run.status("away").reason)
    wait_for("a heartbeat", lambda: "away" in json.dumps(fleet_summary_of(task)))

    environment = Path(f"/proc/{task.pid}/environ").read_bytes().decode()
    assert f"SHOP_DSN=mysql://df:{secret}" in environment
    shown = [json.dumps(told["pushed"]), json.dumps(trigger.serialize()[1])]
    shown += [json.dumps(fleet_summary_of(task)), task.log()]
    shown += [" ".join(psutil.Process(pid).cmdline()) for pid in family(task.record.handle["pid"])]
    operator = task.operator(connections={"SHOP_DSN": "place"})
    shown += [repr(getattr(operator, name)) for name in operator.template_fields]
    assert not any(secret in text for text in shown)
    holding = [
        str(file)
        for file in task.run.directory.rglob("*")
        if file.is_file() and secret.encode() in file.read_bytes()
    ]
    assert holding == []


def fleet_summary_of(task):
    return fleet_summary(task.run.store, RECORD, task.run.backend)


def test_a_pipeline_that_is_paused_is_kept_and_shown(task):
    task.idle("still")
    _, trigger = task.begin()
    task.wait("running", "still")
    pipelines.pause(task.run.store, "still")
    task.wait("paused", "still")
    task.wait("running")
    event = {**trigger.watch, "event": "window_over"}
    summary = task.operator(fail_on="pipeline").execute_complete(context(), event)

    assert summary["pipelines"]["still"]["status"] == "paused"


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("victim", ["jvm", "fleet"])
def test_a_fleet_on_spark_that_is_killed_comes_back(task, victim):
    shops = [task.shop(name) for name in ("one", "two")]
    on_spark = {"without_spark": False, "master": "local[4]"}
    _, trigger = task.begin(**on_spark)
    for shop in shops:
        task.wait("running", shop.name)
        shop.wait_events()
    former = task.pid
    jvm = spark.jvm_of(former)
    os.kill(jvm if victim == "jvm" else former, signal.SIGKILL)
    task.restarted(trigger, **on_spark)

    wait_for("another process", lambda: task.pid != former)
    for shop in shops:
        task.wait("running", shop.name)
        assert shop.wait_whole() == []
    wait_for("Spark's JVM to end", lambda: not psutil.pid_exists(jvm))
