"""The rows of a snapshot's chunk in a stream, which stores message by message.

A kill may leave a part of a chunk there, and read again the table would show other rows. So before
the first row is sent, all rows are kept in the state store, and a writer that finds a part of them
in the stream sends the rest of these. Each row names its chunk, the view it is from, and its
number. The stream stores a row only right behind the message that it was sent behind, so the rows
of a chunk lie in stretches. A note has the start of each; a binary search finds its end.
"""

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.events.message import Messages
from airflow_provider_deltaforge.sinks.chunk_rows import RunNotes
from airflow_provider_deltaforge.sinks.nats.client import StreamMessage
from airflow_provider_deltaforge.sinks.nats.outgoing import (
    CHUNK,
    NatsMessage,
    Outgoing,
    UnfitMessage,
)
from airflow_provider_deltaforge.sinks.nats.position import last_of, message_at
from airflow_provider_deltaforge.sinks.nats.row_marks import mark_of
from airflow_provider_deltaforge.sinks.nats.sink import NatsSink
from airflow_provider_deltaforge.sinks.nats.streams import Streams

_TEXT = b"text"


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """Which row of which chunk a message is: the header ``df-chunk``.

    Attributes:
        chunk: names the copy's run and the chunk, as ``RUN/DIGEST``.
        view: names the view that the row was read from, and its chunk's other rows.
        number: of the row in its chunk, from 0 on.
        count: how many rows the chunk has.
    """

    chunk: str
    view: str
    number: int
    count: int

    @classmethod
    def of(cls, headers: Mapping[str, str] | None) -> "ChunkRow | None":
        """Return what a message's headers name; None if it is no row of a chunk."""
        if headers is None or CHUNK not in headers:
            return None
        chunk, view, number, count = headers[CHUNK].split()
        return cls(chunk, view, int(number), int(count))

    @property
    def is_last(self) -> bool:
        """Return whether the chunk is complete with this row."""
        return self.number + 1 == self.count


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The rows of one view of a chunk.

    Attributes:
        view: a name of their own, even if the same rows are read again.
        messages: all of them.
        text: of the chunk's mark.
    """

    view: str
    messages: Messages
    text: str

    @classmethod
    def new(cls, messages: Messages, text: str) -> "KeptRows":
        """Return rows that were just read."""
        return cls(secrets.token_hex(6), messages, text)

    @classmethod
    def from_note(cls, view: str, note: bytes) -> "KeptRows":
        """Read what ``as_note`` made."""
        with pa.ipc.open_stream(note) as stream:
            rows = stream.read_next_batch()
        columns: dict[str, Any] = {field.name: None for field in fields(Messages)}
        columns |= {name: rows.column(name) for name in rows.schema.names}
        return cls(view, Messages(**columns), rows.schema.metadata[_TEXT].decode())

    def as_note(self) -> bytes:
        """Return all of it, compressed."""
        every = {field.name: getattr(self.messages, field.name) for field in fields(Messages)}
        columns = {name: column for name, column in every.items() if column is not None}
        rows = pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])
        rows = rows.replace_schema_metadata({_TEXT: self.text.encode()})
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(sink, rows.schema, options=options) as stream:
            stream.write_batch(rows)
        return bytes(sink.getvalue())


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """How much of a chunk a stream holds.

    Attributes:
        view: whose rows they are.
        text: of the chunk's mark; None while rows are missing.
        count: how many rows.
        mark: names the last one, see ``RowMarks``.
    """

    view: str
    text: str | None
    count: int
    mark: str


class ChunkNotes:
    """What the state store keeps of one chunk on its way to one sink.

    A note ``behind/SEQ/VIEW`` is stored before rows of a view are sent behind that message. If
    another message is there by then, none of these can ever follow, and the next note replaces it.
    Two writers of one chunk may both do so: the stream takes the rows of one of them only.

    Args:
        notes: of the writer's claim.
        sink: the description.
        chunk: as ``ChunkRow`` has it.
    """

    def __init__(self, notes: RunNotes, sink: NatsSink, chunk: str) -> None:
        self._notes, self._sink, self.chunk = notes, sink, chunk
        self._run, _, self._digest = chunk.partition("/")
        self._overtaken: list[str] = []

    @classmethod
    def of(cls, notes: RunNotes, sink: NatsSink, name: str) -> "ChunkNotes":
        """Return the notes of a chunk by the name of its mark."""
        run, _, chunk = name.partition("/")
        digest = hashlib.blake2b(chunk.encode(), digest_size=8).hexdigest()
        return cls(notes, sink, f"{run}/{digest}")

    def rows(self, view: str) -> KeptRows | None:
        """Return the rows of a view; None if they are not kept any more."""
        name = self._name("rows", view)
        note = self._notes.kept(self._run, name).get(name)
        return None if note is None else KeptRows.from_note(view, note)

    def keep(self, rows: KeptRows, seq: int, *, is_kept: bool) -> None:
        """Keep rows before they are sent, and where the first of them is sent: behind ``seq``.

        Args:
            rows: of one view.
            seq: where the stream ends.
            is_kept: they are kept already.
        """
        # Those of other views lead to their rows, which are to be forgotten in the end.
        mine = [name for name in self._overtaken if name.endswith(f"/{rows.view}")]
        kept: dict[str, bytes | None] = dict.fromkeys(mine)
        kept[self._name("behind", f"{seq:020d}", rows.view)] = b""
        if not is_kept:
            kept[self._name("rows", rows.view)] = rows.as_note()
        self._notes.keep(self._run, kept)

    def finish(self, held: WrittenRows) -> None:
        """Keep of a chunk that the stream holds only where it ends."""
        known = self._notes.kept(self._run, f"{self._digest}/behind/")
        gone: dict[str, bytes | None] = dict.fromkeys(known)
        gone |= {self._name("rows", name.rpartition("/")[2]): None for name in known}
        end = json.dumps([held.view, held.text, held.count, held.mark]).encode()
        self._notes.keep(self._run, gone | {self._name("end"): end})

    async def held(self, streams: Streams, last_seq: int) -> WrittenRows | None:
        """Return how much of the chunk the stream holds; None if nothing.

        Args:
            streams: of the connection.
            last_seq: where the stream ends, asked before.

        Raises:
            RetryableError, AccessError, FatalError: as a write does.
        """
        known = self._notes.kept(self._run, f"{self._digest}/behind/")
        ends = self._notes.kept(self._run, self._name("end"))
        for end in ends.values():
            held = WrittenRows(*json.loads(end))
            if await self._has_end(streams, last_seq, held):
                return held
        self._overtaken = []
        for name in reversed(known):
            _, _, seq, view = name.split("/")
            found = await last_of(
                self._sink,
                streams,
                int(seq) + 1,
                last_seq,
                partial(self._is_of, view),
            )
            if found is not None:
                return _written(found, view)
            if int(seq) < last_seq:
                self._overtaken.append(name)
        return None

    async def _has_end(self, streams: Streams, last_seq: int, held: WrittenRows) -> bool:
        """Return whether the stream has not come back without the last row, which may expire."""
        seq, _, time = held.mark.partition(" ")
        found = await message_at(self._sink, streams, int(seq))
        return int(seq) <= last_seq and (found is None or found.time == time)

    def _is_of(self, view: str, headers: dict[str, str]) -> bool:
        row = ChunkRow.of(headers)
        return row is not None and (row.chunk, row.view) == (self.chunk, view)

    def _name(self, *parts: str) -> str:
        return "/".join((self._digest, *parts))


class ChunkMessages:
    """Rows of a chunk as messages, each made when it is asked for.

    Args:
        outgoing: all rows of the chunk.
        start: which of them is the first.
        sink: the description.
        more: further headers of each.
        origin: the chunk and the view, as the header of each names them.
        bytes_max: how long one may be.
    """

    def __init__(
        self,
        outgoing: Outgoing,
        start: int,
        sink: NatsSink,
        more: Mapping[str, str],
        origin: str,
        bytes_max: int,
    ) -> None:
        self._outgoing, self._start, self._sink = outgoing, start, sink
        self._more, self._origin, self._bytes_max = more, origin, bytes_max

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._outgoing) - self._start

    def __iter__(self) -> Iterator[NatsMessage]:
        """Yield them in order."""
        count, name = len(self._outgoing), self._sink.id
        for number in range(self._start, count):
            more = {**self._more, CHUNK: f"{self._origin} {number} {count}"}
            try:
                yield self._outgoing.message(number, name, more, self._bytes_max)
            except UnfitMessage as unfit:
                raise FatalError(
                    f"nats sink {name}: row {number} of a chunk that is stored in part does not "
                    f"fit any more: {unfit.args[1]}"
                ) from unfit


async def written_up_to(
    sink: NatsSink, streams: Streams, seq: int, view: str
) -> WrittenRows | None:
    """Return how much of a view a stream holds whose row at ``seq`` was just acknowledged.

    None if another message is there, or none: the row was lost, or has expired.
    """
    found = await message_at(sink, streams, seq)
    return None if found is None else _written(found, view)


def _written(message: StreamMessage, view: str) -> WrittenRows | None:
    row = ChunkRow.of(message.headers)
    if row is None or row.view != view:
        return None
    return WrittenRows(view, None, row.number + 1, mark_of(message.seq, message))
