"""Kills while parts of a batch are processed and written at the same time."""

import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.plugins import PROCESSORS, SINKS
from tests.engine import appending, picky
from tests.engine.exact_run import ExactRun, new_place
from tests.engine.lagging_crash_points import OF_PARTS
from tests.engine.scripted_run import ScriptedRun, kill
from tests.oracle.readers import seen_in_file

PARTS = "delivery: {{parallelism: {}}}".format
PROCESSOR = "{type: stretching, transactions: []}"
POINTS = [
    *OF_PARTS,
    CrashPoint.CHECKPOINT_STORED,
    *(
        pytest.param(point, marks=pytest.mark.long)
        for point in (
            CrashPoint.SCHEMA_REGISTERED,
            CrashPoint.BATCH_RENDERED,
            CrashPoint.SINK_WRITTEN,
            CrashPoint.SOURCE_ACKNOWLEDGED,
        )
    ),
]


class ParallelRun(ScriptedRun):
    """Its sink takes several writers."""

    def seen(self):
        return seen_in_file(
            self.directory / "parts.jsonl",
            lambda event: (event["after"]["tx"], event["after"]["row"]),
        )


@pytest.fixture(autouse=True)
def plugins(monkeypatch):
    for name, place in appending.PLACE.items():
        monkeypatch.setitem(SINKS.shipped, name, place)
    for name, place in picky.PLACE.items():
        monkeypatch.setitem(PROCESSORS.shipped, name, place)


@pytest.mark.parametrize("crash_point", POINTS, ids=lambda point: point.value)
def test_a_kill_between_parts_loses_nothing_and_keeps_the_order_of_each_row(crash_point, tmp_path):
    run = ParallelRun(
        tmp_path,
        policy=PARTS(4),
        transactions=800,  # Read in one go, fewer are over before the fourth checkpoint.
        processors=PROCESSOR,
        more=f"    - {{type: appending, config: {{path: {tmp_path}/parts.jsonl}}}}",
    )
    start = run.begin()
    driver = run.start(hold=(crash_point, 4))
    kill(run.wait_held(driver))
    driver.wait()

    # The next driver divides otherwise: nothing that is stored depends on it.
    run.document = run.document.replace(PARTS(4), PARTS(3))
    pipelines.apply(run.store, run.document)
    run.want("running")
    driver = run.start()
    run.wait_delivered(driver)

    assert run.stop(driver) == 0
    assert run.judge(start) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "crash_point", [CrashPoint.SINK_WRITTEN, CrashPoint.CHECKPOINT_STORED], ids=str
)
def test_a_kill_repeats_nothing_where_a_sink_delivers_exactly_once(
    crash_point, kafka_server, tmp_path
):
    run = ExactRun(
        tmp_path,
        policy=PARTS(4),
        transactions=300,
        rate=0,
        processors=PROCESSOR,
        place=new_place("kafka", kafka_server.dsn()),
    )
    start = run.begin()
    driver = run.start(hold=(crash_point, 2))
    kill(run.wait_held(driver))
    driver.wait()
    driver = run.start()
    run.wait_delivered(driver)

    assert run.stop(driver) == 0
    seen = [event.name for event in run.seen()]
    assert len(seen) == len(set(seen)) == 900
    assert run.judge(start) == []
