"""Processes that die under a supervised stream: nobody asked for anything.

Every case takes a pipeline of its own, and raises AssertionError where Airflow, the control record
or the process table do not show what they must.
"""

import contextlib
import os
import signal

import psutil

from tests.airflow.service.steps import handed_on, only, same_driver, stays, stopped_by_request
from tests.airflow.service.supervised import Supervised, TaskRun
from tests.servers.spark import command_line


def task_process_killed(place: str, pipeline: Supervised) -> None:
    """SIGKILL of the task process while it executes: the retry adopts or starts anew."""
    pipeline.hold(place)
    run = pipeline.trigger()
    os.kill(pipeline.wait_held(place), signal.SIGKILL)
    pipeline.say("task process killed (SIGKILL)")
    pipeline.release(place)
    run.wait({"deferred"}, attempt=2)
    pipeline.wait_delivers()
    pipeline.wait("one driver", lambda: len(pipeline.processes.living()) == 1)
    if place == "before_defer":
        assert len(pipeline.processes.seen) == 1, "the retry did not adopt"
        handed_on(pipeline, run)
    else:
        stopped_by_request(pipeline, run)


def task_process_terminated(pipeline: Supervised) -> None:
    """SIGTERM of the task process, as a drained worker sends it: nobody asked to stop."""
    pipeline.hold("before_defer")
    run = pipeline.trigger()
    held = pipeline.wait_held("before_defer")
    pipeline.wait_delivers()
    driver = only(pipeline)
    os.kill(held, signal.SIGTERM)
    pipeline.say("task process terminated (SIGTERM)")
    stays(pipeline, "the driver", lambda: pipeline.processes.living() == {driver})
    pipeline.release("before_defer")
    run.wait({"deferred"})
    same_driver(pipeline, driver)
    handed_on(pipeline, run)


def worker_killed(pipeline: Supervised) -> None:
    """SIGKILL of the task process and its supervisor: found by the missing heartbeat."""
    pipeline.hold("before_defer")
    run = pipeline.trigger()
    held = pipeline.wait_held("before_defer")
    supervisor = psutil.Process(held).ppid()
    for pid in (supervisor, held):
        os.kill(pid, signal.SIGKILL)
    pipeline.say("worker and task process killed (SIGKILL)")
    pipeline.release("before_defer")
    run.wait({"deferred"}, attempt=2)
    same_driver(pipeline, only(pipeline))
    handed_on(pipeline, run)


def resumed_task_killed(pipeline: Supervised) -> None:
    """SIGKILL in ``execute_complete``, after the driver died: the retry starts a new one."""
    run = pipeline.begin()
    pipeline.hold("complete")
    dead = pipeline.kill_driver()
    os.kill(pipeline.wait_held("complete"), signal.SIGKILL)
    pipeline.say("resumed task process killed (SIGKILL)")
    pipeline.release("complete")
    run.wait({"deferred"}, attempt=2)
    pipeline.wait_delivers()
    assert only(pipeline) != dead
    handed_on(pipeline, run)


def triggerer_ended(number: signal.Signals, pipeline: Supervised) -> None:
    """The triggerer dies: the stream goes on, and another triggerer watches it."""
    run = pipeline.begin()
    driver = only(pipeline)
    triggerer_dies(number, pipeline, run)
    same_driver(pipeline, driver)
    handed_on(pipeline, run)


def triggerer_dies(number: signal.Signals, pipeline: Supervised, run: TaskRun) -> None:
    """Let the triggerer die and come back; the task stays deferred."""
    attempt = run.task["try_number"]
    component_dies("triggerer", number, pipeline)
    task = run.task
    assert (task["state"], task["try_number"]) == ("deferred", attempt)


def scheduler_killed(pipeline: Supervised) -> None:
    """SIGKILL of the scheduler: nothing happens to the stream or its task."""
    run = pipeline.begin()
    driver = only(pipeline)
    component_dies("scheduler", signal.SIGKILL, pipeline)
    assert run.task["state"] == "deferred"
    same_driver(pipeline, driver)
    handed_on(pipeline, run)


def component_dies(name: str, number: signal.Signals, pipeline: Supervised) -> None:
    """Let a component of Airflow die and come back; the driver delivers on meanwhile."""
    driver, airflow = only(pipeline), pipeline.stage.airflow
    airflow.kill(name, number)
    pipeline.say(f"{name} ended ({number.name})")
    try:
        stays(pipeline, "the driver", lambda: pipeline.processes.living() == {driver})
        pipeline.wait_delivers()
    finally:
        airflow.start_again(name)
    pipeline.say(f"{name} started again")


def driver_killed(pipeline: Supervised) -> None:
    """SIGKILL of the driver: restarted within the budget, without an Airflow retry."""
    run = pipeline.begin()
    before = pipeline.record
    dead = pipeline.kill_driver()
    pipeline.wait_restarts(len(before.restarts) + 1)
    run.wait({"deferred"})
    assert (run.task["try_number"], pipeline.record.generation) == (1, before.generation)
    assert only(pipeline) != dead
    handed_on(pipeline, run)


def driver_killed_too_often(pipeline: Supervised) -> None:
    """A driver that dies more often than the budget allows: red, with the reason, at once."""
    run = pipeline.begin("stream_budget")
    pipeline.kill_driver()
    pipeline.wait_restarts(1)
    pipeline.kill_driver()
    run.ends_as("failed")
    assert "1 restarts within" in run.log()
    pipeline.wait_gone()


def jvm_killed(pipeline: Supervised) -> None:
    """SIGKILL of the driver's JVM alone: its Python children end too, and one restart follows."""
    run = pipeline.begin()
    driver, restarts = only(pipeline), len(pipeline.record.restarts)
    for pid in pipeline.processes.members(driver):
        if "java" in command_line(pid).split(" ")[0]:
            with contextlib.suppress(ProcessLookupError):  # Others end, too.
                os.kill(pid, signal.SIGKILL)
    pipeline.say("the driver's JVM killed (SIGKILL)")
    pipeline.wait_restarts(restarts + 1)
    run.wait({"deferred"})
    assert only(pipeline) != driver
    assert run.task["try_number"] == 1
    handed_on(pipeline, run)


def host_lost(pipeline: Supervised) -> None:
    """The Spark worker under the driver dies with all that it runs: the next one is elsewhere."""
    run = pipeline.begin()
    before, driver, hosts = pipeline.record, only(pipeline), pipeline.stage.hosts
    assert hosts is not None
    lost = hosts.worker_of(pipeline.processes.members(driver)[0])
    lost.kill()
    pipeline.say("the driver's host killed (SIGKILL)")
    try:
        pipeline.wait_restarts(len(before.restarts) + 1)
        run.wait({"deferred"})
        assert (run.task["try_number"], pipeline.record.generation) == (1, before.generation)
        assert only(pipeline) != driver
    finally:
        lost.start_again()
    handed_on(pipeline, run)
