"""A transaction open for ten minutes beside normal traffic: nothing waits for it, nothing is lost.

Latencies are recorded, not judged: they belong to the machine.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from tests.e2e import pipeline_run, postgres_run, postgres_shop, shop
from tests.e2e.open_transaction import OpenTransaction, latencies_ms, statuses, wait_confirmed
from tests.e2e.pipeline_run import PipelineRun, end_drivers
from tests.prove.report import Report
from tests.servers import kafka, mysql, postgres
from tests.servers.process import Server

MINUTES = "DELTAFORGE_PROVE_OPEN_MINUTES"
"""Environment variable: how long the transaction stays open; the file says how long it was."""

_BEFORE_S = 30.0
_PAUSE_S = 1.0


def prove(seeds: int, report: Report) -> bool:
    """Hold a transaction open on MySQL and on PostgreSQL."""
    minutes = float(os.environ.get(MINUTES, "10"))
    held = True
    with tempfile.TemporaryDirectory(prefix="deltaforge-open-") as place:
        broker = kafka.start(Path(place) / "kafka")
        try:
            for seed in range(seeds):
                for name in ("mysql", "postgres"):
                    if report.wants(name, server=name, seed=seed):
                        directory = Path(place) / f"{name}-{seed}"
                        case = _case(name, directory, broker, minutes)
                        report.add({"server": name, "seed": seed, "of_minutes": minutes, **case})
                        held = held and case["result"] == "ok"
        finally:
            broker.stop()
    report.write(complete=minutes >= 10)
    return held


def _case(name: str, directory: Path, broker: Server, minutes: float) -> dict[str, Any]:
    directory.mkdir()
    try:
        server = {"mysql": mysql.start, "postgres": postgres.start}[name](directory / name)
    except Exception as error:  # noqa: BLE001 - one case's end is a result
        return {"result": "wrong", "wrong": [str(error)]}
    try:
        told = _PIPELINES[name](directory, server, broker, minutes)
    except Exception as error:  # noqa: BLE001 - as above
        told = {"wrong": [f"{type(error).__name__}: {error}"[:2000]]}
    finally:
        end_drivers()
        server.stop()
    return {"result": "wrong" if told["wrong"] else "ok", **told}


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
