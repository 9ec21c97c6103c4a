"""A driver killed while a sink is behind, is caught up, joins, is given up or goes on again."""

import fcntl
import os

import pytest

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from tests.engine.lagging_crash_points import OF_LAGGING
from tests.engine.scripted_run import NAME, ScriptedRun, kill
from tests.oracle.readers import seen_in_file
from tests.oracle.verdict import judge
from tests.waiting import wait_until

GIVEN_UP = {CrashPoint.SINK_GIVEN_UP, CrashPoint.SINK_RESUMED}
CROSSING = {CrashPoint.CAUGHT_UP_WRITTEN: 2, CrashPoint.CAUGHT_UP_STORED: 2}


class Taken:
    """A file that another driver holds, which refuses a sink until it is let go."""

    def __init__(self, path):
        mark = path.with_name(f".{path.name}.deltaforge")
        self._descriptor = os.open(mark, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def let_go(self):
        os.close(self._descriptor)


def at(run, sink):
    stored = Checkpoints(run.store, NAME, f"{NAME}-source").load()
    return stored.get(sink, {"tx": 0})["tx"]


def stood(run):
    progress = run.control.progress()
    return progress.sinks["side"].status if progress and progress.sinks else ""


def test_a_driver_killed_as_it_gives_a_sink_up_has_recorded_that_and_done_the_command(tmp_path):
    side = tmp_path / "side.jsonl"
    config = f'id: side, path: "{side}", required: false, lag_limit_secs: 0'
    run = ScriptedRun(tmp_path, more=f"    - {{type: file, config: {{{config}}}}}")
    run.begin_at(0)
    checkpoints = Checkpoints(run.store, NAME, f"{NAME}-source")
    run.store.transact([checkpoints.put("side", {"tx": 0})])
    taken, gaps = Taken(side), Gaps(run.store, NAME)
    driver = run.start(hold=(CrashPoint.SINK_GIVEN_UP, 1))
    wait_until(lambda: stood(run) == "behind")
    run.store.transact([gaps.wish("side", "give_up", "a test")])
    kill(run.wait_held(driver))
    driver.wait()
    taken.let_go()
    assert (gaps.open()["side"].why, gaps.wishes()) == ("a test gave it up", [])

    driver = run.start()
    run.wait_delivered(driver)
    assert run.stop(driver) == 0
    assert [gap.sink for gap in gaps.all()] == ["side"]


@pytest.mark.parametrize("crash_point", sorted(OF_LAGGING, key=str), ids=lambda point: point.value)
def test_a_driver_killed_with_a_sink_behind_leaves_no_hole(crash_point, tmp_path):
    side = tmp_path / "side.jsonl"
    limit = 1 if crash_point in GIVEN_UP else 0
    config = f'id: side, path: "{side}", required: false, lag_limit_secs: {limit}'
    run = ScriptedRun(tmp_path, more=f"    - {{type: file, config: {{{config}}}}}")
    run.begin_at(0)
    checkpoints = Checkpoints(run.store, NAME, f"{NAME}-source")
    run.store.transact([checkpoints.put("side", {"tx": 0})])
    taken = Taken(side)
    driver = run.start(hold=(crash_point, CROSSING.get(crash_point, 1)))
    if crash_point not in {CrashPoint.SINK_LEFT, CrashPoint.SINK_GIVEN_UP}:
        wait_until(lambda: at(run, "out") > 100)
        if crash_point is CrashPoint.SINK_RESUMED:
            wait_until(lambda: stood(run) == "given_up")
        taken.let_go()
        if crash_point is CrashPoint.SINK_RESUMED:
            run.store.transact([Gaps(run.store, NAME).wish("side", "resume", "a test")])
    kill(run.wait_held(driver))
    driver.wait()
    if crash_point in {CrashPoint.SINK_LEFT, CrashPoint.SINK_GIVEN_UP}:
        taken.let_go()

    driver = run.start()
    if crash_point is CrashPoint.SINK_GIVEN_UP:
        wait_until(lambda: stood(run) == "given_up")
        run.store.transact([Gaps(run.store, NAME).wish("side", "resume", "a test")])
    run.wait_delivered(driver)
    wait_until(lambda: at(run, "side") == run.transactions)
    assert run.stop(driver) == 0

    assert run.judge({"tx": 0}) == []
    seen = seen_in_file(side, lambda event: (event["after"]["tx"], event["after"]["row"]))
    lacked = {
        tx
        for gap in Gaps(run.store, NAME).all()
        for tx in range(gap.start["tx"] + 1, gap.end["tx"] + 1)
    }
    assert bool(lacked) == (crash_point in GIVEN_UP)
    history = [change for change in run.history({"tx": 0}) if change.name[0] not in lacked]
    assert judge(history, [event for event in seen if event.name[0] not in lacked]) == []
