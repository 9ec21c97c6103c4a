"""``deltaforge fleet`` over a folder of shops under load, in processes that a test can kill."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_deltaforge.control.launching.backends import LaunchBackends
from airflow_provider_deltaforge.control.status import PipelineStatus, status
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.location import ENVIRONMENT, StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from tests.e2e.exact_sources import SHOPS
from tests.engine.exact_run import new_place
from tests.oracle.readers import seen_in, whole_lines
from tests.oracle.verdict import judge
from tests.servers.process import Server
from tests.waiting import PATIENCE_S, wait_for

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: {source}
    config: {{id: {name}-source, snapshot: {{mode: initial, chunk_size: 60}}, {settings}}}
  batch: {{max_events: {batch}, max_ms: 20}}
  sinks: [{sink}]
"""

BROKEN = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: broken, tenant: tests}}
spec:
  source:
    type: turso
    config: {{id: broken-source, url: '{path}', tables: [orders], cdc_mode: native}}
  sinks: [{{type: file, config: {{id: out, path: '{path}.jsonl'}}}}]
"""

_COMMAND = [sys.executable, "-m", "airflow_provider_deltaforge.cli.app"]


class FleetRun:
    """A store, a folder of documents, and the fleets over them."""

    def __init__(self, directory: Path, *words: str) -> None:
        self.directory = directory
        self.folder = directory / "documents"
        self.folder.mkdir()
        self.dsn = f"sqlite:///{directory}/state.db"
        self.store = StoreLocation.from_dsn(self.dsn).create()
        self.backend = LaunchBackends.of_store(self.dsn)
        self._words = words
        self._fleets: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start a fleet; its own lines go to ``fleet-N.log``."""
        log = self.log_of(len(self._fleets))
        with log.open("wb") as file:
            fleet = subprocess.Popen(
                [*_COMMAND, "fleet", str(self.folder), *self._words, "--api-addr", "off", *words],
                env={**os.environ, ENVIRONMENT: self.dsn, "COLUMNS": "300"},
                cwd=self.directory,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self._fleets.append(fleet)
        return fleet

    def write_broken(self) -> None:
        """Write the document of a pipeline that no restart cures: ``broken``."""
        path = self.directory / "no-database"
        path.write_text("this is no database\n" * 400)
        (self.folder / "broken.yaml").write_text(BROKEN.format(path=path))

    def log_of(self, number: int) -> Path:
        """Return what a fleet prints."""
        return self.directory / f"fleet-{number}.log"

    def command(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of ours against the store, as a person does in another shell."""
        return subprocess.run(
            [*_COMMAND, *words],
            check=False,
            env={**os.environ, ENVIRONMENT: self.dsn, "COLUMNS": "300"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def status(self, name: str) -> PipelineStatus | None:
        """Return what is true of a pipeline; None while nobody has applied it."""
        try:
            return status(self.store, name, self.backend)
        except SpecError:
            return None

    def wait(self, name: str, word: str) -> PipelineStatus:
        """Wait until a pipeline is ``running``, ``paused``, and so on."""

        def found() -> PipelineStatus | None:
            present = self.status(name)
            return present if present is not None and present.status == word else None

        try:
            wait_for(f"{name} to be {word}", found)
        except AssertionError as error:
            logs = [log.read_text()[-4000:] for log in sorted(self.directory.glob("fleet-*.log"))]
            raise AssertionError(
                f"{error}; {self.status(name)}\n" + "\n----\n".join(logs)
            ) from None
        present = found()
        return present if present is not None else self.wait(name, word)

    def epoch(self, name: str) -> int:
        """Return how often a lane of the pipeline was begun."""
        return Control(self.store, name).epoch()

    def stop(self, fleet: "subprocess.Popen[bytes]") -> int:
        """Ask a fleet to end in order; return its exit code."""
        fleet.send_signal(signal.SIGTERM)
        return fleet.wait(PATIENCE_S)

    def close(self) -> None:
        """Leave no fleet behind."""
        for fleet in self._fleets:
            fleet.kill()
            fleet.wait()
        self.store.close()


class FleetPipeline:
    """One pipeline of a fleet, over a shop of its own.

    Args:
        run: the fleet.
        name: of the pipeline.
        source: of ``SHOPS``.
        servers: by the names of sources and sinks.
        sink: ``file``, or of ``PLACES``.
        pause_s: between two transactions of a writer.
    """

    def __init__(
        self,
        run: FleetRun,
        name: str,
        source: str = "turso",
        servers: Mapping[str, Server] | None = None,
        sink: str = "file",
        pause_s: float = 0.1,
    ) -> None:
        self._run = run
        self.name = name
        directory = run.directory / name
        directory.mkdir()
        server = (servers or {}).get(source)
        self.shop = SHOPS[source](server, pause_s, directory)
        output = directory / "out.jsonl"
        described = f"{{type: file, config: {{id: out, path: '{output}'}}}}"
        self._read = lambda: whole_lines(output)
        if sink != "file":
            place = new_place(sink, (servers or {})[sink].dsn(), "out", exactly_once=False)
            described, self._read = place.sink, place.read
        self._parts = {
            "name": name,
            "source": self.shop.type,
            "settings": self.shop.settings,
            "sink": described,
        }
        self.file = run.folder / f"{name}.yaml"
        self.shop.writers.__enter__()

    def write(self, batch: int = 30) -> None:
        """Put the document into the folder, or change it there."""
        self.file.write_text(DOCUMENT.format(**self._parts, batch=batch))

    def take_away(self) -> None:
        """Take the document out of the folder."""
        self.file.unlink()

    def events(self) -> int:
        """Return how many events have arrived."""
        return len(self._read())

    def wait_events(self, more: int = 20) -> None:
        """Wait until some more events than now have arrived."""
        enough = self.events() + more
        wait_for(f"{more} events of {self.name}", lambda: self.events() >= enough)

    def verdict(self) -> list[str]:
        """Ask the oracle: every change since the snapshot began had to arrive."""
        snapshot = Snapshots(self._run.store, self.name).current()
        if snapshot is None or snapshot.start_position is None:
            return ["no snapshot was begun"]
        changes = self.shop.changes(snapshot.start_position)
        seen = seen_in(self._read(), self.shop.name_of)
        return judge(changes, seen, self.shop.rows())

    def wait_whole(self) -> Any:
        """End the writers, and wait until the oracle misses nothing."""
        self.shop.writers.__exit__()
        self.shop.settle()
        wait_for(f"the oracle to find all of {self.name}: {self.verdict()}", self._is_whole)
        return self.verdict()

    def _is_whole(self) -> bool:
        return not self.verdict()
