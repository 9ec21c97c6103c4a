"""A driver killed at every crash point, under live writers: nothing is lost, nothing out of order.

``./dev.sh prove kills`` does the same to every victim on Spark.
"""

from functools import partial

import pytest

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from tests.engine.lagging_crash_points import (
    OF_ARCHIVES,
    OF_LAGGING,
    OF_PARTS,
    OF_REPLAYS,
    OF_REWINDS,
)
from tests.engine.spark_kills import Victim, run_cell
from tests.sources.postgres.shop_run import ShopRun

# The shop has no event that is refused or sent again, and one sink.
NOT_CROSSED = {
    CrashPoint.DEAD_LETTERS_STORED,
    *OF_REPLAYS,
    *OF_LAGGING,
    *OF_REWINDS,
    *OF_ARCHIVES,
    *OF_PARTS,
}
ASK_NOTHING = {
    CrashPoint.BATCH_RENDERED,
    CrashPoint.CHUNK_RENDERED,
    CrashPoint.CHUNK_WRITTEN,
    CrashPoint.REQUEST_RECORDED,
    CrashPoint.REQUEST_REMOVED,
}
"""Borders of the engine alone: ``tests/engine/test_kills.py`` shows them in each run."""
BORDERS = [
    pytest.param(crash_point, marks=[pytest.mark.long] if crash_point in ASK_NOTHING else [])
    for crash_point in CrashPoint
    if crash_point not in NOT_CROSSED
]


@pytest.mark.parametrize("crash_point", BORDERS, ids=lambda point: point.value)
def test_a_process_killed_at_a_crash_point_loses_nothing(crash_point, postgres_server, tmp_path):
    make = partial(ShopRun, server=postgres_server)

    cell = run_cell(crash_point, Victim.PROCESS, tmp_path / "cell", None, make=make)

    assert cell.wrong == ()
    assert cell.streamed > 0
