"""A PostgreSQL-to-Kafka pipeline, and the oracle's view of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tests.e2e import postgres_shop as shop
from tests.e2e.pipeline_run import PipelineRun
from tests.oracle.postgres_history import History, name_of, table_rows
from tests.oracle.readers import NameOf
from tests.oracle.verdict import Change
from tests.servers.process import Server


@dataclass
class PostgresRun(PipelineRun):
    """One pipeline over a shop."""

    name_of: ClassVar[NameOf] = staticmethod(name_of)

    def begin_history(self) -> None:
        self.truth = History(self.server, self.database, shop.ROOTS)

    def source(self) -> tuple[str, dict[str, Any]]:
        names = {"publication": self.name, "slot": self.name}
        return "postgres", {"dsn": "${SOURCE_DSN}", "tables": ["public.*"], **names}

    def history(self, after: dict[str, Any]) -> list[Change]:
        return self.truth.changes(after, self.tables)

    def rows(self) -> dict[Any, Any]:
        return table_rows(self.server, self.database, self.tables)


@contextmanager
def run_in(
    directory: Path, server: Server, kafka: Server, name: str, **settings: Any
) -> Iterator[PostgresRun]:
    """Yield a pipeline over a new shop of the same name, applied and not started."""
    owner = shop.create(server, name, orders=600)
    variables = {"SOURCE_DSN": owner}
    run = PostgresRun(
        directory, name, server, kafka.dsn(), name, shop.TABLES, variables=variables, **settings
    )
    try:
        yield run
    finally:
        run.truth.close()
