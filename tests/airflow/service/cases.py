"""The kill matrix: every case by its name, and how one is run and judged."""

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import httpx

from airflow_provider_deltaforge.errors import DeltaForgeError
from tests.airflow.service import acts, deaths
from tests.airflow.service.stage import Stage
from tests.airflow.service.supervised import Supervised

Case = Callable[[Supervised], None]

CASES: Mapping[str, Case] = {
    "task SIGKILL, before submit": partial(deaths.task_process_killed, "before_submit"),
    "task SIGKILL, after submit": partial(deaths.task_process_killed, "after_submit"),
    "task SIGKILL, before defer": partial(deaths.task_process_killed, "before_defer"),
    "task SIGTERM, before defer": deaths.task_process_terminated,
    "task SIGKILL, in execute_complete": deaths.resumed_task_killed,
    "worker SIGKILL": deaths.worker_killed,
    "triggerer SIGTERM": partial(deaths.triggerer_ended, signal.SIGTERM),
    "triggerer SIGKILL": partial(deaths.triggerer_ended, signal.SIGKILL),
    "scheduler SIGKILL": deaths.scheduler_killed,
    "mark failed, on_kill=stop": partial(acts.marked, "failed", "stop"),
    "mark failed, on_kill=leave": partial(acts.marked, "failed", "leave"),
    "mark success, on_kill=stop": partial(acts.marked, "success", "stop"),
    "mark success, on_kill=leave": partial(acts.marked, "success", "leave"),
    "mark failed while it executes": acts.marked_while_running,
    "window over": acts.window_over,
    "clear while deferred": acts.cleared,
    "two runs of a DAG": partial(acts.two_at_once, "stream_stop"),
    "two DAGs": partial(acts.two_at_once, "stream_other"),
    "pause by another": acts.paused,
    "stop by another": acts.stopped,
    "delete by another": acts.deleted,
    "newer generation by another": acts.taken_over,
    "driver SIGKILL": deaths.driver_killed,
    "driver's JVM SIGKILL": deaths.jvm_killed,
    "driver SIGKILL beyond the budget": deaths.driver_killed_too_often,
}

# Nobody knows of a driver whose submitter died before it wrote the handle down: the next one's
# generation outdates it, and until it has noticed, the epoch fences it.
_OVERLAP = {"task SIGKILL, after submit"}


@dataclass
class Result:
    """What came of one case."""

    case: str
    result: str
    told: tuple[str, ...]
    wrong: tuple[str, ...]
    drivers: int
    drivers_at_once: int
    generation: int
    epochs: int
    transactions: int
    repeated: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def run_case(name: str, shared: Stage, number: int) -> Result:
    """Run one case on a pipeline of its own; the oracle judges what was delivered."""
    begun = time.monotonic()
    pipeline = Supervised(shared, f"case{number}")
    wrong: list[str] = []
    record, epochs, transactions, repeated = None, 0, 0, 0
    try:
        try:
            CASES[name](pipeline)
        except (AssertionError, DeltaForgeError, httpx.HTTPError, OSError) as error:
            wrong.append(f"{type(error).__name__}: {error}"[-4000:])
        pipeline.stop()
        record, epochs = pipeline.control.read(), pipeline.control.epoch()
        transactions, repeated = pipeline.at(), pipeline.repeated()
        wrong += pipeline.judged()
    except (AssertionError, DeltaForgeError, OSError) as error:
        wrong.append(f"while it was ended: {error}")
    finally:
        pipeline.close()
    watched = pipeline.processes
    if watched.most > 1 and name not in _OVERLAP:
        wrong.append(f"{watched.most} drivers lived at once")
    if repeated and len(watched.seen) == 1:
        wrong.append(f"one driver delivered {repeated} events twice")
    return Result(
        name,
        "wrong" if wrong else "ok",
        tuple(pipeline.told),
        tuple(wrong),
        len(watched.seen),
        watched.most,
        record.generation if record is not None else 0,
        epochs,
        transactions,
        repeated,
        round(time.monotonic() - begun, 1),
    )
