"""A driver killed as a sink is given up or goes on again, with real sinks that were away.

With a file, and in every run of the tests: ``test_behind_kills``.
"""

import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from tests.engine.exact_run import PLACES, new_place
from tests.engine.scripted_run import NAME, ScriptedRun, kill
from tests.oracle.readers import seen_in
from tests.oracle.verdict import judge
from tests.waiting import wait_until

TRANSACTIONS = 4000
LIMIT, NO_LIMIT = "lag_limit_secs: 2", "lag_limit_secs: 0"
SETTINGS = f"required: false, send_timeout_secs: 2, {LIMIT}"


def checkpoint(run, sink):
    return Checkpoints(run.store, NAME, f"{NAME}-source").load().get(sink, {"tx": 0})["tx"]


def is_given_up(run):
    return "side" in Gaps(run.store, NAME).open()


def resume(run):
    run.store.transact([Gaps(run.store, NAME).wish("side", "resume", "a test")])


@pytest.mark.long
@pytest.mark.parametrize("exactly_once", [True, False], ids=["exact", "plain"])
@pytest.mark.parametrize(
    "crash_point",
    [CrashPoint.SINK_GIVEN_UP, CrashPoint.SINK_RESUMED],
    ids=lambda point: point.value,
)
@pytest.mark.parametrize("kind", sorted(PLACES))
def test_the_gap_is_recorded_once_and_nothing_else_is_lacking(
    kind, crash_point, exactly_once, request, tmp_path
):
    server = request.getfixturevalue(f"{kind}_server")
    place = new_place(kind, server.dsn(), "side", exactly_once=exactly_once)
    side = place.sink.replace("{id: side,", f"{{id: side, {SETTINGS},")
    run = ScriptedRun(tmp_path, transactions=TRANSACTIONS, rate=200, more=f"    - {side}\n")
    run.begin_at(0)
    checkpoints = Checkpoints(run.store, NAME, f"{NAME}-source")
    run.store.transact([checkpoints.put("side", {"tx": 0})])

    driver = run.start(hold=(crash_point, 1))
    wait_until(lambda: checkpoint(run, "side") > 100)
    server.pause()
    try:
        wait_until(lambda: is_given_up(run))
        [gap] = Gaps(run.store, NAME).all()
        assert (gap.start["tx"], gap.end) == (checkpoint(run, "side"), None)
        if crash_point is CrashPoint.SINK_GIVEN_UP:
            driver = another(run, driver)
    finally:
        server.resume()
    at = checkpoint(run, "out")
    wait_until(lambda: checkpoint(run, "out") > at + 100)
    # Nothing follows; but what a sink tells that has arrived all the same, a new driver believes.
    believes = exactly_once and crash_point is CrashPoint.SINK_GIVEN_UP
    assert checkpoint(run, "side") == gap.start["tx"] or believes
    resume(run)
    if crash_point is CrashPoint.SINK_RESUMED:
        driver = another(run, driver)
    ends = {"out": TRANSACTIONS, "side": TRANSACTIONS}
    run._wait(lambda: {name: checkpoint(run, name) for name in ends} == ends, driver)
    assert run.stop(driver) == 0

    assert run.judge({"tx": 0}) == []
    [closed] = Gaps(run.store, NAME).all()
    assert closed.model_copy(update={"end": None, "resumed_at_ms": None}) == gap
    assert gap.start["tx"] + 100 < closed.end["tx"] < TRANSACTIONS
    assert Gaps(run.store, NAME).wishes() == []
    assert run.control.progress().sinks["side"].status != "given_up"
    seen = seen_in(place.read(), lambda event: (event["after"]["tx"], event["after"]["row"]))
    arrived = {event.name for event in seen}
    # What was under way as the sink was given up may have arrived, in its order.
    whole = [
        change
        for change in run.history({"tx": 0})
        if change.name in arrived or not gap.start["tx"] < change.name[0] <= closed.end["tx"]
    ]
    assert judge(whole, seen, exactly_once=exactly_once) == []
    lacking = {c.name[0] for c in run.history({"tx": 0}) if c.name not in arrived}
    assert lacking, "it was never away: this proves nothing"


def another(run, driver):
    """Kill a driver at its crash point, and start one that gives nobody up for being slow."""
    kill(run.wait_held(driver))
    driver.wait()
    pipelines.apply(run.store, run.document.replace(LIMIT, NO_LIMIT))
    run.want("running")
    return run.start()
