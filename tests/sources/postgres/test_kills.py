"""A driver killed at every border, under live writers: nothing is lost, nothing out of order.

``./dev.sh prove kills`` does the same to every victim on Spark.
"""

from functools import partial

import pytest

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from tests.engine.lagging_borders import OF_LAGGARDS, OF_REPLAYS
from tests.engine.spark_kills import Victim, run_cell
from tests.sources.postgres.shop_run import ShopRun

# The shop has no event that is refused or sent again, and one sink.
NOT_CROSSED = {CrashPoint.DEAD_LETTERS_STORED, *OF_REPLAYS, *OF_LAGGARDS}
ASK_NOTHING = {
    CrashPoint.BATCH_RENDERED,
    CrashPoint.CHUNK_RENDERED,
    CrashPoint.CHUNK_WRITTEN,
    CrashPoint.REQUEST_RECORDED,
    CrashPoint.REQUEST_REMOVED,
}
"""Borders of the engine alone: ``tests/engine/test_kills.py`` shows them in each run."""
BORDERS = [
    pytest.param(border, marks=[pytest.mark.long] if border in ASK_NOTHING else [])
    for border in CrashPoint
    if border not in NOT_CROSSED
]


@pytest.mark.parametrize("border", BORDERS, ids=lambda border: border.value)
def test_a_process_killed_at_a_border_loses_nothing(border, postgres_server, tmp_path):
    make = partial(ShopRun, server=postgres_server)

    cell = run_cell(border, Victim.PROCESS, tmp_path / "cell", None, make=make)

    assert cell.wrong == ()
    assert cell.streamed > 0
