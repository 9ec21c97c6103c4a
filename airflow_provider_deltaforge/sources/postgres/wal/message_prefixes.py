"""Which logical messages are events, by their prefix, and what their column ``schema`` says."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.events.change import OUTBOX
from airflow_provider_deltaforge.sources.postgres.wal.messages import MESSAGES_VERSION
from airflow_provider_deltaforge.spec.patterns import TableMatcher

log = logging.getLogger(__name__)

WAL_MESSAGE = "__wal_message"
"""Stands in the column ``schema`` of an event that is any other logical message."""


@dataclass(frozen=True)
class Prefixes:
    """The settings of logical messages.

    Attributes:
        outbox: patterns of prefixes of outbox messages, which come first.
        others: patterns of prefixes of other messages that are captured.
    """

    outbox: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def schema_of(self, prefix: str) -> str | None:
        """Return what the column ``schema`` says of a message; None: it is not captured."""
        for matcher, schema in self._matchers:
            if matcher.matches("", prefix):
                return schema
        return None

    def check(self, version: int) -> None:
        """See that a server sends what is to be captured.

        Raises:
            FatalError: it sends no messages, and some are outbox messages.
        """
        if version >= MESSAGES_VERSION:
            return
        if self.outbox:
            raise FatalError(
                "before PostgreSQL 14 the log that a reader gets holds no logical messages; "
                "upgrade the server, or take source.outbox out of the document"
            )
        if self.others:
            log.warning("before PostgreSQL 14 the log holds no logical messages: none is captured")

    @cached_property
    def _matchers(self) -> list[tuple[TableMatcher, str]]:
        kinds = ((self.outbox, OUTBOX), (self.others, WAL_MESSAGE))
        return [(_matcher(patterns), schema) for patterns, schema in kinds if patterns]


def _matcher(patterns: Sequence[str]) -> TableMatcher:
    # A prefix has no qualifier; with one of its own, a pattern's dots are a prefix's.
    return TableMatcher(tuple(f"*.{pattern}" for pattern in patterns))
