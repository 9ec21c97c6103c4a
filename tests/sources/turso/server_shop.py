"""An application's connection to a libSQL server, with what the tests' shop uses of a driver's."""

from typing import Any

from airflow_provider_deltaforge.sources.turso.hrana import HranaStream
from airflow_provider_deltaforge.sources.turso.server_address import server_of
from airflow_provider_deltaforge.sources.turso.tuning import TURSO_TUNING


class Rows(list[tuple[Any, ...]]):
    """What a statement returned."""

    def fetchone(self) -> tuple[Any, ...] | None:
        return self[0] if self else None


class ServerConnection:
    """Begins a transaction with its first write, as drivers do."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._stream = HranaStream(server_of(url), token, TURSO_TUNING)

    def execute(self, sql: str, values: tuple[Any, ...] = ()) -> Rows:
        if not self._stream.in_transaction and not sql.startswith("SELECT"):
            self._stream.close()  # It may have been idle for too long.
            self._stream.begin("BEGIN IMMEDIATE")
        return Rows(self._stream.run(sql, values))

    def commit(self) -> None:
        if self._stream.in_transaction:
            self._stream.commit()

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.execute(statement)
        self.commit()

    def close(self) -> None:
        self._stream.close()
