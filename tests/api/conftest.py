"""A server of the REST API with fake drivers, and clients with a token each."""

from contextlib import closing
from types import SimpleNamespace

import httpx
import pytest

from airflow_provider_deltaforge.api.access import by_token
from airflow_provider_deltaforge.api.app import create_app
from airflow_provider_deltaforge.api.context import ApiContext
from airflow_provider_deltaforge.api.server import serving
from airflow_provider_deltaforge.control import tokens
from airflow_provider_deltaforge.control.fleet import Fleet
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.storage.location import StoreLocation
from tests.control.conftest import backend, dsn, store
from tests.waiting import PATIENCE_S

__all__ = ["backend", "dsn", "store"]

DOCUMENT = {
    "apiVersion": "deltaforge/v1",
    "kind": "Pipeline",
    "metadata": {"name": "orders", "tenant": "acme", "labels": {"team": "data", "tier": "1"}},
    "spec": {
        "source": {
            "type": "scripted",
            "config": {"id": "shop-db", "transactions": 10, "rows": 3},
        },
        "sinks": [{"type": "file", "config": {"id": "files", "path": "/tmp/orders.jsonl"}}],
    },
}


def opener(dsn):
    """Return what opens a store for one request."""
    location = StoreLocation.from_dsn(dsn)
    return lambda: closing(location.open())


@pytest.fixture
def server(dsn, store, backend):
    """A server: its address, its store, and a token of each scope."""
    fleet = Fleet(StoreLocation.from_dsn(dsn), backend, LaunchSpec("", 0, "stream_job.py", dsn))
    opened = opener(dsn)
    context = ApiContext(opened, backend, fleet, by_token(opened))
    made = {scope: tokens.create(store, scope, scope) for scope in tokens.SCOPES}
    with serving(create_app(context), "127.0.0.1:0") as url:
        yield SimpleNamespace(url=url, store=store, tokens=made, fleet=fleet)
    fleet.close(5)


@pytest.fixture
def client(server):
    """Returns a client with the token of a scope; None sends none."""
    opened = []

    def client(scope="admin"):
        headers = {"Authorization": f"Bearer {server.tokens[scope]}"} if scope else {}
        opened.append(httpx.Client(base_url=server.url, headers=headers, timeout=PATIENCE_S))
        return opened[-1]

    yield client
    for each in opened:
        each.close()


@pytest.fixture
def rest(client):
    """A client that may do everything."""
    return client()
