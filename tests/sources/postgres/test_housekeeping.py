"""What the reader does beside reading fails by itself, and not again at once."""

from typing import Any

import psycopg
import pytest

from airflow_provider_deltaforge.errors import AccessError, RetryableError
from airflow_provider_deltaforge.sources.postgres.publication import NewTables
from airflow_provider_deltaforge.sources.postgres.wal.housekeeping import Housekeeping
from airflow_provider_deltaforge.spec.patterns import TableMatcher

NEWCOMERS = NewTables("df", TableMatcher(("*",)), 160000, add=True)


@pytest.mark.parametrize("newcomers", [None, NEWCOMERS])
@pytest.mark.parametrize(
    "error", [RetryableError("away"), AccessError("refused"), psycopg.OperationalError("gone")]
)
def test_a_server_that_cannot_be_reached_is_asked_now_and_then(
    newcomers: NewTables | None, error: Exception
) -> None:
    attempts = 0

    def connect() -> Any:
        nonlocal attempts
        attempts += 1
        raise error

    watch = Housekeeping(connect, newcomers, heartbeat_s=0.001)
    due = watch._beat_at
    for second in range(30):
        assert watch.look(due + second) == ()
    assert attempts == 3
