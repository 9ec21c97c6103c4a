"""A driver that sleeps through a take-over and wakes up: nothing it does then may count."""

import subprocess
import time

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from tests.chaos.arena import Arena
from tests.waiting import wait_for

OF_COPIES = (
    CrashPoint.SNAPSHOT_STARTED,
    CrashPoint.CHUNK_RENDERED,
    CrashPoint.CHUNK_WRITTEN,
    CrashPoint.CHUNK_STORED,
    CrashPoint.SNAPSHOT_FINISHED,
)
OF_STREAMS = (
    CrashPoint.BATCH_RENDERED,
    CrashPoint.SINK_WRITTEN,
    CrashPoint.CHECKPOINT_STORED,
    CrashPoint.SOURCE_ACKNOWLEDGED,
)
SILENT = {"chunk": CrashPoint.CHUNK_RENDERED, "batch": CrashPoint.BATCH_RENDERED}
"""What is in flight to a sink that has fallen silent."""
_ONCE = {CrashPoint.SNAPSHOT_STARTED, CrashPoint.SNAPSHOT_FINISHED}
_WAKES_S = 150.0


def frozen_at(arena: Arena, crash_point: CrashPoint) -> list[str]:
    """Freeze a driver at a crash point, let another one take over, change rows, and wake it up."""
    return _taken_over(arena, crash_point, silent=False)


def frozen_in_flight(arena: Arena, what: str) -> list[str]:
    """The same with a chunk or a batch under way to a sink that is silent and heals."""
    return _taken_over(arena, SILENT[what], silent=True)


def _taken_over(arena: Arena, crash_point: CrashPoint, *, silent: bool) -> list[str]:
    first = arena.begin((crash_point, 1 if crash_point in _ONCE else 2))
    if crash_point in OF_STREAMS:
        arena.wait_running(first)
        while not (arena.held.exists() and arena.held.read_text()):
            assert first.poll() is None, arena.log.read_text()[-3000:]
            arena.ledger.write(10)
    arena.wait_held(first)
    if silent:
        assert arena.sink_server is not None
        arena.sink_server.pause()
        arena.let_go()
        time.sleep(1.5)  # It sends meanwhile what it can.
    arena.freeze(first)
    if silent:
        arena.sink_server.resume()
    else:
        arena.let_go()
    arena.ledger.row_bytes = 0
    second = arena.begin()
    epoch = arena.control.epoch()
    wait_for("a newer driver", lambda: arena.control.epoch() > epoch or second.poll() is not None)
    arena.wait_running(second)
    arena.ledger.write(150)
    arena.wait_caught_up(second)
    arena.wake(first)
    wrong = []
    try:
        first.wait(_WAKES_S)
    except subprocess.TimeoutExpired:
        wrong.append(f"the driver that was outdated still lives after {_WAKES_S:.0f} s")
    return wrong + arena.finish(second)
