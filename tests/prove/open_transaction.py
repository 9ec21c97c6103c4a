"""A transaction open for ten minutes beside normal traffic: nothing waits for it, nothing is lost.

Latencies are recorded, not judged: they belong to the machine.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from tests.e2e import pipeline_run, postgres_run, postgres_shop, shop
from tests.e2e.open_transaction import OpenTransaction, latencies_ms, statuses, wait_confirmed
from tests.e2e.pipeline_run import PipelineRun, end_drivers
from tests.prove.unit import Task, Unit
from tests.servers.process import Server

MINUTES = "DELTAFORGE_PROVE_OPEN_MINUTES"
"""Environment variable: how long the transaction stays open; the file says how long it was."""

SEEDS = 1
WHOLE_MINUTES = 10.0
_BEFORE_S = 30.0
_PAUSE_S = 1.0


def units(seeds: int) -> list[Unit]:
    """Return one unit for each server: both mostly wait, so they run beside others."""
    minutes = minutes_open()
    return [
        Unit(
            area="open_transaction",
            name=f"{server}/{seed}",
            run=f"{__name__}:run",
            cases=[{"server": server, "seed": seed}],
            kind="open",
            seconds=minutes * 60 + 90,
            limit_s=minutes * 60 + 900,
            servers=("kafka", server),
        )
        for seed in range(seeds)
        for server in _PIPELINES
    ]


def lacking(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which transactions were not open for as long as the page says."""
    return [
        f"{case['server']}: open for {case['of_minutes']} minutes instead of {WHOLE_MINUTES}"
        for case in cases
        if case["of_minutes"] < WHOLE_MINUTES
    ]


def run(task: Task) -> None:
    """Hold a transaction open on one server."""
    [case] = task.cases
    began, minutes, name = time.monotonic(), minutes_open(), case["server"]
    try:
        told = _PIPELINES[name](task.home, task.started[name], task.started["kafka"], minutes)
    except Exception as error:  # noqa: BLE001 - one case's end is a result
        told = {"wrong": [f"{type(error).__name__}: {error}"[:2000]]}
    finally:
        end_drivers()
    result = "wrong" if told["wrong"] else "ok"
    seconds = round(time.monotonic() - began, 1)
    task.add({**case, "of_minutes": minutes, "seconds": seconds, "result": result, **told})


def minutes_open() -> float:
    """Return for how long the transactions stay open."""
    return float(os.environ.get(MINUTES, str(WHOLE_MINUTES)))


def _on_mysql(directory: Path, server: Server, broker: Server, minutes: float) -> dict[str, Any]:
    run = pipeline_run.run_in(directory, server, broker, "open_mysql")
    return _beside(nullcontext(run), lambda: shop.Writers(server, run.name), minutes)


def _on_postgres(directory: Path, server: Server, broker: Server, minutes: float) -> dict[str, Any]:
    name = "open_postgres"  # Of its own: the oracle reads every topic that begins with it.
    made = postgres_run.run_in(directory, server, broker, name)
    return _beside(made, lambda: postgres_shop.Writers(server, name), minutes)


_PIPELINES = {"mysql": _on_mysql, "postgres": _on_postgres}


def _beside(
    made: AbstractContextManager[PipelineRun],
    writers: Callable[[], AbstractContextManager[Any]],
    minutes: float,
) -> dict[str, Any]:
    """Measure before a transaction opens and while it is open, then commit it and judge."""
    with made as run:
        driver = run.start()
        run.wait_status("running")
        with writers():
            began = time.time()
            time.sleep(min(_BEFORE_S, minutes * 60))
            opened = OpenTransaction(run)
            while time.time() - opened.began < minutes * 60:
                # Each round waits until the checkpoint is behind what was committed in it.
                opened.pass_by(5)
                if opened.opened_at is not None:
                    wait_confirmed(run, opened.opened_at)
                time.sleep(_PAUSE_S)
            early = "open" in statuses(run)
            committing = time.time()
            opened.commit()
        run.wait_caught_up()
        code = run.stop(driver)
        wrong = run.judge(at_least=1000)
        wrong += ["rows arrived before their transaction was committed"] if early else []
        wrong += [f"the driver ended with {code}"] if code else []
        arrived = [status for status in dict.fromkeys(statuses(run)) if status != "open"]
        wrong += [] if arrived == opened.beside else ["what was committed beside it is not there"]
        waits = latencies_ms(run)
    return {
        "open_s": round(committing - opened.began, 1),
        "rounds_beside": len(opened.beside) // 5,
        "before": _figures(waits, began, opened.began),
        "while_open": _figures(waits, opened.began, committing),
        "wrong": wrong,
    }


def _figures(waits: Sequence[tuple[int, int]], since: float, until: float) -> dict[str, float]:
    """Return the latencies of what was committed in a span of time."""
    found = [ms for at, ms in waits if since * 1000 <= at < until * 1000]
    if len(found) < 2:
        return {"events": len(found)}
    cuts = statistics.quantiles(found, n=100)
    return {"events": len(found), "p50_ms": cuts[49], "p99_ms": cuts[98], "max_ms": max(found)}
