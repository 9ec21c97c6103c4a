"""The page behind a real server of the REST API, over records of pipelines in every state."""

from contextlib import closing
from types import SimpleNamespace

import pytest

from airflow_provider_deltaforge.api.access import by_token
from airflow_provider_deltaforge.api.app import create_app
from airflow_provider_deltaforge.api.context import ApiContext
from airflow_provider_deltaforge.api.server import serving
from airflow_provider_deltaforge.control import tokens
from airflow_provider_deltaforge.control.fleet import Fleet
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.launching.local import LocalBackend
from airflow_provider_deltaforge.storage.location import StoreLocation
from tests.control.bench import fake_driver
from tests.page.browser import browser, opened  # noqa: F401 - a fixture
from tests.page.fleet import beating, fill


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server: its address, its store, and a token of each scope."""
    place = tmp_path_factory.mktemp("page")
    dsn = f"sqlite:///{place}/state.db"
    location = StoreLocation.from_dsn(dsn)
    backend = LocalBackend(place / "jobs", compose=fake_driver)
    fleet = Fleet(location, backend, LaunchSpec("", 0, "stream_job.py", dsn))

    def opened_store():
        return closing(location.open())

    context = ApiContext(opened_store, backend, fleet, by_token(opened_store))
    with closing(location.create()) as store:
        made = {scope: tokens.create(store, scope, scope) for scope in tokens.SCOPES}
        with beating(dsn, fill(store)), serving(create_app(context), "127.0.0.1:0") as url:
            yield SimpleNamespace(url=url, store=store, tokens=made, context=context)
        fleet.close(5)


@pytest.fixture
def page(served, browser):  # noqa: F811
    """A page of the browser, at nothing yet."""
    with opened(browser, served.url) as found:
        yield found


@pytest.fixture
def enter(served, page):
    """Returns a function that goes to a view, signed in with the token of a scope."""

    def enter(query="", scope="admin"):
        token = served.tokens[scope]
        page.add_init_script(f"sessionStorage.setItem('deltaforge-token', {token!r})")
        page.goto(f"/ui/{query}")
        return page

    return enter
