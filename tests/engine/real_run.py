"""A pipeline from a real server into files, driven by a thread of the test."""

import itertools
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import yaml

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.status import PipelineStatus, status
from airflow_provider_deltaforge.engine.base.outcome import Outcome
from airflow_provider_deltaforge.engine.base.tuning import TUNING, Tuning
from airflow_provider_deltaforge.engine.driver.driver import DriverArguments, drive_stream
from airflow_provider_deltaforge.engine.driver.local import LocalRunner
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control
from tests.servers import sql
from tests.servers.process import Server
from tests.waiting import PATIENCE_S

_unique = itertools.count()


class RealRun:
    """One table ``t`` (``id``, ``v``) of a server, and the pipeline that follows it.

    Args:
        server: MySQL, MariaDB or PostgreSQL.
        directory: where the sinks' files lie.
        port: where the source finds its server, when that is not the server itself.
        settings: more of the source.
        more: further blocks beside source and sinks, or in their place.
        tuning: of the driver.
    """

    def __init__(
        self,
        server: Server,
        directory: Path,
        port: int | None = None,
        settings: Mapping[str, Any] | None = None,
        location: StoreLocation | None = None,
        more: Mapping[str, Any] | None = None,
        tuning: Tuning = TUNING,
    ) -> None:
        self._tuning = tuning
        self.name = f"real{next(_unique)}"
        self.server, self.directory = server, directory
        self.is_postgres = "postgres" in server.name
        self.location = location or StoreLocation.from_dsn(f"memory://{self.name}")
        self.store = self.location.create()
        self.control = Control(self.store, self.name)
        self._port = port or server.port
        self._settings, self._more = dict(settings or {}), dict(more or {})
        self._create()
        self.apply("out")

    def apply(self, *sinks: str) -> None:
        """Apply a document with these sinks."""
        dsn = f"{self.server.host}:{self._port}/{self.name}"
        tables = "public.t" if self.is_postgres else f"{self.name}.t"
        source = {
            "id": self.name,
            "dsn": f"{'postgres' if self.is_postgres else 'mysql'}://df:df-secret@{dsn}",
            "tables": [tables],
            **({"slot": self.name, "publication": self.name} if self.is_postgres else {}),
            **self._settings,
        }
        outputs = [
            {
                "type": "file",
                "config": {"id": name, "path": str(self.path(name)), "start": "latest"},
            }
            for name in sinks
        ]
        document = {
            "apiVersion": "deltaforge/v1",
            "kind": "Pipeline",
            "metadata": {"name": self.name, "tenant": "tests"},
            "spec": {
                "source": {"type": "postgres" if self.is_postgres else "mysql", "config": source},
                "sinks": outputs,
                **self._more,
            },
        }
        pipelines.apply(self.store, yaml.safe_dump(document))

    def change_source(self, *sinks: str, **settings: Any) -> None:
        """Apply the document with other settings of the source."""
        self._settings |= settings
        self.apply(*sinks)

    def path(self, sink: str = "out") -> Path:
        """Return the file of a sink."""
        return self.directory / f"{self.name}-{sink}.jsonl"

    def start(self) -> None:
        """Start a driver of a new generation in a thread."""
        record = self.control.update(
            lambda old: old.model_copy(
                update={"desired": "running", "generation": old.generation + 1}
            )
        )
        self._outcomes: list[Outcome] = []
        assignment = DriverArguments(
            self.name, self.location, record.generation, tuning=self._tuning
        )
        self._thread = threading.Thread(
            target=lambda: self._outcomes.append(drive_stream(assignment, LocalRunner())),
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> Outcome:
        """Ask the driver to end; return how it did."""
        pipelines.ask_to_stop(self.store, self.name)
        self._thread.join(PATIENCE_S)
        assert self._outcomes, "the driver did not end"
        return self._outcomes[0]

    def status(self) -> PipelineStatus:
        """Return what people see."""
        return status(self.store, self.name)

    def insert(self, *rows: int) -> None:
        """Write rows, each in a transaction of its own."""
        self.execute(*(f"INSERT INTO t VALUES ({row}, 'x')" for row in rows))

    def execute(self, *statements: str) -> None:
        """Run statements on the server itself."""
        if self.is_postgres:
            with psycopg.connect(self.server.dsn(self.name), autocommit=True) as connection:
                for statement in statements:
                    connection.execute(statement)
        else:
            sql.execute(self.server, *statements, database=self.name)

    def rows(self, sink: str = "out") -> list[int]:
        """Return the ids of the rows that a sink has."""
        if not self.path(sink).exists():
            return []
        lines = self.path(sink).read_text().splitlines()
        return [event["after"]["id"] for event in map(json.loads, lines)]

    def _create(self) -> None:
        table = "CREATE TABLE t (id int PRIMARY KEY, v varchar(20))"
        if self.is_postgres:
            with psycopg.connect(self.server.dsn("postgres"), autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {self.name}")
            self.execute(
                table, "ALTER TABLE t OWNER TO df", f"ALTER DATABASE {self.name} OWNER TO df"
            )
        else:
            sql.execute(self.server, f"CREATE DATABASE {self.name}")
            self.execute(table)
