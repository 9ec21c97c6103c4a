"""A select over change events, by DuckDB."""

from importlib.util import find_spec

from pydantic import Field, PositiveInt

from airflow_provider_deltaforge.processors.contract import Processor, Worker
from airflow_provider_deltaforge.spec.settings import Settings


class QueryLimits(Settings):
    """What the query may use."""

    mem_mb: PositiveInt = Field(default=256, ge=16)
    """Memory of the engine, in MiB."""
    timeout_ms: PositiveInt = 10_000
    """Wall-clock time for one batch, in milliseconds, the search for bad rows included."""


class Sql(Processor):
    """Run a select over each batch: what it returns is what goes on."""

    id: str = "sql"
    query: str = Field(min_length=1)
    """One ``select`` from the table ``events``, in DuckDB's SQL; it must return ``_row``."""
    limits: QueryLimits = QueryLimits()
    """What the query may use."""

    def check(self) -> None:
        """Prepare the query once, where DuckDB is installed."""
        if find_spec("duckdb") is not None:
            self.open().close()

    def open(self) -> Worker:
        """Start the engine and prepare the query.

        Raises:
            SpecError: the engine is not installed, or the query cannot work.
        """
        from airflow_provider_deltaforge.processors.sql.worker import SqlWorker

        return SqlWorker(self.query, self.limits.mem_mb, self.limits.timeout_ms / 1000)
