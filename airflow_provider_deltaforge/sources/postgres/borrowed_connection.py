"""Connections that their borrower cannot close, and closing one that another thread may use."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from airflow_provider_deltaforge.sources.postgres.connection import translated

_LEAVING_S = 3.0


def let_go(connection: Any) -> None:
    """Close a connection; what another thread asks with it is cancelled before.

    libpq's memory must not go while somebody waits in it. Where the server does not even answer
    that, the connection is left to the thread that waits.
    """
    import psycopg

    if not connection.lock.acquire(blocking=False):
        with suppress(psycopg.Error):
            connection.cancel_safe(timeout=_LEAVING_S)
        if not connection.lock.acquire(timeout=_LEAVING_S):
            return
    try:
        connection.close()
    finally:
        connection.lock.release()


class BorrowedConnection:
    """A connection that belongs to somebody else; closing it does nothing."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        """Return whatever the connection has."""
        return getattr(self._connection, name)

    def __enter__(self) -> "BorrowedConnection":
        """Begin nothing."""
        return self

    def __exit__(self, *_: object) -> None:
        """End nothing."""

    def close(self) -> None:
        """Leave the connection open."""


class SharedConnection:
    """One connection for many questions, opened with the first and again when it broke.

    Args:
        connect: opens it.
        idle_s: whether it still answers is asked after so many seconds without a question.
    """

    def __init__(self, connect: Callable[[], Any], idle_s: float = 1.0) -> None:
        self._connect = connect
        self._idle_s = idle_s
        self._connection: Any = None
        self._lent_at = 0.0

    def __call__(self) -> BorrowedConnection:
        """Lend it.

        Raises:
            DeltaForgeError: the server cannot be reached, or lets nobody in.
        """
        now = time.monotonic()
        idle = now - self._lent_at > self._idle_s
        self._lent_at = now
        kept = self._connection
        if kept is None or kept.closed or (idle and not _answers(kept)):
            self.close()
            kept = self._connection = self._connect()
        return BorrowedConnection(kept)

    def close(self) -> None:
        """Close it, from any thread. Safe to call twice; the next call opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            let_go(connection)


def _answers(connection: Any) -> bool:
    """Return whether it can still be used: the server or a firewall ends idle connections."""
    import psycopg

    try:
        connection.execute("SELECT")
    except psycopg.OperationalError:
        return False
    except psycopg.Error as error:
        raise translated(error, "asking the server") from error
    return True
