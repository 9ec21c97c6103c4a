"""Marks behind the rows of snapshots: the sequence and the time of the stream's last message.

A stream that comes back with older data gives the same sequences to later messages.
"""

from collections.abc import Collection

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
        streams = await self._line.up()
        seq = (await streams.look(str(self._sink.stream))).last_seq
        found = await message_at(self._sink, streams, seq)
        return f"{seq} {'' if found is None else found.time}"

    async def _is_lost(self, mark: str) -> bool:
        streams = await self._line.up()
        seq, _, time = mark.partition(" ")
        if int(seq) > (await streams.look(str(self._sink.stream))).last_seq:
            return True
        found = await message_at(self._sink, streams, int(seq))
        return found is not None and found.time != time
