"""The kill matrix: every case by its name, and how they are run and judged."""

import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import httpx

from airflow_provider_deltaforge.errors import DeltaForgeError
from tests.airflow.service import acts, deaths
from tests.airflow.service.drivers import KINDS, PODS, SPARK, STANDALONE
from tests.airflow.service.stage import HISTORY, Stage
from tests.airflow.service.supervised import Supervised

Case = Callable[[Supervised], None]

# In this order most cases find the stream of the one before: starting Spark is what takes time.
CASES: Mapping[str, Case] = {
    "task SIGKILL, before submit": partial(deaths.task_process_killed, "before_submit"),
    "task SIGKILL, after submit": partial(deaths.task_process_killed, "after_submit"),
    "task SIGKILL, before defer": partial(deaths.task_process_killed, "before_defer"),
    "task SIGTERM, before defer": deaths.task_process_terminated,
    "triggerer SIGTERM": partial(deaths.triggerer_ended, signal.SIGTERM),
    "triggerer SIGKILL": partial(deaths.triggerer_ended, signal.SIGKILL),
    "scheduler SIGKILL": deaths.scheduler_killed,
    "clear while deferred": acts.cleared,
    "two runs of a DAG": partial(acts.two_at_once, "stream_stop"),
    "two DAGs": partial(acts.two_at_once, "stream_other"),
    "pause by another": acts.paused,
    "mark failed, on_kill=leave": partial(acts.marked, "failed", "leave"),
    "mark success, on_kill=leave": partial(acts.marked, "success", "leave"),
    "window over": acts.window_over,
    "newer generation by another": acts.taken_over,
    "launch backend local": acts.launched_beside_the_task,
    "driver SIGKILL": deaths.driver_killed,
    "driver's JVM SIGKILL": deaths.jvm_killed,
    "driver's host SIGKILL": deaths.host_lost,
    "task SIGKILL, in execute_complete": deaths.resumed_task_killed,
    "mark failed, on_kill=stop": partial(acts.marked, "failed", "stop"),
    "driver SIGKILL beyond the budget": deaths.driver_killed_too_often,
    "mark success, on_kill=stop": partial(acts.marked, "success", "stop"),
    "mark failed while it executes": acts.marked_while_running,
    "stop by another": acts.stopped,
    "delete by another": acts.deleted,
    "worker SIGKILL": deaths.worker_killed,
}

# Where a case makes sense, if not everywhere.
_KINDS_OF: Mapping[str, Collection[str]] = {
    "launch backend local": {PODS},
    "driver's JVM SIGKILL": {SPARK, STANDALONE},
    "driver's host SIGKILL": {STANDALONE},
}

# What is the same for whichever worker a task has: the drivers are where they are.
_NOT_OF_PODS = {
    "task SIGKILL, before submit",
    "task SIGKILL, after submit",
    "triggerer SIGTERM",
    "two DAGs",
    "pause by another",
    "newer generation by another",
    "driver SIGKILL beyond the budget",
    "delete by another",
}

# Nobody knows of a driver whose submitter died before it wrote the handle down: the next one's
# generation outdates it, and until it has noticed, the epoch fences it.
_OVERLAP = {"task SIGKILL, after submit"}

# Whose killed driver has perhaps delivered what the next case's driver delivers again.
_LEAVES_KILLED = {"driver SIGKILL beyond the budget"}


def cases_of(driver: str) -> list[str]:
    """Return the cases that a kind of driver can be put through."""
    return [
        name
        for name in CASES
        if driver in _KINDS_OF.get(name, KINDS) and (driver != PODS or name not in _NOT_OF_PODS)
    ]


@dataclass
class Result:
    """What came of one case."""

    case: str
    result: str = "ok"
    told: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    drivers: int = 0
    drivers_at_once: int = 0
    pods: int = 0
    """Hosts that tasks had, each its own; 0 where they share one that stays."""
    generation: int = 0
    epoch: int = 0
    transactions: int = 0
    repeated: int = 0
    """Events that this case delivered again: no loss, and none unless a driver died."""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


class Chain:
    """Runs cases one after the other on one pipeline, and on a new one after a failure.

    Args:
        shared: the Airflow.
        prefix: begins the pipelines' names, with one of ``drivers.KINDS``.
    """

    def __init__(self, shared: Stage, prefix: str) -> None:
        self._stage = shared
        self._prefix = prefix
        self._pipeline: Supervised | None = None
        self._count = 0
        self._repeated = self._pods = 0
        self._former = ""

    def run(self, name: str) -> Result:
        """Run one case; the oracle judges what was delivered until now."""
        begun = time.monotonic()
        if self._pipeline is None:
            self._count, self._repeated = self._count + 1, 0
            self._pipeline = Supervised(self._stage, f"{self._prefix}-{self._count}")
        pipeline, result = self._pipeline, Result(name)
        pipeline.begin_anew()
        wrong = list(_caught(lambda: CASES[name](pipeline)))
        wrong += _caught(lambda: self._look(pipeline, result))
        wrong += _caught(lambda: self._count_pods(pipeline, result))
        result.told, result.wrong = tuple(pipeline.told), tuple(wrong + self._judge(result))
        if result.wrong or pipeline.control.read() is None:
            result.wrong += tuple(_caught(self.end))
        self._former = name
        result.result = "wrong" if result.wrong else "ok"
        result.seconds = round(time.monotonic() - begun, 1)
        return result

    def end(self) -> None:
        """Stop the pipeline; nothing of it stays."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            try:
                pipeline.stop()
            finally:
                pipeline.close()

    def _look(self, pipeline: Supervised, result: Result) -> None:
        record = pipeline.control.read()
        result.generation = record.generation if record is not None else 0
        result.epoch, result.transactions = pipeline.control.epoch(), pipeline.at()
        repeated = pipeline.repeated()
        result.repeated, self._repeated = repeated - self._repeated, repeated
        found = pipeline.judged()
        assert not found, found

    def _count_pods(self, pipeline: Supervised, result: Result) -> None:
        """Wait until no task's host is left, and note how many there were."""
        if (pods := self._stage.pods) is None:
            return
        pipeline.wait("the end of the tasks' hosts", lambda: not list(pods.glob("pod-*")))
        count = len((pods / HISTORY).read_text().splitlines())
        result.pods, self._pods = count - self._pods, count

    def _judge(self, result: Result) -> list[str]:
        assert self._pipeline is not None
        watched = self._pipeline.processes
        result.drivers, result.drivers_at_once = len(watched.seen), watched.most
        wrong = []
        if watched.most > 1 and result.case not in _OVERLAP:
            wrong.append(f"{watched.most} drivers lived at once")
        if result.repeated and result.drivers == 1 and self._former not in _LEAVES_KILLED:
            wrong.append(f"one driver delivered {result.repeated} events twice")
        return wrong


def _caught(step: Callable[[], None]) -> Iterator[str]:
    try:
        step()
    except (AssertionError, DeltaForgeError, httpx.HTTPError, OSError) as error:
        yield f"{type(error).__name__}: {error}"[-4000:]
