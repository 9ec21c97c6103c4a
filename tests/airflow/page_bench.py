"""The page's application in Airflow's own API server, with a pipeline to look at."""

import json
import logging

import pytest

from airflow_provider_deltaforge.api.page import FILES
from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.starting import start
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.requests import (
    SnapshotRequest,
    SnapshotResults,
    result_of,
)
from airflow_provider_deltaforge.storage.records.snapshots import SnapshotRecord, Snapshots
from tests.control.bench import DOCUMENT, job_of
from tests.waiting import wait_until

STATIC = FILES
OWNER = "airflow:shop/stream/manual__2026-11-21T20:00:00+00:00/-1#2@0123abcd"
SECRET = "pl4nted-s3cret"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def client():
    """Airflow's whole API application, plug-ins mounted by Airflow itself."""
    settings = {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ann:admin,una:user,vera:viewer",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__API_AUTH__JWT_SECRET": "0123456789abcdef" * 8,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        from airflow.api_fastapi.app import create_app, purge_cached_app
        from airflow.utils.db import initdb
        from fastapi.testclient import TestClient

        purge_cached_app()
        levels = logging.root.manager.disable
        initdb()
        logging.disable(levels)
        with TestClient(create_app("core"), base_url="http://airflow") as opened:
            yield opened
        purge_cached_app()


def add_dag(dag_id):
    """Write into Airflow's database what its DAG processor would write of a DAG."""
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import LazyDeserializedDAG
    from airflow.utils.session import create_session

    where = {"bundle_name": "tests", "fileloc": "dag.py", "relative_fileloc": "dag.py"}
    with create_session() as session:
        session.merge(DagBundleModel(name="tests"))
        session.flush()
        session.merge(DagModel(dag_id=dag_id, **where, is_paused=False, is_stale=False))
        session.flush()
        dag = LazyDeserializedDAG.from_dag(DAG(dag_id, schedule=None))
        SerializedDagModel.write_dag(dag, bundle_name="tests", session=session)


@pytest.fixture
def token(client):
    """Returns a token of Airflow for a user of a role."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    def token(role):
        return get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=role, role=role))

    return token


@pytest.fixture
def ask(client, token):
    """Ask as a user of a role; ``role=None`` is nobody."""

    def asked(path, role="admin", method="GET", **options):
        headers = {**options.pop("headers", {})}
        if role is not None:
            headers["Authorization"] = f"Bearer {token(role)}"
        return client.request(method, f"/deltaforge{path}", headers=headers, **options)

    return asked


@pytest.fixture
def orders(store, backend, dsn, tmp_path, monkeypatch):
    """A pipeline whose driver runs, with a snapshot begun, a request waiting and one served."""
    value = {"conn_type": "deltaforge", "extra": {"path": str(tmp_path / "state.db")}}
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", json.dumps(value))
    monkeypatch.setattr(DeltaForgeHook, "backend", lambda *_: backend)
    pipelines.apply(store, DOCUMENT)
    start(store, job_of(dsn), backend, OWNER)
    wait_until(lambda: status(store, "orders", backend).status == "running")
    snapshots = Snapshots(store, "orders")
    tables = {"shop.orders": {"chunks": 4, "rows_estimate": 100}}
    run = SnapshotRecord(
        id="r1",
        generation=1,
        started_at_ms=1_760_000_000_000,
        start_position={"tx": 1},
        chunk_count=4,
        tables=tables,
    )
    store.transact(snapshots.begin(run, []))
    store.transact([snapshots.chunk_done("r1", "c1", "shop.orders", 25, {"tx": 1})])
    asked = SnapshotRequest(id="again", tables=["shop.orders"], requested_at_ms=1, by=OWNER)
    served = SnapshotRequest(id="first", where="id > 5", requested_at_ms=1, by=OWNER)
    counted = {"shop.orders": {"chunks": 1, "rows": 7}}
    store.transact(
        SnapshotResults(store, "orders").put(
            result_of(served, "failed", tables=counted, reason="away")
        )
    )
    Control(store, "orders").update(lambda old: old.model_copy(update={"requests": [asked]}))
    return Control(store, "orders")
