"""Reads streams back, entry by entry.

The answers of the server are objects; behind that everything is columns.
"""

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.sinks.reader_contract import HeldMessages
from airflow_provider_deltaforge.sinks.redis import entries
from airflow_provider_deltaforge.sinks.redis.sink import RedisSink
from airflow_provider_deltaforge.sinks.redis.writer import RedisWriter

_AT_ONCE = 5_000
_EVENT, _KEY = b"event", b"df-key"


class RedisReader(RedisWriter):
    """A connection of its own that writes nothing; see ``SinkReader``."""

    def __init__(self, sink: RedisSink, pipeline: str) -> None:
        super().__init__(sink, pipeline)
        self.notes: list[str] = []
        if sink.max_len is not None:
            self.notes.append(
                f"streams keep about {sink.max_len} entries (max_len): rows that were last written "
                "before these are missing there"
            )
        self._reached: dict[str, bytes] = {}

    def read(self, topics: Collection[str]) -> Iterator[HeldMessages]:
        """Yield the entries that were not read before; see ``SinkReader``."""
        for stream in sorted(topics):
            newest = self._range(stream, entries.command("XREVRANGE", stream, "+", "-", "COUNT", 1))
            if not newest:
                continue
            end = newest[0][0]
            while self._reached.get(stream) != end:
                after = self._reached.get(stream)
                start = b"-" if after is None else b"(" + after
                found = self._range(
                    stream, entries.command("XRANGE", stream, start, end, "COUNT", _AT_ONCE)
                )
                if not found:
                    break
                self._reached[stream] = found[-1][0]
                yield _held(stream, found)

    def _range(self, stream: str, command: bytes) -> list[Any]:
        def ask() -> Any:
            answers = self._ask(stream, command)
            self._raise_first(answers)
            return answers[0]

        found: list[Any] = self._attempt(ask)
        return found


def _held(stream: str, found: list[Any]) -> HeldMessages:
    fields = [dict(zip(pairs[::2], pairs[1::2], strict=True)) for _, pairs in found]
    return HeldMessages(
        stream,
        0,
        pa.array([each.get(_KEY) for each in fields], pa.binary()),
        # An entry without our field is somebody else's: it is no event, and no tombstone either.
        pa.array([each.get(_EVENT, b"") for each in fields], pa.binary()),
        np.array([int(entry_id.split(b"-")[0]) for entry_id, _ in found], np.int64),
    )
