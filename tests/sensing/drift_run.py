"""A pipeline with schema sensing from MySQL or PostgreSQL into this process, and its REST API."""

import itertools
from contextlib import closing, contextmanager

import httpx
import yaml

from airflow_provider_deltaforge.api.access import on_this_machine
from airflow_provider_deltaforge.api.app import create_app
from airflow_provider_deltaforge.api.context import ApiContext
from airflow_provider_deltaforge.api.server import serving
from airflow_provider_deltaforge.control import pipelines
from tests.engine.driving import DrivenRun
from tests.waiting import wait_for

_unique = itertools.count()


class DriftRun(DrivenRun):
    """One pipeline; its state store, too, is in this process.

    Args:
        source: of the document, without its id.
        processors: of the document.
        sensing: more of ``schema_sensing``.
        name: of the pipeline and of its source; unique without one.
    """

    def __init__(self, source, processors=(), sensing=None, name=None):
        self.name = name = name or f"drift-{next(_unique)}"
        config = {**source["config"], "id": name}
        self.spec = {
            "source": {**source, "config": config},
            "processors": list(processors),
            "batch": {"max_ms": 10},
            "sinks": [{"type": "memory", "config": {"id": "out", "log": name}}],
            "schema_sensing": {"enabled": True, **(sensing or {})},
        }
        self.authority = on_this_machine()
        super().__init__(name, self.document())

    def document(self):
        head = {"apiVersion": "deltaforge/v1", "kind": "Pipeline"}
        metadata = {"name": self.name, "tenant": "tests"}
        return yaml.safe_dump({**head, "metadata": metadata, "spec": self.spec})

    def apply(self):
        """Apply the present document."""
        pipelines.apply(self.store, self.document())

    def status_counts(self):
        """Return what the driver reports, by table and type."""
        return self.control.progress().data_drift.tables

    @contextmanager
    def rest(self):
        """Serve the REST API; yield a client below the pipeline."""
        context = ApiContext(lambda: closing(self.location.open()), None, None, self.authority)
        with (
            serving(create_app(context), "127.0.0.1:0") as url,
            httpx.Client(base_url=f"{url}/pipelines/{self.name}") as client,
        ):
            yield client

    def wait_analyzed(self, client, table, events):
        """Wait until so many events are counted; return the table's answer."""

        def answer():
            got = client.get(f"/drift/{table}")
            return got.json() if got.status_code == 200 else {"events_analyzed": 0}

        wait_for(
            f"{events} events, not {answer()}",
            lambda: self.ended() or answer()["events_analyzed"] >= events,
        )
        assert answer()["events_analyzed"] >= events, self.driving.outcome
        return answer()


def mysql_source(server, database, **settings):
    """Return the source of a document over MySQL or MariaDB."""
    dsn = f"mysql://df:df-secret@{server.host}:{server.port}/{database}"
    config = {"dsn": dsn, "tables": [f"{database}.*"], "snapshot": {"mode": "never"}, **settings}
    return {"type": "mysql", "config": config}


def postgres_source(server, database, **settings):
    """Return the source of a document over PostgreSQL."""
    config = {"dsn": server.dsn(database), "tables": ["*"], "slot": database, "publication": "df"}
    return {"type": "postgres", "config": {**config, "snapshot": {"mode": "never"}, **settings}}


def by_column(answer):
    """Return the records of a table's answer by (column, type)."""
    return {(record["column"], record["drift_type"]): record for record in answer["records"]}
