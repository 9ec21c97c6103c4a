"""Databases of PostgreSQL for tests: each is made for a test and gone behind it."""

from collections.abc import Callable, Iterator

import pytest

from airflow_provider_deltaforge.sources.postgres.source import PostgresSource
from tests.servers.process import Server
from tests.sources.postgres.copying import fresh_database, source_of
from tests.sources.postgres.stream_reading import drop, drop_slots, fresh

_SERVERS = ("postgres_server", pytest.param("postgres18_server", marks=pytest.mark.long))


@pytest.fixture(scope="module", params=_SERVERS)
def either(request: pytest.FixtureRequest) -> Server:
    """A server of each version that copies are tested on."""
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def shop(request: pytest.FixtureRequest, either: Server) -> Iterator[Callable[..., PostgresSource]]:
    """Make the module's database ``NAME`` with the test's tables, and return a source of it."""
    name = request.module.NAME

    def make(*statements: str, kind: type[PostgresSource] = PostgresSource) -> PostgresSource:
        fresh_database(either, name, *statements)
        return source_of(either, name, kind=kind)

    yield make
    drop_slots(either, name)


@pytest.fixture
def database(request: pytest.FixtureRequest, postgres_server: Server) -> Iterator[str]:
    """Name of a database of the test's own, with the module's ``TABLE``."""
    name = request.function.__name__.removeprefix("test_")[:40]
    fresh(postgres_server, name, request.module.TABLE)
    yield name
    drop(postgres_server, name)
