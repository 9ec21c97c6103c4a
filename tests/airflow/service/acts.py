"""What users and other supervisors do to a supervised stream, in Airflow and beside it.

Every case takes a pipeline of its own, and raises AssertionError where Airflow, the control record
or the process table do not show what they must.
"""

from airflow_provider_deltaforge.control import pipelines
from tests.airflow.service.steps import (
    handed_on,
    only,
    same_driver,
    started_by_another,
    stays,
    stopped_by_request,
)
from tests.airflow.service.supervised import Supervised, TaskRun


def marked(state: str, policy: str, pipeline: Supervised) -> None:
    """A user marks the deferred task: the stream is stopped, or left, as the DAG says."""
    run = pipeline.begin(f"stream_{policy}")
    mark(state, policy, pipeline, run)


def mark(state: str, policy: str, pipeline: Supervised, run: TaskRun) -> None:
    """Mark a deferred task, and see what becomes of its stream."""
    driver = only(pipeline)
    run.mark(state)
    if policy == "stop":
        pipeline.wait_gone()
        present = pipeline.status()
        assert (present.status, present.desired) == ("stopped", "stopped"), present
        pipeline.say("the stream was stopped")
    else:
        stays(pipeline, "the driver", lambda: pipeline.processes.living() == {driver})
        same_driver(pipeline, driver)
        assert pipeline.record.desired == "running"
    task = run.task
    assert task["state"] == state


def marked_while_running(pipeline: Supervised) -> None:
    """A user marks the task failed while its process still executes."""
    pipeline.hold("before_defer")
    run = pipeline.trigger()
    pipeline.wait_held("before_defer")
    pipeline.wait_delivers()
    run.mark("failed")
    pipeline.wait_gone()
    pipeline.release("before_defer")
    assert pipeline.record.desired == "stopped"
    assert run.task["state"] == "failed"


def cleared(pipeline: Supervised) -> None:
    """A user clears the deferred task: the next attempt adopts, nobody stops."""
    run = pipeline.begin()
    clear(pipeline, run, attempt=2)
    handed_on(pipeline, run)


def clear(pipeline: Supervised, run: TaskRun, attempt: int) -> None:
    """Clear the deferred task; the same driver is supervised by the next attempt."""
    driver = only(pipeline)
    former = pipeline.record.owner
    run.clear()
    run.wait({"deferred"}, attempt)
    run.wait_watched()
    assert pipeline.record.owner != former
    stays(pipeline, "the driver", lambda: pipeline.processes.living() == {driver})
    same_driver(pipeline, driver)
    assert run.task["state"] == "deferred"


def two_at_once(other: str, pipeline: Supervised) -> None:
    """Two runs supervise one pipeline: one driver, and the older run ends visibly."""
    older = pipeline.begin()
    driver = only(pipeline)
    newer = pipeline.trigger(other)
    newer.wait({"deferred"})
    older.ends_as("failed")
    assert "taken over" in older.log()
    same_driver(pipeline, driver)
    assert newer.task["state"] == "deferred"
    handed_on(pipeline, newer)


def paused(pipeline: Supervised) -> None:
    """Paused under a running operator: the task stays deferred, and the stream goes on later."""
    run = pipeline.begin()
    pipelines.pause(pipeline.store, pipeline.name)
    pipeline.wait("a paused stream", lambda: pipeline.status().status == "paused")
    pipeline.say("paused")
    stays(pipeline, "the pause", lambda: pipeline.status().status == "paused")
    assert run.task["state"] == "deferred"
    pipelines.resume(pipeline.store, pipeline.name)
    pipeline.wait_delivers()
    pipeline.say("resumed")
    assert run.task["state"] == "deferred"
    handed_on(pipeline, run)


def stopped(pipeline: Supervised) -> None:
    """Stopped under a running operator: skipped, never green."""
    stopped_by_request(pipeline, pipeline.begin())


def deleted(pipeline: Supervised) -> None:
    """Deleted under a running operator: the driver ends fenced, the task fails."""
    run = pipeline.begin()
    pipeline.control.delete()
    pipeline.say("deleted")
    run.ends_as("failed")
    pipeline.wait_gone()


def taken_over(pipeline: Supervised) -> None:
    """Another supervisor starts a newer generation: the task fails, one driver is left."""
    run = pipeline.begin()
    first = only(pipeline)
    pipelines.apply(pipeline.store, pipeline.write_document(max_events=40))
    started = started_by_another(pipeline)
    pipeline.say(f"another supervisor started generation {started.generation}")
    run.ends_as("failed")
    assert "taken over" in run.log()
    pipeline.wait_delivers()
    assert only(pipeline) != first
    assert pipeline.record.generation == started.generation
    assert pipeline.record.desired == "running", "the failed task stopped another's stream"


def window_over(pipeline: Supervised) -> None:
    """The window ends: green over a stream that lives, and the next run adopts it."""
    run = pipeline.trigger("stream_window")
    run.ends_as("success")
    driver = only(pipeline)
    following = pipeline.begin()
    same_driver(pipeline, driver)
    handed_on(pipeline, following)


def launched_beside_the_task(pipeline: Supervised) -> None:
    """A driver beside a worker that ends with its task: refused before anything is started."""
    run = pipeline.begin()
    driver, before = only(pipeline), pipeline.record
    refused = pipeline.trigger("stream_local")
    refused.ends_as("failed")
    assert "the launch backend `local` is refused" in refused.log()
    pipeline.say("the launch backend local was refused")
    assert pipeline.record == before
    same_driver(pipeline, driver)
    handed_on(pipeline, run)
