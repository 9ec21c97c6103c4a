"""PostgreSQL for the stores: each test has a schema of its own."""

import itertools
from urllib.parse import quote

import psycopg
import pytest

_number = itertools.count(1)


@pytest.fixture
def postgres_dsn(postgres_server) -> str:
    """DSN of an empty place in the shared server."""
    schema = f"state{next(_number)}"
    with psycopg.connect(postgres_server.dsn("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    return f"{postgres_server.dsn('postgres')}?options={quote(f'-csearch_path={schema}', safe='')}"


@pytest.fixture
def sqlite_dsn(tmp_path) -> str:
    """DSN of a file that does not exist yet."""
    return f"sqlite:///{tmp_path}/deep/state.db"


@pytest.fixture(params=["sqlite", "postgres"])
def durable_dsn(request) -> str:
    """One DSN of each durable backend."""
    return request.getfixturevalue(f"{request.param}_dsn")
