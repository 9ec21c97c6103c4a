"""A driver killed while a sink is given the log again: nothing is lost, and nothing overtaken."""

import pytest

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from airflow_provider_deltaforge.storage.records.rewinds import Rewinds
from tests.engine.exact_run import PLACES, new_place
from tests.engine.lagging_crash_points import OF_REWINDS
from tests.engine.scripted_run import NAME, ScriptedRun, kill
from tests.oracle.readers import seen_in, seen_in_file
from tests.oracle.verdict import judge
from tests.waiting import wait_until

TO = 40
IN_FILES = [CrashPoint.REWIND_STORED, CrashPoint.REWIND_ENDED]
BORDERS = {
    **dict.fromkeys(OF_REWINDS, 1),
    CrashPoint.CAUGHT_UP_WRITTEN: 2,
    CrashPoint.CAUGHT_UP_STORED: 2,
}
AT_THE_START = [CrashPoint.REWIND_STORED, CrashPoint.REWIND_ASKED]
"""A stopped pipeline reaches these before it reads the log."""


def name_of(event):
    return (event["after"]["tx"], event["after"]["row"])


def rewound(run, crash_point, first_seen, *, is_running=True):
    """Give a sink the log again, and kill the driver on the way; return what it held before."""
    run.begin_at(0)
    checkpoints = Checkpoints(run.store, NAME, f"{NAME}-source")
    run.store.transact([checkpoints.put("side", {"tx": 0})])
    hold = (crash_point, BORDERS[crash_point])
    driver = run.start(hold=hold if is_running else None)
    run._wait(lambda: checkpoints.load()["side"]["tx"] > 2 * TO, driver)
    if not is_running:
        assert run.stop(driver) == 0
    before = first_seen()
    run.store.transact([Gaps(run.store, NAME).rewind("side", {"tx": TO}, (), "a test")])
    if not is_running:
        run.want("running")
        driver = run.start(hold=hold)
    kill(run.wait_held(driver))
    driver.wait()
    driver = run.start()
    run.wait_delivered(driver)
    rewinds = Rewinds(run.store, NAME)
    wait_until(lambda: checkpoints.load()["side"] == {"tx": run.transactions})
    wait_until(lambda: rewinds.all()["side"].state == "done")
    assert run.stop(driver) == 0
    assert run.judge({"tx": 0}) == []
    return before


def assert_given_again(run, before, seen, *, exactly_once=False):
    """See that everything behind the place came once more, and in order."""
    names = [event.name for event in seen]
    again = names.index((TO + 1, 0), len(before))
    assert judge(run.history({"tx": 0}), seen) == []
    assert judge(run.history({"tx": TO}), seen[again:], exactly_once=exactly_once) == []


@pytest.mark.parametrize("crash_point", IN_FILES, ids=lambda point: point.value)
def test_a_file_is_given_all_of_it_again(crash_point, tmp_path):
    side = tmp_path / "side.jsonl"
    more = f'    - {{type: file, config: {{id: side, path: "{side}"}}}}'
    run = ScriptedRun(tmp_path, transactions=500, more=more)
    before = rewound(run, crash_point, lambda: seen_in_file(side, name_of))
    assert_given_again(run, before, seen_in_file(side, name_of))


@pytest.mark.long
@pytest.mark.parametrize(
    ("crash_point", "is_running"),
    [(point, True) for point in sorted(BORDERS, key=str)]
    + [(point, False) for point in AT_THE_START],
    ids=lambda value: value.value if isinstance(value, CrashPoint) else f"running-{value}",
)
@pytest.mark.parametrize("kind", sorted(PLACES))
def test_a_sink_that_delivers_exactly_once_is_given_each_event_once_more(
    kind, is_running, crash_point, request, tmp_path
):
    server = request.getfixturevalue(f"{kind}_server")
    place = new_place(kind, server.dsn(), "side")
    run = ScriptedRun(tmp_path, more=f"    - {place.sink}\n")
    read = lambda: seen_in(place.read(), name_of)  # noqa: E731
    before = rewound(run, crash_point, read, is_running=is_running)
    assert_given_again(run, before, read(), exactly_once=True)
