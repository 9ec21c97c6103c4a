"""Settings of outbox tables: which of their rows are messages."""

from dataclasses import dataclass
from typing import Literal

from airflow_provider_deltaforge.spec.patterns import TableMatcher

Tag = Literal["inserts", "all"]


@dataclass(frozen=True)
class OutboxTagger:
    """Knows which rows are outbox messages.

    Attributes:
        matcher: which tables are outbox tables.
        tag: which of their rows are messages.
    """

    matcher: TableMatcher
    tag: Tag

    def of(self, db: str, table: str) -> Tag | None:
        """Return which rows of a table are messages; None: none is."""
        return self.tag if self.matcher.matches(db, table) else None
