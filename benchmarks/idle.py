"""``./dev.sh bench idle``: how soon a pipeline obeys, and what it costs while it does nothing.

Seconds belong here and not into tests: a slow machine is no defect. The source is scripted, so
that only our own processes are measured.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from airflow_provider_deltaforge.control import pipelines
from benchmarks.processes import MIB, Sampler, named, wait_until
from tests.engine.scripted_run import NAME, ScriptedRun
from tests.engine.spark_kills import end_family, started

_IDLE_S = 20.0
_out = Console()


def measure(master: str = "local[2]") -> dict[str, Any]:
    """Start, pause, rest, resume and stop one pipeline; return seconds, cores and memory."""
    with tempfile.TemporaryDirectory(prefix="deltaforge-bench-") as place:
        run = ScriptedRun(Path(place), master=master, transactions=0, rate=100)
        run.begin_at(0)
        begun = time.monotonic()
        driver = started(run, None)
        try:
            return _played(run, driver, begun)
        finally:
            end_family(driver)
            run.store.close()


def _played(run: ScriptedRun, driver: "subprocess.Popen[bytes]", begun: float) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    wait_until(lambda: (progress := run.control.progress()) and progress.events)
    figures["first_event_s"] = round(time.monotonic() - begun, 2)
    time.sleep(3)
    figures["streaming_mib"] = _memory(driver.pid)
    figures["pause_s"] = _seconds(run, "paused", pipelines.pause)
    figures["paused_cores"] = round(_cpu_s(driver.pid, _IDLE_S) / _IDLE_S, 3)
    figures["resume_s"] = _seconds(run, "running", pipelines.resume)
    figures["stop_s"] = _seconds(run, "stopped", pipelines.ask_to_stop)
    driver.wait(60)
    return figures


def _seconds(run: ScriptedRun, wanted: str, ask: Callable[[Any, str], object]) -> float:
    begun = time.monotonic()
    ask(run.store, NAME)
    wait_until(lambda: _status(run) == wanted)
    return round(time.monotonic() - begun, 2)


def _status(run: ScriptedRun) -> str:
    progress = run.control.progress()
    return progress.status if progress is not None else "none"


def _cpu_s(pid: int, seconds: float) -> float:
    """Return the CPU seconds that a driver uses meanwhile, with what of it ends meanwhile."""
    sampler = Sampler({"driver": pid})
    sampler.reset()
    time.sleep(seconds)
    return sum(figures["cpu_s"] for figures in sampler.stop().values())


def _memory(pid: int) -> dict[str, int]:
    """Return MiB by kind of process; pages that forks share count once (PSS)."""
    found: dict[str, float] = {}
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        try:
            name, nbytes = named("driver", process), process.memory_full_info().pss
        except psutil.Error:
            continue
        found[name] = found.get(name, 0.0) + nbytes / MIB
    return {name: round(mib) for name, mib in sorted(found.items())}


def main(results: Path, about: dict[str, Any]) -> None:
    """Measure, show and write ``idle.json``."""
    figures = about | measure()
    (results / "idle.json").write_text(json.dumps(figures, indent=2) + "\n")
    table = Table("what", "measured")
    for name, value in figures.items():
        table.add_row(name, str(value))
    _out.print(table)
    _out.print("written to benchmarks/results/idle.json")
