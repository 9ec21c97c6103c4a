"""Marks behind the rows of snapshots: a message's sequence, and when the server took it.

A stream that comes back with older data holds nothing there, or another message.
"""

from collections.abc import Collection

from airflow_provider_deltaforge.sinks.nats.client import StreamMessage
from airflow_provider_deltaforge.sinks.nats.position import message_at
from airflow_provider_deltaforge.sinks.nats.writer import NatsWriter


class NatsRowMarks(NatsWriter):
    """A connection of its own; see ``RowMarks``."""

    def leave(self) -> str:
        """Return what names the last message; see ``RowMarks``."""
        return self._run(self._bounded(self._last(), "the end of the stream"))

    def lost(self, marks: Collection[str]) -> set[str]:
        """Return those whose message is another one by now; see ``RowMarks``.

        One that has expired is not lost.
        """
        return {
            mark
            for mark in marks
            if self._run(self._bounded(self._is_lost(mark), "a message of a snapshot"))
        }

    async def _last(self) -> str:
        streams = await self._connection.up()
        seq = (await streams.look(str(self._sink.stream))).last_seq
        found = await message_at(self._sink, streams, seq)
        return mark_of(seq, found)

    async def _is_lost(self, mark: str) -> bool:
        streams = await self._connection.up()
        seq, _, time = mark.partition(" ")
        if int(seq) > (await streams.look(str(self._sink.stream))).last_seq:
            return True
        found = await message_at(self._sink, streams, int(seq))
        return found is not None and found.time != time


def mark_of(seq: int, message: StreamMessage | None) -> str:
    """Return what names a message; None is one that has expired."""
    return f"{seq} {'' if message is None else message.time}"
