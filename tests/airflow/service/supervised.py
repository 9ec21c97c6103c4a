"""A pipeline that Airflow supervises: what is asked of it, and what came of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.status import PipelineStatus, status
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control, ControlRecord
from tests.airflow.service.processes import Driver, Processes, here
from tests.airflow.service.stage import Stage
from tests.oracle.readers import seen_in_file
from tests.oracle.verdict import Change, judge

TASK = "stream"
PATIENCE_S = 400.0
POLL_S = 0.5
"""Every look asks Airflow's API server or the state store, which share two slow cores with us."""

ROWS, KEYS = 3, 60

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: scripted
    config:
      id: {name}-source
      transactions: 0
      rows: 3
      keys: 60
      rate: 10
      started_ms: {started_ms}
      chunk_transactions: 5
      snapshot: {{mode: never}}
  batch: {{max_events: {max_events}, max_ms: 50}}
  trigger: {{window: 600}}
  sinks:
    - type: file
      config: {{id: out, path: "{output}"}}
"""


@dataclass
class Supervised:
    """One pipeline under Airflow, and what its drivers do meanwhile."""

    stage: Stage
    name: str
    told: list[str] = field(default_factory=list)
    """What was done and seen, in order."""

    def __post_init__(self) -> None:
        self.document = self.stage.directory / f"{self.name}.yaml"
        output = self.stage.directory / "output"
        output.mkdir(exist_ok=True)
        output.chmod(0o777)  # A driver may be another user's.
        self.output = output / f"{self.name}.jsonl"
        self._started_ms = int(time.time() * 1000)
        self.write_document()
        self.store: Store = StoreLocation.from_dsn(self.stage.dsn).create()
        pipelines.apply(self.store, self.document.read_text())
        self.control = Control(self.store, self.name)
        self.checkpoints = Checkpoints(self.store, self.name, f"{self.name}-source")
        self.store.transact([self.checkpoints.put("out", {"tx": 0})])
        self.processes = Processes(self.name, self.stage.driver_of)

    def begin_anew(self) -> None:
        """Forget what was noted so far."""
        self.told = []
        self.processes.begin_anew()

    def write_document(self, max_events: int = 30) -> str:
        """Write the document; another batch size makes it another document."""
        text = DOCUMENT.format(
            name=self.name,
            started_ms=self._started_ms,
            output=self.output,
            max_events=max_events,
        )
        self.document.write_text(text)
        return text

    def say(self, words: str) -> None:
        """Note a step."""
        self.told.append(words)

    @property
    def record(self) -> ControlRecord:
        """Return the control record."""
        record = self.control.read()
        assert record is not None, f"{self.name} has no control record"
        return record

    def status(self) -> PipelineStatus:
        """Return the truth about the pipeline."""
        return status(self.store, self.name, self.stage.backend)

    def trigger(self, dag: str = "stream_stop") -> "TaskRun":
        """Start a DAG run that supervises this pipeline."""
        run = self.stage.airflow.rest.trigger(dag, {"document": str(self.document)})
        self.say(f"triggered {dag}")
        return TaskRun(self, dag, run)

    def begin(self, dag: str = "stream_stop") -> "TaskRun":
        """Start a run, and return when its trigger watches and the stream delivers."""
        run = self.trigger(dag)
        run.wait({"deferred"})
        run.wait_watched()
        self.wait_delivers()
        return run

    def at(self) -> int:
        """Return the last transaction that is checkpointed."""
        return int((self.checkpoints.load().get("out") or {"tx": 0})["tx"])

    def wait_delivers(self) -> None:
        """Wait until the stream runs and has got ahead from where it is now."""
        before = self.at()
        self.wait("the stream to deliver", lambda: self.at() > before)
        self.wait("a running stream", lambda: self.status().status == "running")

    def wait(self, what: str, found: Callable[[], object]) -> None:
        """Wait for something; say how the pipeline stands when it does not happen."""
        try:
            _wait_for(what, found)
        except AssertionError as error:
            present = self.status()
            tail = self.stage.backend.logs_tail(present.handle, 15) if present.handle else ""
            raise AssertionError(f"{error}; {present.status}, {present.reason}\n{tail}") from error

    def wait_restarts(self, count: int) -> None:
        """Wait until the driver was restarted so often and the stream delivers again."""
        self.wait("a restart", lambda: len(self.record.restarts) == count)
        self.wait_delivers()
        self.say("the driver was restarted")

    def wait_gone(self) -> None:
        """Wait until no driver lives."""
        self.wait("the end of every driver", lambda: not self.processes.living())

    def hold(self, place: str) -> None:
        """Ask the next task process that comes to a place to wait there."""
        (self.stage.holds / f"{self.name}.{place}.asked").touch()

    def wait_held(self, place: str) -> int:
        """Wait until a task process stands at the place; return its id."""
        held = self.stage.holds / f"{self.name}.{place}.held"
        self.wait(f"a task held {place}", lambda: held.exists() and held.read_text())
        self.say(f"task held {place}")
        return here(held.read_text())

    def release(self, place: str) -> None:
        """Let a held process go on."""
        (self.stage.holds / f"{self.name}.{place}.held").unlink(missing_ok=True)

    def kill_driver(self) -> Driver:
        """Kill every process of the driver, as a machine does; return which it was."""
        (driver,) = self.processes.living()
        self.processes.kill(driver)
        self.say("driver killed (SIGKILL)")
        return driver

    def stop(self) -> None:
        """Release every held task, and stop what lives of the pipeline."""
        for place in ("before_submit", "after_submit", "before_defer", "complete"):
            (self.stage.holds / f"{self.name}.{place}.asked").unlink(missing_ok=True)
            self.release(place)
        if self.control.read() is not None:
            pipelines.stop(self.store, self.name, self.stage.backend)

    def close(self) -> None:
        """Kill what is left of the drivers, and close the store."""
        self.processes.end()
        self.store.close()

    def judged(self) -> list[str]:
        """Ask the oracle about everything that is checkpointed."""
        last = self.at()
        source = ScriptedSource(id=f"{self.name}-source", transactions=last, rows=ROWS, keys=KEYS)
        history = [
            Change((tx, row), ("script.rows", key), {"id": key, "tx": tx, "row": row})
            for tx, row, key in (source.events(1, last) if last else ())
        ]
        seen = seen_in_file(
            self.output, lambda event: (event["after"]["tx"], event["after"]["row"])
        )
        # Beyond the checkpoint a killed driver may have delivered what nobody has counted yet.
        return judge(history, [event for event in seen if event.state["tx"] <= last])

    def repeated(self) -> int:
        """Return how many events arrived more than once."""
        seen = seen_in_file(self.output, lambda event: event["event_id"])
        return len(seen) - len({event.event_id for event in seen})


@dataclass
class TaskRun:
    """The stream task of one DAG run."""

    pipeline: Supervised
    dag: str
    id: str

    @property
    def task(self) -> dict[str, Any]:
        """Return the task instance."""
        return self.pipeline.stage.airflow.rest.task(self.dag, self.id, TASK)

    def wait(self, states: set[str], attempt: int = 1) -> dict[str, Any]:
        """Wait until an attempt is in one of these states."""

        def arrived() -> bool:
            task = self.task
            return task["try_number"] >= attempt and task["state"] in states

        try:
            _wait_for(f"attempt {attempt} of the task to be {states}", arrived)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.shown()}\n{self.log()[-2000:]}") from error
        self.pipeline.say(f"task {self.shown()}")
        return self.task

    def wait_watched(self) -> None:
        """Wait until the triggerer runs the deferred task's trigger, which a user's act reaches."""
        said = f"{self.pipeline.name}: running"
        _wait_for("the trigger to watch", lambda: said in self.log())

    def shown(self) -> str:
        """Return attempt and state as words."""
        task = self.task
        return f"{task['state']} (attempt {task['try_number']})"

    def ends_as(self, state: str, attempt: int = 1) -> None:
        """Wait for the end of the task; it must be this one, without another attempt."""
        task = self.wait({"failed", "success", "skipped"}, attempt)
        assert (task["state"], task["try_number"]) == (state, attempt), self.shown()

    def mark(self, state: str) -> None:
        """Mark the task, as a user does."""
        self.pipeline.stage.airflow.rest.set_task_state(self.dag, self.id, TASK, state)
        self.pipeline.say(f"marked {state}")

    def clear(self) -> None:
        """Clear the task, as a user does."""
        self.pipeline.stage.airflow.rest.clear(self.dag, self.id, [TASK])
        self.pipeline.say("cleared")

    def log(self) -> str:
        """Return the log of the present attempt."""
        task = self.task
        return self.pipeline.stage.airflow.rest.log(self.dag, self.id, TASK, task["try_number"])


def _wait_for(what: str, found: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE_S:.0f} s for {what}")
        time.sleep(POLL_S)
