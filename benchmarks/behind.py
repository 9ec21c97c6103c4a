"""``./dev.sh bench behind``: a best-effort sink is away for a minute; does the pipeline notice?

The source is scripted and the sinks are files, so that only our own processes are measured. The
file of the optional sink is locked by another process while it is away: that is real trouble.
"""

import fcntl
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Progress
from tests.engine.scripted_run import NAME, ScriptedRun

_ROWS = 3
_SAMPLE_S = 0.5
_TOGETHER_S = 20.0
_out = Console()


def measure(seconds: int, events_per_s: int) -> dict[str, Any]:
    """Run one pipeline with a required and an optional sink; return figures of each phase."""
    with tempfile.TemporaryDirectory(prefix="deltaforge-bench-") as place:
        side = Path(place) / "side.jsonl"
        config = f'{{id: side, path: "{side}", required: false}}'
        more = f"    - {{type: file, config: {config}}}"
        rate = events_per_s // _ROWS
        run = ScriptedRun(Path(place), transactions=0, rate=rate, batch="", more=more)
        run.begin_at(0)
        checkpoints = Checkpoints(run.store, NAME, f"{NAME}-source")
        run.store.transact([checkpoints.put("side", {"tx": 0})])
        lock = os.open(side, os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX)
        driver = run.start()
        try:
            while not _stands(run, "behind"):
                time.sleep(_SAMPLE_S)
            figures: dict[str, Any] = {"asked_events_per_s": rate * _ROWS}
            figures["away"] = _phase(run, _for(seconds))
            os.close(lock)
            figures["caught up"] = _phase(run, lambda: _stands(run, "running"))
            figures["together"] = _phase(run, _for(_TOGETHER_S))
            return figures
        finally:
            run.stop(driver)
            run.close()


def _phase(run: ScriptedRun, over: Callable[[], bool]) -> dict[str, float]:
    """Sample the pipeline until a phase is over: what its required sink got, and how late."""
    first, begun = _progress(run), time.monotonic()
    lags: list[int] = []
    while not over():
        time.sleep(_SAMPLE_S)
        lags.append(_progress(run).lag_ms or 0)
    last, took_s = _progress(run), time.monotonic() - begun
    counted = {name: last.sinks[name].events - first.sinks[name].events for name in last.sinks}
    return {
        "seconds": round(took_s, 1),
        "main_events_per_s": round(counted["out"] / took_s),
        "side_events_per_s": round(counted["side"] / took_s),
        "main_lag_ms_median": round(statistics.median(lags)) if lags else 0,
        "main_lag_ms_max": max(lags, default=0),
    }


def _for(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def _stands(run: ScriptedRun, word: str) -> bool:
    progress = run.control.progress()
    return bool(progress and progress.sinks and progress.sinks["side"].status == word)


def _progress(run: ScriptedRun) -> Progress:
    progress = run.control.progress()
    assert progress is not None
    return progress


def main(results: Path, about: dict[str, Any], seconds: int, events_per_s: int) -> None:
    """Measure, show and write ``behind.json``."""
    figures = about | measure(seconds, events_per_s)
    (results / "behind.json").write_text(json.dumps(figures, indent=2) + "\n")
    table = Table("what", "measured")
    for name, value in figures.items():
        table.add_row(name, str(value))
    _out.print(table)
    _out.print("written to benchmarks/results/behind.json")
