"""A connection that is kept for many questions."""

import threading

import psycopg
import pytest

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sources.postgres.borrowed_connection import SharedConnection
from tests.sources.postgres.stream_reading import connect, execute
from tests.waiting import PATIENCE_S, wait_for

ALWAYS_CHECKED = {"idle_s": -1.0}
WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.fixture
def opened(request, postgres_server):
    """Yield a kept connection, and the list of those that were opened for it."""
    connections = []

    def open_one():
        connections.append(connect(postgres_server))
        return connections[-1]

    kept = SharedConnection(open_one, **getattr(request, "param", {}))
    yield kept, connections
    kept.close()


def answer(kept):
    with kept() as connection:
        return connection.execute("SELECT 1").fetchone()


@pytest.mark.parametrize("opened", [ALWAYS_CHECKED], indirect=True)
def test_one_connection_answers_until_it_breaks(postgres_server, opened):
    kept, connections = opened
    assert [answer(kept) for _ in range(3)] == [(1,)] * 3
    assert len(connections) == 1
    execute(
        postgres_server, f"SELECT pg_terminate_backend({connections[0].info.backend_pid}, 5000)"
    )
    assert answer(kept) == (1,)
    assert len(connections) == 2
    kept.close()
    kept.close()
    assert connections[1].closed
    assert answer(kept) == (1,)


def test_a_connection_that_was_used_a_moment_ago_breaks_once(postgres_server, opened):
    kept, connections = opened
    assert answer(kept) == (1,)
    execute(
        postgres_server, f"SELECT pg_terminate_backend({connections[0].info.backend_pid}, 5000)"
    )
    with pytest.raises(psycopg.OperationalError):
        answer(kept)
    assert answer(kept) == (1,)


def test_who_cannot_connect_gets_an_error_and_may_ask_again(postgres_server):
    tries = [RetryableError("away"), connect(postgres_server)]

    def open_one():
        found = tries.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    kept = SharedConnection(open_one)
    with pytest.raises(RetryableError, match="away"):
        kept()
    assert answer(kept) == (1,)
    with kept() as connection, pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute("SELECT FROM nowhere")
    assert answer(kept) == (1,)
    kept.close()


def test_a_question_is_cancelled_when_another_thread_lets_go(postgres_server, opened):
    kept, connections = opened
    told = []

    def wait_in_it():
        with kept() as connection:
            try:
                connection.execute("SELECT pg_advisory_lock(7)")
            except psycopg.Error as error:
                told.append(error.sqlstate)

    with connect(postgres_server) as holder:
        holder.execute("SELECT pg_advisory_lock(7)")
        borrower = threading.Thread(target=wait_in_it, daemon=True)
        borrower.start()
        wait_for("the question", lambda: execute(postgres_server, WAITING) == [(1,)])
        kept.close()
        borrower.join(PATIENCE_S)
        assert told == ["57014"]
        assert connections[0].closed
        assert execute(postgres_server, WAITING) == [(0,)]
