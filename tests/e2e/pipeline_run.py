"""A pipeline to Kafka in a process of its own, as a test drives and judges it; from MySQL here."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from confluent_kafka.admin import AdminClient
from fastapi.testclient import TestClient

from airflow_provider_deltaforge.api.health import create_app
from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.launching.spark_submit import command, environment
from airflow_provider_deltaforge.control.metrics import Observed
from airflow_provider_deltaforge.control.status import PipelineStatus, status
from airflow_provider_deltaforge.engine.base.crash_points import HOLD_VARIABLE, CrashPoint
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control, ControlRecord, Progress
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from tests.e2e import shop
from tests.engine.forked import Forked
from tests.oracle.mysql_history import history, name_of, new_file, table_rows
from tests.oracle.readers import NameOf, seen_in
from tests.oracle.verdict import Change, Seen, judge
from tests.servers.process import Server
from tests.sinks.kafka_reader import read_topic

PATIENCE_S = 150.0

Driver = subprocess.Popen[bytes] | Forked

_started: list[Driver] = []

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: acme}}
spec:
  source:
    type: {source_type}
    config:
      id: {name}
      {source}
      snapshot: {{mode: {snapshot}, chunk_size: 100, intra_table_parallel: {parallel}}}
  batch: {batch}
  journal: {journal}
  sinks:
    - type: kafka
      config:
        id: kafka
        brokers: ${{KAFKA_BROKERS}}
        topic: "{topic}"
        send_timeout_secs: {send_timeout_s}
        client_conf: {client_conf}
{sink}
"""

LOCAL = (
    "import sys, logging; logging.basicConfig(level=logging.INFO); "
    "from airflow_provider_deltaforge.engine.driver.local import run_local; "
    "from airflow_provider_deltaforge.storage.location import StoreLocation; "
    "sys.exit(run_local(sys.argv[1], StoreLocation.from_environment(), int(sys.argv[2])))"
)


@dataclass
class PipelineRun:
    """One pipeline, its store, and the processes that drive it."""

    directory: Path
    name: str
    server: Server
    brokers: str
    database: str
    tables: list[str]
    snapshot: str = "initial"
    parallel: bool = True
    topic: str = ""
    """Template of the topic; by default one topic per table."""
    send_timeout_s: int = 5
    batch: dict[str, Any] = field(default_factory=dict)
    client_conf: dict[str, Any] = field(default_factory=dict)
    journal: dict[str, Any] = field(default_factory=dict)
    sink: dict[str, Any] = field(default_factory=dict)
    """More settings of the sink."""
    variables: dict[str, str] = field(default_factory=dict)
    master: str | None = None
    """None: without Spark."""
    own_process: bool = False
    """Start a Python for each driver, which takes seconds; else fork it from one."""

    def __post_init__(self) -> None:
        self.store_dsn = f"sqlite:///{self.directory}/state.db"
        self.log = self.directory / "driver.log"
        self.held = self.directory / "held"
        self.store = StoreLocation.from_dsn(self.store_dsn).create()
        self.control = Control(self.store, self.name)
        self.driver: Driver | None = None
        self.variables = {
            "MYSQL_DSN": f"mysql://df:df-secret@{self.server.host}:{self.server.port}/",
            "KAFKA_BROKERS": self.brokers,
            **self.variables,
        }
        self.begin_history()
        self.apply()

    def begin_history(self) -> None:
        """Prepare what the oracle reads."""
        # It reads the log file by file: this one holds little of earlier tests.
        new_file(self.server)

    def source(self) -> tuple[str, dict[str, Any]]:
        """Return the source's type, and its settings that other servers do not have."""
        return "mysql", {"dsn": "${MYSQL_DSN}", "tables": [f"{self.database}.*"]}

    def apply(self, **changes: Any) -> None:
        """Apply the document, with some of the settings above changed."""
        for name, value in changes.items():
            setattr(self, name, value)
        source_type, settings = self.source()
        document = DOCUMENT.format(
            name=self.name,
            source_type=source_type,
            source="\n      ".join(
                f"{key}: {json.dumps(value)}" for key, value in settings.items()
            ),
            snapshot=self.snapshot,
            parallel=json.dumps(self.parallel),
            topic=self.topic or f"{self.name}.${{source.table}}",
            send_timeout_s=self.send_timeout_s,
            batch=json.dumps(self.batch),
            journal=json.dumps(self.journal),
            client_conf=json.dumps(self.client_conf),
            sink="\n".join(
                f"        {name}: {json.dumps(told)}" for name, told in self.sink.items()
            ),
        )
        pipelines.apply(self.store, document)

    def status(self) -> PipelineStatus:
        """Return what people see."""
        return status(self.store, self.name)

    def healthy(self) -> bool:
        """Ask ``/healthz``."""
        with TestClient(create_app(lambda _: [Observed(self.status())])) as client:
            return client.get("/healthz").status_code == 200

    def progress(self) -> Progress:
        progress = self.control.progress()
        assert progress is not None
        return progress

    def start(self, hold: tuple[CrashPoint, int] | None = None, *, again: bool = False) -> Driver:
        """Start the driver of a new generation, or another one of the same."""
        more = 0 if again else 1
        record = self.control.update(
            lambda old: old.model_copy(
                update={"desired": "running", "generation": old.generation + more}
            )
        )
        job = LaunchSpec(
            self.name, record.generation, "stream_job.py", self.store_dsn, self.master or ""
        )
        line = [sys.executable, "-c", LOCAL, self.name, str(record.generation)]
        told = {**environment(job), **self.variables}
        if hold is not None:
            self.held.unlink(missing_ok=True)
            told[HOLD_VARIABLE] = f"{hold[0].value}:{hold[1]}:{self.held}"
        if self.master is None and not self.own_process:
            self.driver = Forked(self.name, told, self.log, record.generation)
        else:
            with self.log.open("ab") as log:
                self.driver = subprocess.Popen(
                    command(job) if self.master else line,
                    env=told,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        _started.append(self.driver)
        return self.driver

    def stop(self, driver: Driver) -> int:
        pipelines.ask_to_stop(self.store, self.name)
        return driver.wait(PATIENCE_S)

    def wait_held(self) -> int:
        self.wait(lambda: self.held.exists() and self.held.read_text() != "")
        return int(self.held.read_text())

    def let_go(self) -> None:
        self.held.write_text("go")

    def wait_caught_up(self) -> None:
        """Wait until the checkpoint has reached the present head of the source's log."""
        from airflow_provider_deltaforge.spec.load import load

        document = self.control.document() or ""
        source = load(document, self.variables).spec.source
        head = source.head()
        checkpoints = Checkpoints(self.store, self.name, source.id)

        def caught_up() -> bool:
            at = checkpoints.load().get("kafka")
            return at is not None and source.compare(at, head) >= 0

        self.wait(caught_up)

    def wait_status(self, status: str) -> Progress:
        """Wait for a status, and return the progress that says so."""
        generation = (self.control.read() or ControlRecord()).generation
        found: list[Progress] = []

        def said() -> bool:
            told = self.control.progress()
            if told is not None and (told.generation, told.status) == (generation, status):
                found.append(told)
            return bool(found)

        self.wait(said)
        return found[0]

    def wait_events(self, more: int) -> None:
        """Wait until so many more events were counted."""
        wanted = self.progress().events + more
        self.wait(lambda: self.progress().events >= wanted)

    def wait(self, ready: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while not ready():
            ended = self.driver is not None and self.driver.poll() is not None
            if (ended and not ready()) or time.monotonic() > deadline:
                log = self.log.read_text()[-4000:] if self.log.exists() else ""
                code = self.driver.poll() if self.driver is not None else None
                what = f"driver ended with {code}" if ended else f"not within {patience_s} s"
                raise AssertionError(f"{what}: {self.control.progress()}\n{log}")
            time.sleep(0.05)

    def judge(
        self, at_least: int = 100, *, tables: bool = True, each_row_once: bool = False
    ) -> list[str]:
        """Ask the oracle about everything since the snapshot began.

        Args:
            at_least: changes without which the test would show nothing.
            tables: compare with the tables as they are now, too.
            each_row_once: no change may follow that the snapshot shows.
        """
        run = Snapshots(self.store, self.name).current()
        assert run is not None
        truth = self.history(run.start_position)
        assert len(truth) >= at_least, "the writers did nothing"
        seen = self.seen()
        rows = self.rows() if tables else None
        cuts = Snapshots(self.store, self.name).cuts(run.id).values()
        # On a busy machine MySQL's views may name a part of what they contain.
        each_row_once = each_row_once and not any(cut.get("inexact") for cut in cuts)
        return judge(truth, seen, rows, each_row_once=each_row_once)

    def history(self, after: dict[str, Any]) -> list[Change]:
        """Return what happened, as the oracle reads it."""
        return history(self.server, self.database, after)

    def rows(self) -> dict[Any, Any]:
        """Return the tables as they are now."""
        return table_rows(self.server, self.database, self.tables)

    name_of: ClassVar[NameOf] = staticmethod(name_of)

    def seen(self) -> list[Seen]:
        """Return what a consumer of the topics that the document names now sees."""
        prefix = self.topic.partition("$")[0] or f"{self.name}."
        known = AdminClient({"bootstrap.servers": self.brokers})
        return [
            event
            for topic in sorted(known.list_topics(timeout=60).topics)
            if topic.startswith(prefix)
            for event in seen_in((r.value for r in read_topic(self.brokers, topic)), self.name_of)
        ]


def run_in(
    directory: Path, server: Server, kafka: Server, name: str, **settings: Any
) -> PipelineRun:
    """Return a pipeline over a new shop of the same name, applied and not started."""
    shop.create(server, name, orders=600)
    return PipelineRun(directory, name, server, kafka.dsn(), name, shop.TABLES, **settings)


def end_drivers() -> None:
    """Kill every driver that was started and still lives."""
    while _started:
        driver = _started.pop()
        if driver.poll() is None:
            driver.kill()
            driver.wait()
