"""What was known of a table's schema at a place in the log."""

from typing import Protocol

from airflow_provider_deltaforge.events.position import Position
from airflow_provider_deltaforge.events.schema import TableSchema


class SchemaHistory(Protocol):
    """The schemas of one source, as they were registered. Safe to use from several threads."""

    def schema_at(
        self, db: str, schema: str | None, table: str, position: Position
    ) -> TableSchema | None:
        """Return the schema that was in force at a position; None when none is known.

        It is the latest one registered at or before ``position``: what the rows behind it were
        decoded with the first time. Whoever uses it checks it against the log's own description.
        """

    def goes_on(self, db: str, schema: str | None, table: str, position: Position) -> bool:
        """Return whether a schema was registered behind a position: its rows were read before."""
