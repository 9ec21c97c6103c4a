"""A database behind a libSQL server, through one stream that is kept between statements."""

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.sources.turso.database import Database
from airflow_provider_deltaforge.sources.turso.hrana import HranaStream, StreamLostError
from airflow_provider_deltaforge.sources.turso.server_address import ServerAddress
from airflow_provider_deltaforge.sources.turso.server_http import SHORT_S
from airflow_provider_deltaforge.sources.turso.tuning import TursoTuning

_LARGEST = "1.7976931348623157e308"


class ServerDatabase(Database):
    """One stream to the server.

    Args:
        address: of the server.
        token: for it, if it asks for one.
        tuning: how long to wait.
    """

    engine = "server"

    def __init__(self, address: ServerAddress, token: str | None, tuning: TursoTuning) -> None:
        self.address = address
        self.place = str(address)
        self._stream = HranaStream(address, token, tuning)
        self._lock = threading.RLock()

    @property
    def sessions(self) -> int:  # type: ignore[override]
        """How many streams were opened."""
        return self._stream.opened

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        with self._lock:
            rows = self._run(sql, values)
            if not any(map(_is_infinite, rows)):
                return rows
            if not self._stream.in_transaction:
                with self.view():
                    return self.rows(sql, values)
            return self._with_infinities(rows, sql, values)

    def run_all(self, statements: Sequence[str]) -> None:
        """Run statements of the open transaction, many in one request: it must not last long."""
        with self._lock:
            self._stream.run_all(statements)

    def view(self) -> AbstractContextManager[None]:
        """Read everything inside from one committed state."""
        return self._transaction("BEGIN")

    def writing(self, *, brief: bool = False) -> AbstractContextManager[None]:
        """Commit everything done inside, or nothing."""
        return self._briefly() if brief else self._transaction("BEGIN IMMEDIATE")

    @contextmanager
    def _briefly(self) -> Iterator[None]:
        """Write, unless another thread uses the connection, or the server is slow to answer."""
        if not self._lock.acquire(timeout=SHORT_S):
            raise RetryableError(f"{self.place}: another thread waits for its answer; trying again")
        usual_s, self._stream.longest_s = self._stream.longest_s, SHORT_S
        try:
            with self._transaction("BEGIN IMMEDIATE"):
                yield
        finally:
            self._stream.longest_s = usual_s
            self._lock.release()

    def about(self) -> dict[str, Any]:
        """Return which software the server runs, and the version of its SQLite."""
        with self._lock:
            about = {
                "server": self._stream.version(),
                "sqlite": self.value("SELECT sqlite_version()"),
            }
        return {name: text for name, text in about.items() if text}

    def hurry(self) -> None:
        """Break off what is under way, and wait only a moment for each statement from now on."""
        self._stream.hurry()

    def close(self) -> None:
        """Close the stream. Safe to call twice; the next statement opens another."""
        with self._lock:
            self._stream.close()

    def _run(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            return self._stream.run(sql, values)
        except StreamLostError:
            if self._stream.in_transaction:
                raise
            return self._stream.run(sql, values)  # Servers forget streams that were idle for long.

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        """Close when anything fails: that rolls back, whatever state the stream is in."""
        with self._lock:
            try:
                try:
                    self._stream.begin(begin)
                except StreamLostError:
                    self._stream.begin(begin)
                yield
                self._stream.commit()
            except BaseException:
                self._stream.close()
                raise

    def _with_infinities(
        self, rows: list[tuple[Any, ...]], sql: str, values: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        """Return rows with the infinite numbers that JSON cannot hold: asked for by their sign."""
        names = [f"c{at}" for at in range(len(rows[0]))]
        signs = ", ".join(
            f"CASE WHEN typeof({name}) = 'real' AND abs({name}) > {_LARGEST} "
            f"THEN CASE WHEN {name} > 0 THEN 1 ELSE -1 END END"
            for name in names
        )
        found = self._stream.run(
            f"WITH r ({', '.join(names)}) AS ({sql}) SELECT {signs} FROM r", values
        )
        if [_infinite_at(row) for row in rows] != [
            [at for at, sign in enumerate(row) if sign is not None] for row in found
        ]:
            raise FatalError(
                f"{self.place} does not say which infinite numbers are negative; replace them"
            )
        return [
            tuple(v if s is None else s * math.inf for v, s in zip(row, row_signs, strict=True))
            for row, row_signs in zip(rows, found, strict=True)
        ]


def _is_infinite(row: tuple[Any, ...]) -> bool:
    return any(value != value for value in row)  # noqa: PLR0124 - NaN alone


def _infinite_at(row: tuple[Any, ...]) -> list[int]:
    return [at for at, value in enumerate(row) if isinstance(value, float) and math.isnan(value)]
