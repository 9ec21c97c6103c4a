"""What a document says of connections is what the server sees: counted there, and enforced."""

import itertools
import logging
import threading
from contextlib import contextmanager

import pytest

from airflow_provider_deltaforge.control import snapshots
from airflow_provider_deltaforge.control.snapshots import CopySelection
from tests.engine.driving import DrivenRun
from tests.engine.in_process import QUICK
from tests.servers import sql
from tests.sources.postgres.stream_reading import drop, execute, fresh
from tests.waiting import wait_for

NAME = "counted"
TABLES, ROWS, READERS = 3, 40, 2
DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: {kind}
    config: {{id: {name}, dsn: "{dsn}", tables: ["{tables}"], {more} snapshot: {{mode: initial,
      chunk_size: 10, intra_table_parallel: true, max_rows_per_s: 40}}}}
  connection_policy: {{default_mode: dedicated, limits: {{max_dedicated_per_source: {limit}}}}}
  batch: {{max_ms: 10}}
  sinks:
    - {{type: memory, config: {{id: out, log: {name}}}}}
"""
FILLED = [
    statement
    for table in range(TABLES)
    for statement in (
        f"CREATE TABLE t{table} (id int PRIMARY KEY)",
        f"INSERT INTO t{table} VALUES " + ", ".join(f"({row})" for row in range(ROWS)),
    )
]
_unique = itertools.count()


@pytest.fixture
def mysql(mysql_server):
    """A document of a user who may have so many connections, and what counts them."""
    limit, server = 2 * READERS + 4, mysql_server
    sql.execute(
        server,
        f"DROP DATABASE IF EXISTS {NAME}",
        f"CREATE DATABASE {NAME}",
        f"USE {NAME}",
        *FILLED,
        f"DROP USER IF EXISTS {NAME}",
        f"CREATE USER {NAME} IDENTIFIED BY 'counted' WITH MAX_USER_CONNECTIONS {limit}",
        f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {NAME}",
    )
    dsn = f"mysql://{NAME}:counted@{server.host}:{server.port}/{NAME}"
    count = f"SELECT count(*) FROM information_schema.processlist WHERE user = '{NAME}'"
    yield (
        limit,
        {"kind": "mysql", "dsn": dsn, "tables": f"{NAME}.*", "more": ""},
        lambda: sql.execute(server, count)[0][0],
    )
    sql.execute(server, f"DROP DATABASE {NAME}", f"DROP USER {NAME}")


@pytest.fixture
def postgres(postgres_server):
    limit, server = READERS + 5, postgres_server
    fresh(server, NAME, *FILLED)
    execute(server, f"DROP ROLE IF EXISTS {NAME}")
    execute(server, f"CREATE ROLE {NAME} LOGIN REPLICATION CONNECTION LIMIT {limit}")
    execute(
        server,
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {NAME}",
        f"CREATE PUBLICATION {NAME} FOR ALL TABLES",
        database=NAME,
    )
    dsn = f"postgresql://{NAME}@{server.host}:{server.port}/{NAME}"
    more = f"publication: {NAME}, slot: {NAME},"
    count = f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{NAME}'"
    yield (
        limit,
        {"kind": "postgres", "dsn": dsn, "tables": "public.t%", "more": more},
        lambda: execute(server, count)[0][0],
    )
    execute(server, f"DROP OWNED BY {NAME}", database=NAME)
    drop(server, NAME)
    execute(server, f"DROP ROLE {NAME}")


@contextmanager
def counting(count):
    """Yield a list that gets the number of connections, again and again."""
    over, seen = threading.Event(), []

    def look():
        while not over.wait(0.03):
            seen.append(count())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("database", ["mysql", "postgres"])
def test_stream_and_copies_keep_within_their_connections(database, request, caplog):
    """The server refuses one more, so that none was refused is the proof; the count is for us.

    Rows are copied so slowly that even a busy machine looks often meanwhile.
    """
    limit, settings, count = request.getfixturevalue(database)
    name = f"{NAME}-{database}-{next(_unique)}"
    run = DrivenRun(name, DOCUMENT.format(name=name, limit=limit, **settings))
    run.tuning = QUICK
    caplog.set_level(logging.WARNING)
    with counting(count) as seen:
        run.start()
        before = len(seen)
        assert max(seen) >= READERS
        snapshots.request(run.store, name, CopySelection(()), "again", "me")
        wait_for("the copy", lambda: snapshots.request_state(run.store, name, "again").settled)
        assert max(seen[before:]) > READERS
        run.stop()
    assert max(seen) <= limit
    assert len(run.messages()) == 2 * TABLES * ROWS
    refused = ("max_user_connections", "too many connections")
    assert not [text for text in caplog.messages if any(word in text for word in refused)]
