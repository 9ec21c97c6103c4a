"""Marks behind the rows of snapshots: members of a set beside the hash that holds the position.

A server that comes back with older data lacks the marks of what it lacks. They are drawn at random,
because a count would go on from the older number, and be reached again.
"""

import secrets
from collections.abc import Collection
from typing import Any

from airflow_provider_deltaforge.sinks.redis import entries
from airflow_provider_deltaforge.sinks.redis.sink import RedisSink
from airflow_provider_deltaforge.sinks.redis.slots import cursor_key, tag_of
from airflow_provider_deltaforge.sinks.redis.writer import RedisWriter

_AT_ONCE = 1_000


def rows_key(cursor: str) -> str:
    """Return the key of the marks beside a position's."""
    return f"{cursor}:rows"


class RedisRowMarks(RedisWriter):
    """A connection of its own; see ``RowMarks``."""

    def __init__(self, sink: RedisSink, pipeline: str) -> None:
        is_cluster = sink.address().kind == "cluster"
        place = cursor_key(pipeline, sink.id, tag_of(sink.stream) if is_cluster else None)
        self._key = rows_key(place)
        super().__init__(sink, pipeline)

    def leave(self) -> str:
        """Add a mark; see ``RowMarks``."""
        mark = secrets.token_hex(6)
        self._answered([entries.command("SADD", self._key, mark)])
        return mark

    def lost(self, marks: Collection[str]) -> set[str]:
        """Return those that the set lacks; see ``RowMarks``."""
        asked = list(marks)
        found: list[Any] = []
        for first in range(0, len(asked), _AT_ONCE):
            part = asked[first : first + _AT_ONCE]
            commands = [entries.command("SISMEMBER", self._key, mark) for mark in part]
            found += self._answered(commands)
        return {mark for mark, held in zip(asked, found, strict=True) if not held}

    def _answered(self, commands: list[bytes]) -> list[Any]:
        def ask() -> list[Any]:
            answers = self._ask(self._key, *commands)
            self._raise_first(answers)
            return answers

        answers: list[Any] = self._attempt(ask)
        return answers
