import asyncio
import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import AccessError
from airflow_provider_deltaforge.hooks import deltaforge
from airflow_provider_deltaforge.hooks.jobs import TriggerArguments
from airflow_provider_deltaforge.operators.preflight import DeltaForgePreflightOperator
from airflow_provider_deltaforge.operators.snapshot import DeltaForgeSnapshotOperator
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.triggers.polling_trigger import settled
from tests.airflow.bench import context, deferred, fired, travelled
from tests.control.bench import DOCUMENT, fake_driver, wait_until

pytestmark = pytest.mark.usefixtures("connection")


def stream(document, **more):
    more = {"poll_interval": timedelta(seconds=0.1), **more}
    return DeltaForgeStreamOperator(task_id="stream", document=document, **more)


def test_the_stream_starts_once_and_the_next_run_adopts_it(document, store, backend):
    first = context()
    deferred(lambda: stream(document).execute(first))
    wait_until(lambda: status(store, "orders", backend).status == "running")
    second = context()
    trigger = deferred(lambda: stream(document).execute(second))

    assert first["pushed"]["driver"]["pid"] == second["pushed"]["driver"]["pid"]
    assert trigger.watched.generation == 1


def test_a_task_that_begins_while_the_store_is_away_waits_and_begins(
    document, store, backend, store_away
):
    with store_away():
        waiting = travelled(deferred(lambda: stream(document).execute(context())))
        assert waiting.look()[0] is None
    event = fired(waiting)
    trigger = deferred(lambda: stream(document).execute_complete(context(), event))

    assert trigger.watched.generation == 1
    wait_until(lambda: status(store, "orders", backend).status == "running")


def test_a_store_that_comes_back_and_refuses_us_is_reported_by_the_task(
    document, store_away, monkeypatch
):
    with store_away():
        trigger = deferred(lambda: stream(document).execute(context()))

    def refuses(_):
        raise AccessError("password refused")

    monkeypatch.setattr(deltaforge.DeltaForgeHook, "store", refuses)
    event, _ = travelled(trigger).look()

    assert event.payload == {"event": "store_back"}


def test_a_stream_is_watched_on_while_the_store_refuses_us_for_a_moment(
    document, store, backend, monkeypatch
):
    watching = travelled(deferred(lambda: stream(document).execute(context())))
    real, refused = deltaforge.DeltaForgeHook.store, []

    def refuses_twice(hook, **more):
        if len(refused) < 2:
            refused.append(hook)
            raise AccessError("password refused")
        return real(hook, **more)

    monkeypatch.setattr(deltaforge.DeltaForgeHook, "store", refuses_twice)
    pipelines.stop(store, "orders", backend)
    assert fired(watching)["event"] == "ended"
    assert len(refused) == 2


def test_a_store_that_goes_on_to_refuse_us_fails_the_task_with_the_reason(
    document, store, backend, monkeypatch
):
    watching = travelled(deferred(lambda: stream(document).execute(context())))
    watching.refusal_patience_s = watching.poll_s = 0.1

    def refuses(hook, **more):
        raise AccessError("password refused")

    with monkeypatch.context() as patches:
        patches.setattr(deltaforge.DeltaForgeHook, "store", refuses)
        with pytest.raises(AccessError, match="password refused"):
            fired(watching)
    assert status(store, "orders", backend).alive


def test_a_resumed_task_watches_on_while_the_store_is_away(document, store, backend, store_away):
    trigger = deferred(lambda: stream(document).execute(context()))
    wait_until(lambda: status(store, "orders", backend).status == "running")
    event = {**trigger.watch, "event": "window_over"}
    with store_away():
        again = travelled(deferred(lambda: stream(document).execute_complete(context(), event)))
        assert again.look()[0] is None

    assert again.watch == trigger.watch
    assert again.look()[0] is None
    assert stream(document).execute_complete({}, event)["status"] == "running"


def test_a_window_ends_with_success_and_without_stopping_the_stream(
    document,
    store,
    backend,
):

    operator = stream(document, window=timedelta(seconds=1))
    trigger = deferred(lambda: operator.execute(context()))
    event = fired(travelled(trigger))
    summary = stream(document).execute_complete({}, event)

    assert event["event"] == "window_over"
    assert summary["status"] == "running"
    assert status(store, "orders", backend).status == "running"


def test_no_success_over_a_stream_that_died_after_the_event(document, store, backend):
    trigger = deferred(lambda: stream(document).execute(context()))
    wait_until(lambda: status(store, "orders", backend).status == "running")
    event = {**trigger.watch, "event": "window_over"}
    os.killpg(Control(store, "orders").read().handle["pid"], signal.SIGKILL)
    wait_until(lambda: status(store, "orders", backend).status == "lost")

    with pytest.raises(Exception, match="is lost"):
        stream(document).execute_complete({}, event)


def test_a_killed_driver_is_restarted_without_an_airflow_retry(document, store, backend):
    trigger = deferred(lambda: stream(document).execute(context()))
    wait_until(lambda: status(store, "orders", backend).status == "running")
    former = Control(store, "orders").read().handle["pid"]
    os.killpg(former, signal.SIGKILL)
    event = fired(travelled(trigger))
    assert event["event"] == "ended"
    waiting = deferred(lambda: stream(document).execute_complete({}, event))
    event = fired(travelled(waiting))
    assert event["event"] == "resubmit"
    deferred(lambda: stream(document).execute_complete({}, event))

    wait_until(lambda: status(store, "orders", backend).status == "running")
    record = Control(store, "orders").read()
    assert record.handle["pid"] != former
    assert (record.generation, len(record.restarts)) == (1, 1)


def test_a_fatal_error_fails_at_once_with_the_reason(document, monkeypatch):
    monkeypatch.setenv("FAKE_DRIVER", "fail:position_lost")
    trigger = deferred(lambda: stream(document).execute(context()))
    event = fired(travelled(trigger))

    with pytest.raises(AirflowFailException, match=r"position_lost.*binlog\.000002 is gone"):
        stream(document).execute_complete({}, event)


def test_the_end_of_the_log_is_shown_without_its_secrets(document, store, backend, monkeypatch):
    monkeypatch.setenv("FAKE_DRIVER", "fail:access")
    trigger = deferred(lambda: stream(document).execute(context()))
    event = fired(travelled(trigger))
    directory = Path(Control(store, "orders").read().handle["directory"])
    with (directory / "driver.log").open("a") as log:
        log.write("login at mysql://df:planted-secret@db/shop was refused\n")

    with pytest.raises(AirflowFailException, match=r"mysql://df:\*\*\*@db/shop") as caught:
        stream(document).execute_complete(context(), event)
    assert "planted-secret" not in str(caught.value)


def test_a_watch_of_another_release_is_understood(document):
    trigger = deferred(lambda: stream(document, window=None).execute(context()))
    told = {**trigger.watch, "of_the_next_release": 1}
    del told["window_end_ms"]
    trigger.watch = told

    assert travelled(trigger).watched.window_end_ms is None
    assert TriggerArguments.of({"event": "ended", **told}).pipeline == "orders"


def test_a_stream_stopped_by_a_person_is_skipped_not_green(document, store, backend):
    trigger = deferred(lambda: stream(document).execute(context()))
    wait_until(lambda: status(store, "orders", backend).status == "running")
    pipelines.stop(store, "orders", backend)
    event = fired(travelled(trigger))

    with pytest.raises(AirflowSkipException, match="stopped by request"):
        stream(document).execute_complete({}, event)


def test_a_user_who_kills_the_task_stops_the_stream(document, store, backend):
    trigger = deferred(lambda: stream(document).execute(context()))
    wait_until(lambda: status(store, "orders", backend).status == "running")
    asyncio.run(travelled(trigger).on_kill())

    assert status(store, "orders", backend).status == "stopped"


def test_on_kill_survives_the_cancellation_of_its_coroutine(document, store, backend):
    trigger = travelled(deferred(lambda: stream(document).execute(context())))
    wait_until(lambda: status(store, "orders", backend).status == "running")

    async def cut_off():
        task = asyncio.create_task(trigger.on_kill())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.sleep(0)

    asyncio.run(cut_off())
    wait_until(lambda: status(store, "orders", backend).status == "stopped")


def test_clearing_the_task_leaves_the_adopted_stream_alone(document, store, backend):
    cleared = deferred(lambda: stream(document).execute(context()))
    wait_until(lambda: status(store, "orders", backend).status == "running")
    deferred(lambda: stream(document).execute(context(try_number=2)))
    asyncio.run(travelled(cleared).on_kill())

    assert status(store, "orders", backend).status == "running"


def test_on_kill_leave_leaves(document, store, backend):
    trigger = deferred(lambda: stream(document, on_kill="leave").execute(context()))
    wait_until(lambda: status(store, "orders", backend).status == "running")
    asyncio.run(travelled(trigger).on_kill())

    assert status(store, "orders", backend).status == "running"


def test_an_unknown_kill_policy_is_refused_when_the_dag_is_parsed(document):
    with pytest.raises(ValueError, match="'stop' or 'leave'"):
        stream(document, on_kill="maybe")


def test_a_store_that_is_away_fires_nothing(document, monkeypatch):
    trigger = travelled(deferred(lambda: stream(document).execute(context())))

    def away(_):
        from airflow_provider_deltaforge.errors import RetryableError

        raise RetryableError("connection refused")

    monkeypatch.setattr(deltaforge.DeltaForgeHook, "store", away)
    event, words = trigger.look()

    assert event is None
    assert "away" in words


def test_a_volume_that_is_away_is_no_pipeline_that_was_deleted(document, store):
    trigger = travelled(deferred(lambda: stream(document).execute(context())))
    home = Path(deltaforge.DeltaForgeHook().store_dsn().removeprefix("sqlite:///")).parent
    kept = home.with_name("kept")
    home.rename(kept)
    home.mkdir()
    try:
        event, words = trigger.look()
    finally:
        empty = list(home.iterdir())
        home.rmdir()
        kept.rename(home)

    assert event is None
    assert "away" in words
    assert not empty
    assert trigger.look()[0] is None


def preflight(document, **more):
    return DeltaForgePreflightOperator(task_id="preflight", document=document, **more)


@pytest.fixture
def verdict(monkeypatch):
    from airflow_provider_deltaforge.sources.contract import Finding
    from airflow_provider_deltaforge.sources.scripted import ScriptedSource

    def say(word):
        findings = [Finding("retention", word, "the log is kept for 1 h", {"hours": 1})]
        monkeypatch.setattr(ScriptedSource, "preflight", lambda _: findings)

    return say


def test_preflight_returns_its_findings(document, verdict):
    verdict("high_risk")

    assert preflight(document).execute(context()) == [
        {
            "check": "retention",
            "verdict": "high_risk",
            "message": "the log is kept for 1 h",
            "data": {"hours": 1},
        }
    ]


@pytest.mark.parametrize(
    ("word", "fail_on"), [("fail", "fail"), ("fail", "warn"), ("high_risk", "high_risk")]
)
def test_preflight_fails_from_its_threshold_on(document, verdict, word, fail_on):
    verdict(word)

    with pytest.raises(AirflowFailException, match="retention: the log is kept"):
        preflight(document, fail_on=fail_on).execute(context())


def test_preflight_refuses_a_wrong_document_without_a_retry(document, tmp_path):
    (tmp_path / "orders.yaml").write_text(DOCUMENT.replace("rows:", "rwos:"))

    with pytest.raises(AirflowFailException, match=r"spec\.source\.config\.rwos"):
        preflight(document).execute(context())


def test_a_connection_reaches_the_driver_by_environment_only(document, monkeypatch):
    monkeypatch.delenv("OUTPUT")
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", "file:///secret-place")
    operator = stream(document, connections={"OUTPUT": "place"})
    job = operator.pipeline_task().job("orders", 1, "stream_job.py")

    assert "secret-place" in job.environment["OUTPUT"]
    assert "secret-place" not in repr(job)
    assert "secret-place" not in " ".join(fake_driver(job))
    trigger = deferred(lambda: operator.execute(context()))
    assert "secret-place" not in json.dumps(trigger.serialize()[1])


def test_a_document_that_names_another_store_than_the_connection_is_refused(document):
    path = Path(document)
    path.write_text(path.read_text() + "  storage: {backend: sqlite, path: /data/other.db}\n")
    with pytest.raises(AirflowFailException, match=r"spec\.storage.*other\.db"):
        stream(document).execute(context())


@pytest.mark.parametrize("operator", [DeltaForgeStreamOperator, DeltaForgeSnapshotOperator])
@pytest.mark.parametrize(
    ("master", "said"),
    [
        ("yarn", "does not launch drivers on YARN"),
        ("local[0]", "local[4]"),
        ("spark://host:7077", "which every executor can reach"),  # The store is a file.
    ],
)
def test_a_master_that_does_not_work_is_refused_before_anything_starts(
    operator, master, said, document, store, backend
):
    task = operator(task_id="t", document=document, master=master)
    with pytest.raises(AirflowFailException) as refused:
        task.execute(context())
    assert said in str(refused.value)
    assert Control(store, "orders").read() is None


def test_connections_are_templates(document):
    operator = stream(document, connections={"MYSQL_DSN": "{{ params.place }}_mysql"})
    operator.render_template_fields({"params": {"place": "berlin"}})

    assert operator.pipeline_task().connections == {"MYSQL_DSN": "berlin_mysql"}


@pytest.mark.parametrize(("settle", "least_s"), [("0.3", 0.25), ("0", 0.0)])
def test_a_trigger_lives_as_long_as_the_scheduler_needs(monkeypatch, settle, least_s):
    monkeypatch.setenv("AIRFLOW__DELTAFORGE__TRIGGER_SETTLE_SECONDS", settle)
    began_s = time.monotonic()
    asyncio.run(settled(began_s))

    assert least_s <= time.monotonic() - began_s < least_s + 60
