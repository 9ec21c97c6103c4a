"""A killed driver counts every event once: drift is stored with the checkpoint behind it."""

import pytest

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.storage.records.data_drift import DataDriftRecords
from tests.engine.scripted_run import NAME, ScriptedRun, kill

SCRIPT = (
    '{type: javascript, id: text, inline: "(e) => { e.after.tx = `${e.after.tx}`; return e; }"}'
)
EVENTS = 800 * 3


@pytest.mark.parametrize(
    "crash_point",
    [
        CrashPoint.SINK_WRITTEN,
        pytest.param(CrashPoint.CHECKPOINT_STORED, marks=pytest.mark.long),
    ],
    ids=lambda point: point.value,
)
def test_no_event_counts_twice_and_none_is_lost(crash_point, tmp_path):
    sensing = "  schema_sensing: {enabled: true}"
    run = ScriptedRun(tmp_path, processors=SCRIPT, more=sensing)
    run.begin_at(0)
    # Of 80 batches at least; a checkpoint is stored ten times a second.
    driver = run.start(hold=(crash_point, 70 if crash_point is CrashPoint.SINK_WRITTEN else 3))
    kill(run.wait_held(driver))
    driver.wait()
    before = DataDriftRecords(run.store, NAME).all()["script.rows"]
    driver = run.start()
    run.wait_delivered(driver)
    run.stop(driver)

    assert 0 < before.totals["type_mismatch"] < EVENTS
    record = DataDriftRecords(run.store, NAME).all()["script.rows"]
    assert record.totals == {"type_mismatch": EVENTS}
    # The table was altered since: counts of the present form alone.
    assert 0 < record.events_analyzed == record.events_with_drift < EVENTS
    assert run.control.progress().data_drift.tables == {"script.rows": record.totals}
    run.close()
