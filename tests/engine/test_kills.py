"""A kill at every persistence border: nothing is lost, nothing comes out of order.

Here the lane runs in a plain process. ``./dev.sh prove kills`` runs every border against every
victim on Spark; a few of those are below, so that the mechanism cannot rot.
"""

import pytest

from airflow_provider_deltaforge.engine.borders import Border
from tests.engine.scripted_run import ScriptedRun, kill

SNAPSHOT_BORDERS = {
    Border.SNAPSHOT_STARTED,
    Border.CHUNK_RENDERED,
    Border.CHUNK_WRITTEN,
    Border.CHUNK_STORED,
    Border.SNAPSHOT_FINISHED,
}
AT_FIRST = {Border.START_POSITION_STORED, Border.SNAPSHOT_STARTED, Border.SNAPSHOT_FINISHED}
"""Borders that are crossed once."""


@pytest.mark.parametrize("border", list(Border), ids=lambda border: border.value)
def test_a_process_killed_at_a_border_loses_nothing(border, tmp_path):
    mode = "initial" if border in SNAPSHOT_BORDERS else "never"
    at_head = border is Border.START_POSITION_STORED
    run = ScriptedRun(tmp_path, snapshot=mode, transactions=4000 if at_head else 800)
    begun = mode == "never" and not at_head
    if begun:
        run.begin_at(0)
    driver = run.start(hold=(border, 1 if border in AT_FIRST else 3))
    kill(run.wait_held(driver))
    driver.wait()
    start = {"tx": 0} if begun else run.first_position()

    driver = run.start()
    run.wait_delivered(driver)
    code = run.stop(driver)

    assert run.judge(start) == []
    assert code == 0
    assert run.control.progress().status == "stopped"
