import threading
import time

import pytest

from airflow_provider_deltaforge.control import pipelines, snapshots, starting
from airflow_provider_deltaforge.control.attend import Attendance, attend
from airflow_provider_deltaforge.control.launching.contract import JobState, JobStatus
from airflow_provider_deltaforge.control.status import judge_status, status, statuses
from airflow_provider_deltaforge.control.supervise import RestartBudget
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control, ControlRecord
from airflow_provider_deltaforge.storage.records.heartbeats import LastHeard
from airflow_provider_deltaforge.storage.records.stats import SinkProgress
from tests.control.bench import DOCUMENT, job_of, wait_until
from tests.control.driver import progress

SECRET = "hunter2-very-secret"


@pytest.fixture
def applied(store):
    pipelines.apply(store, DOCUMENT)
    return store


def is_now(store, backend, word):
    return lambda: status(store, "orders", backend).status == word


def test_a_document_is_kept_unexpanded(store, monkeypatch):
    monkeypatch.setenv("OUTPUT", f"/tmp/{SECRET}")
    pipelines.apply(store, DOCUMENT)

    assert Control(store, "orders").document() == DOCUMENT
    assert status(store, "orders").status == "pending"


def test_no_secret_reaches_the_store_the_command_line_or_the_log(
    applied, dsn, backend, tmp_path, monkeypatch
):
    import psutil

    monkeypatch.setenv("OUTPUT", f"/tmp/{SECRET}")
    started = starting.start(applied, job_of(dsn), backend, "me")
    wait_until(is_now(applied, backend, "running"))
    leader = psutil.Process(started.handle["pid"])
    words = [word for one in (leader, *leader.children(recursive=True)) for word in one.cmdline()]

    assert not [word for word in words if SECRET in word]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


def test_a_second_start_adopts_the_running_driver(applied, dsn, backend):
    first = starting.start(applied, job_of(dsn), backend, "first")
    wait_until(is_now(applied, backend, "running"))
    second = starting.start(applied, job_of(dsn), backend, "second")

    assert (first.adopted, second.adopted) == (False, True)
    assert second.handle["pid"] == first.handle["pid"]
    assert second.generation == first.generation == 1
    assert Control(applied, "orders").read().owner == "second"


def test_a_changed_document_starts_a_new_generation_after_the_old_one_drained(
    applied, dsn, backend
):
    first = starting.start(applied, job_of(dsn), backend, "me")
    wait_until(is_now(applied, backend, "running"))
    pipelines.apply(applied, DOCUMENT.replace("rows: 3", "rows: 4"))
    second = starting.start(applied, job_of(dsn), backend, "me")

    assert second.generation == 2
    assert not second.adopted
    assert backend.status(first.handle).state is JobState.ENDED
    assert backend.status(first.handle).exit_code == 0
    wait_until(is_now(applied, backend, "running"))


def test_a_reformatted_document_is_the_same_document(applied, dsn, backend):
    starting.start(applied, job_of(dsn), backend, "me")
    wait_until(is_now(applied, backend, "running"))
    pipelines.apply(applied, "# a comment\n" + DOCUMENT)

    assert starting.start(applied, job_of(dsn), backend, "me").adopted


def test_starts_at_the_same_moment_leave_one_driver(applied, dsn, backend):
    outcomes = []

    def start(owner):
        # Each call may find that another came first; its caller tries again then.
        for _ in range(10):
            try:
                outcomes.append(starting.start(applied, job_of(dsn), backend, owner))
            except RetryableError:
                continue
            return

    threads = [threading.Thread(target=start, args=(f"o{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(is_now(applied, backend, "running"))
    record = Control(applied, "orders").read()

    assert backend.status(record.handle).state is JobState.RUNNING
    for outcome in outcomes:
        if outcome.generation != record.generation:
            wait_until(lambda o=outcome: backend.status(o.handle).state is JobState.ENDED)


def test_pause_resume_and_stop_reach_the_driver(applied, dsn, backend):
    started = starting.start(applied, job_of(dsn), backend, "me")
    wait_until(is_now(applied, backend, "running"))
    pipelines.pause(applied, "orders")
    wait_until(is_now(applied, backend, "paused"))
    pipelines.resume(applied, "orders")
    wait_until(is_now(applied, backend, "running"))
    pipelines.stop(applied, "orders", backend)

    assert status(applied, "orders", backend).status == "stopped"
    assert backend.status(started.handle).exit_code == 0


def test_a_deaf_driver_is_ended_by_force(applied, dsn, backend):
    started = starting.start(applied, job_of(dsn, "deaf"), backend, "me")
    wait_until(is_now(applied, backend, "running"))
    pipelines.stop(applied, "orders", backend, grace_s=0.5)

    assert backend.status(started.handle).state is JobState.ENDED
    assert status(applied, "orders", backend).status == "lost"


def test_a_stopped_pipeline_is_not_paused_or_resumed(applied):
    for change in (pipelines.pause, pipelines.resume):
        with pytest.raises(SpecError, match="stopped; start it"):
            change(applied, "orders")


def test_an_unknown_pipeline_is_named_with_the_known_ones(applied):
    with pytest.raises(SpecError, match=r"no pipeline 'ordres'.*known: orders"):
        pipelines.pause(applied, "ordres")


def test_what_a_killed_first_apply_leaves_hides_no_other_pipeline_and_can_be_deleted(
    applied, backend
):
    applied.put(names.DOCUMENTS, "half", DOCUMENT.replace("orders", "half").encode())

    assert [present.name for present in statuses(applied)] == ["orders"]
    pipelines.delete(applied, "half", backend)
    assert Control.list_pipelines(applied) == ["orders"]
    with pytest.raises(SpecError, match="no pipeline 'half'"):
        pipelines.delete(applied, "half", backend)


def test_only_the_owner_stops_the_stream(applied, dsn, backend):
    starting.start(applied, job_of(dsn), backend, "old attempt")
    wait_until(is_now(applied, backend, "running"))
    starting.start(applied, job_of(dsn), backend, "new attempt")

    assert not pipelines.stop_if_owner(applied, "orders", backend, "old attempt")
    assert status(applied, "orders", backend).status == "running"
    assert pipelines.stop_if_owner(applied, "orders", backend, "new attempt")
    assert status(applied, "orders", backend).status == "stopped"


def test_a_snapshot_is_refused_while_the_stream_runs(applied, dsn, backend):
    starting.start(applied, job_of(dsn), backend, "me")
    wait_until(is_now(applied, backend, "running"))

    with pytest.raises(SpecError, match="is streaming"):
        snapshots.start(applied, job_of(dsn, script="snapshot_job.py"), backend, "me")


def test_a_stream_waits_for_a_running_snapshot(applied, dsn, backend):
    snapshots.start(applied, job_of(dsn, script="snapshot_job.py"), backend, "me")
    wait_until(is_now(applied, backend, "running"))

    with pytest.raises(RetryableError, match=r"busy with snapshot_job\.py"):
        starting.start(applied, job_of(dsn), backend, "me")


def test_reset_needs_a_stopped_pipeline_and_its_name(applied, dsn, backend):
    checkpoints = Checkpoints(applied, "orders", "shop-db")
    applied.transact([checkpoints.put("files", {"file": "binlog.000007", "pos": 4})])
    starting.start(applied, job_of(dsn), backend, "me")
    wait_until(is_now(applied, backend, "running"))

    with pytest.raises(SpecError, match="not stopped"):
        pipelines.reset_checkpoint(applied, "orders", confirm="orders")
    pipelines.stop(applied, "orders", backend)
    with pytest.raises(SpecError, match="confirm"):
        pipelines.reset_checkpoint(applied, "orders", confirm="yes")
    assert checkpoints.load()
    pipelines.reset_checkpoint(applied, "orders", confirm="orders")
    assert not checkpoints.load()


NOW = 10_000_000


@pytest.mark.parametrize(
    ("word", "age_s", "job", "expected"),
    [
        pytest.param("running", 1, JobState.UNKNOWN, "running", id="a fresh heartbeat is believed"),
        pytest.param("running", 16, JobState.UNKNOWN, "lost", id="silence is not running"),
        pytest.param("starting", 60, JobState.RUNNING, "starting", id="Spark may start slowly"),
        pytest.param("starting", 121, JobState.RUNNING, "lost", id="but not for ever"),
        pytest.param("starting", 1, JobState.ENDED, "lost", id="nor when it is dead"),
        pytest.param("blocked", 16, JobState.UNKNOWN, "lost", id="nor blocked"),
        pytest.param("running", 1, JobState.ENDED, "lost", id="a dead process is not running"),
        pytest.param(
            "failed", 999, JobState.ENDED, "failed", id="the last word of a dead driver stays"
        ),
        pytest.param("paused", 999, JobState.RUNNING, "paused", id="a paused driver may be quiet"),
        pytest.param("paused", 16, JobState.UNKNOWN, "lost", id="unless nobody can see it"),
        pytest.param("stopped", 999, JobState.ENDED, "stopped", id="stopped stays stopped"),
    ],
)
def test_status_tells_the_truth(word, age_s, job, expected):
    told = progress(word, 1, 1, 5)
    record = ControlRecord(desired="running", generation=1, updated_at_ms=NOW)
    heard = LastHeard(age_s, is_sure=True)

    assert judge_status("orders", record, told, NOW, JobStatus(job), heard).status == expected


def test_a_snapshots_driver_that_is_done_is_not_lost():
    told = progress("snapshotting", 1, 1, 5).model_copy(update={"heartbeat_at_ms": NOW})
    record = ControlRecord(desired="running", generation=1)
    done = JobStatus(JobState.ENDED, 0)

    assert judge_status("orders", record, told, NOW, done).status == "stopped"


@pytest.mark.parametrize(
    ("word", "sink_was", "sink_is"),
    [
        pytest.param("running", "running", "running", id="well"),
        pytest.param("blocked", "running", "running", id="another sink blocks"),
        pytest.param("stopped", "running", "stopped", id="stopped"),
        pytest.param("stopped", "blocked", "stopped", id="stopped while blocked"),
        pytest.param("failed", "running", "stopped", id="failed by another"),
        pytest.param("failed", "blocked", "blocked", id="failed by this one"),
        pytest.param("paused", "running", "paused", id="paused"),
        pytest.param("starting", "running", "starting", id="starting"),
    ],
)
def test_a_sink_does_not_run_on_after_its_pipeline(word, sink_was, sink_is):
    record = ControlRecord(generation=1, desired="running")
    sinks = {"files": SinkProgress(status=sink_was)}
    told = progress(word, 1, 1, 5).model_copy(update={"sinks": sinks})
    shown = judge_status("orders", record, told, told.heartbeat_at_ms + 10)

    assert shown.sinks["files"].status == sink_is


def test_an_earlier_generations_words_do_not_count():
    told = progress("running", 1, 1, 5).model_copy(update={"heartbeat_at_ms": NOW})
    record = ControlRecord(desired="running", generation=2, updated_at_ms=NOW - 1000)

    assert judge_status("orders", record, told, NOW, waited_s=119).status == "starting"
    assert judge_status("orders", record, told, NOW, waited_s=121).status == "lost"


def test_a_start_that_still_ends_the_former_driver_is_not_lost():
    told = progress("running", 1, 1, 5).model_copy(update={"heartbeat_at_ms": NOW})
    former = {"generation": 1, "submitted_at_ms": NOW - 3_600_000}
    record = ControlRecord(desired="running", generation=2, handle=former, updated_at_ms=NOW - 1000)

    assert judge_status("orders", record, told, NOW).status == "starting"


def test_the_last_words_before_a_restart_are_not_the_new_drivers():
    told = progress("failed", 1, 1, 5).model_copy(update={"heartbeat_at_ms": NOW})
    handle = {"generation": 1, "after": [told.epoch, told.beat]}
    record = ControlRecord(desired="running", generation=1, handle=handle)

    assert (
        judge_status("orders", record, told, NOW + 20, JobStatus(JobState.RUNNING)).status
        == "starting"
    )


def attend_until_over(store, backend, dsn, behaviour, **budget):
    started = starting.start(store, job_of(dsn, behaviour), backend, "me")
    from dataclasses import replace

    job = replace(job_of(dsn, behaviour), generation=started.generation)
    task = Attendance(store, backend, job, "me", RestartBudget(**budget))
    return attend(
        task,
        stopping=lambda: False,
        changed=lambda _: None,
        sleep=lambda seconds: time.sleep(min(seconds, 0.2)),
    )


def test_a_dying_driver_is_restarted_within_the_budget(applied, dsn, backend):
    verdict = attend_until_over(applied, backend, dsn, "exit:3", restarts_max=2)

    assert verdict.action == "give_up"
    assert "2 restarts" in verdict.reason
    assert len(Control(applied, "orders").read().restarts) == 2


def test_a_fatal_driver_is_not_restarted(applied, dsn, backend):
    verdict = attend_until_over(applied, backend, dsn, "fail:position_lost")

    assert (verdict.action, verdict.error_class) == ("give_up", "position_lost")
    assert verdict.reason == "binlog.000002 is gone"
    assert Control(applied, "orders").read().restarts == []


def test_a_driver_killed_from_outside_comes_back(applied, dsn, backend):
    import os
    import signal
    from dataclasses import replace

    started = starting.start(applied, job_of(dsn), backend, "me")
    wait_until(is_now(applied, backend, "running"))
    os.killpg(started.handle["pid"], signal.SIGKILL)
    wait_until(is_now(applied, backend, "lost"))
    job = replace(job_of(dsn), generation=1)
    task = Attendance(applied, backend, job, "me")
    back = []

    def changed(present):
        back.append(present.status)

    attend(
        task,
        stopping=lambda: back[-1:] == ["running"],
        changed=changed,
        sleep=lambda seconds: time.sleep(min(seconds, 0.2)),
    )

    assert "lost" in back
    assert Control(applied, "orders").read().handle["pid"] != started.handle["pid"]


def test_a_supervisor_leaves_when_another_took_over(applied, dsn, backend):
    from dataclasses import replace

    starting.start(applied, job_of(dsn), backend, "first")
    starting.start(applied, job_of(dsn), backend, "second")
    task = Attendance(applied, backend, replace(job_of(dsn), generation=1), "first")
    verdict = attend(task, stopping=lambda: False, changed=lambda _: None)

    assert verdict.action == "finished"
    assert "second" in verdict.reason
