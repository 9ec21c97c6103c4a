"""Exactly once: each message is stored only right behind the one before it.

The stream is a log with one writer. ``Nats-Expected-Last-Sequence`` and, from the second message
on, ``Nats-Expected-Last-Msg-Id`` make each append conditional on where the stream ends. The ids
name the writer and its attempt, so a message can only follow the one it was sent behind, although
many are under way. Of two writers that know the same end only one gets on, the other is refused;
whatever either stored carries its position, and nothing has to be written to fence.
"""

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_provider_deltaforge.errors import FatalError, FencedError, RetryableError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.chunk_rows import ChunkMark, RunNotes, WrittenChunk
from airflow_provider_deltaforge.sinks.contract import LEASE, WriterClaim
from airflow_provider_deltaforge.sinks.nats.appender import Appender, OutgoingMessages
from airflow_provider_deltaforge.sinks.nats.chunk_rows import (
    ChunkMessages,
    ChunkNotes,
    ChunkRow,
    KeptRows,
    WrittenRows,
    written_up_to,
)
from airflow_provider_deltaforge.sinks.nats.error_codes import JetStreamRefusal
from airflow_provider_deltaforge.sinks.nats.outgoing import (
    BEHIND,
    CHUNK,
    ID,
    LAST_ID,
    LAST_SEQ,
    OWNER,
    POSITION,
    NatsMessage,
    Outgoing,
    UnfitMessage,
)
from airflow_provider_deltaforge.sinks.nats.position import (
    PositionHeaders,
    StreamEnd,
    message_at,
    position_text,
)
from airflow_provider_deltaforge.sinks.nats.row_marks import mark_of
from airflow_provider_deltaforge.sinks.nats.sink import NatsSink
from airflow_provider_deltaforge.sinks.nats.streams import Streams
from airflow_provider_deltaforge.sinks.nats.subjects import illegal
from airflow_provider_deltaforge.sinks.nats.writer import NatsWriter, room
from airflow_provider_deltaforge.sinks.position_contract import SinkPosition

log = logging.getLogger(__name__)

_LONGEST = "9" * 20
_LOST = "the stream has lost rows that it had acknowledged; they are written again"


class NatsOnceWriter(NatsWriter):
    """Knows where the stream ends, and appends there."""

    def __init__(self, sink: NatsSink, pipeline: str) -> None:
        super().__init__(sink, pipeline)
        self._positions = PositionHeaders(sink, f"{pipeline}/{sink.id}")
        self._name = secrets.token_hex(4)
        self._attempts = 0
        self._mark = ""
        self._end = 0
        self._sure = False
        self._behind = ""
        """What rows name that are appended behind this end; empty before the first one is known."""
        self._rows: tuple[Streams, dict[str, str]] | None = None
        self._chunk: str | None = None
        self.has_expired = False
        self.row_mark: str | None = None
        self._copied: tuple[Messages, int] | None = None

    def fence(self, claim: WriterClaim) -> None:
        """Shut out writers that do not know the end of the stream; see ``FencedWriter``."""
        former = claim.former()
        claim.outlive([writer for writer in former if writer.name == LEASE])
        claim.forget(former)
        claim.enter("nats")
        self._claim = claim

    def write(self, messages: Messages) -> Sequence[Rejection]:
        """Append rows of a snapshot, or dead letters, where the stream ends."""
        self.row_mark = None
        if self._claim is None or not len(messages):
            return super().write(messages)
        rows = self._append_rows(messages)
        return self._run(self._bounded(rows, f"{len(messages)} messages"))

    def write_chunk(self, messages: Messages, mark: ChunkMark) -> WrittenChunk:
        """Append a chunk's rows, or the rest of those that a former attempt has begun to append.

        See ``ChunkWriter``.
        """
        self.row_mark = None
        chunk = self._write_chunk(messages, mark)
        return self._run(self._bounded(chunk, f"{len(messages)} messages"))

    def recover(self) -> SinkPosition | None:
        """Return how far the stream holds the log; see ``ExactlyOnceWriter``.

        A chunk that is stored in part is completed first: behind changes its rows would be old.

        A former writer may still append to the end we have read. Our next message is refused then,
        ``write_once`` raises FencedError, and the next ``recover`` reads what it appended.
        """
        return self._run(self._bounded(self._recover(), "its end"))

    def write_once(
        self, messages: Messages, before: SinkPosition, after: SinkPosition
    ) -> Sequence[Rejection]:
        """Append in order; see ``ExactlyOnceWriter``."""
        del after  # The last message's own position says as much.
        return self._run(self._bounded(self._append(messages, before), f"{len(messages)} messages"))

    async def _recover(self) -> SinkPosition | None:
        streams = await self._connection.up()
        tail = await self._whole_tail(streams)
        self._end, self._sure = tail.seq, True
        self._behind = self._positions.behind(tail)
        self.has_expired = self._positions.has_expired(tail)
        return await self._positions.held(streams, tail)

    async def _append(self, messages: Messages, before: SinkPosition) -> Sequence[Rejection]:
        streams, self._rows = await self._connection.up(), None
        outgoing = Outgoing(messages, self._sink.subject, self._where, self._memory.warned)
        head, tail = position_text(before)
        owner = self._positions.owner
        batch, rejections = await self._prepare(
            streams,
            outgoing,
            lambda event: {OWNER: owner, POSITION: f"{head}{event.hex()}{tail}"},
        )
        if rejections:
            return rejections
        done = 0
        while done < len(batch):
            if not self._sure:
                done = self._find(await self._tail(streams), outgoing, done)
                if done == len(batch):
                    break
            done += await self._append_behind(streams, batch[done:], is_contended=False)
        if batch:
            self._behind = self._positions.behind(StreamEnd(self._end, batch[-1].headers))
        return []

    async def _tail(self, streams: Streams) -> StreamEnd:
        """Return where the stream ends, if we may append there.

        Asked in this order: whoever is frozen after it finds another end when it wakes up.
        """
        tail = await self._positions.tail(streams)
        if self._claim is not None:
            self._claim.confirm()
        return tail

    async def _append_rows(self, messages: Messages) -> Sequence[Rejection]:
        """Append what has no position, beside other writers of the same epoch.

        Each of them may move the end: then it is looked for again. A write that is tried again goes
        on behind what was counted; what a broken connection has stored uncounted is repeated.
        """
        streams = await self._connection.up()
        outgoing = Outgoing(messages, self._sink.subject, self._where, self._memory.warned)
        if self._copied is None or not self._copied[0].same_as(messages):
            self._copied = (messages, 0)
        batch: list[NatsMessage] = []
        rejections: list[Rejection] = []
        done, behind = self._copied[1], ""
        while not behind or done < len(batch):
            tail = await self._whole_tail(streams)
            self._end, self._sure = tail.seq, True
            if self._positions.behind(tail) != behind:
                behind = self._positions.behind(tail)
                more = {OWNER: self._positions.owner, BEHIND: behind}
                batch, rejections = await self._prepare(streams, outgoing, lambda _: more)  # noqa: B023
            if done < len(batch):
                done += await self._append_behind(streams, batch[done:])
                self._copied = (messages, done)
        self._copied = None
        if batch:
            await self._mark_rows(streams)
        return rejections

    async def _mark_rows(self, streams: Streams) -> None:
        """See that the stream still holds the last row that it has acknowledged."""
        found = await message_at(self._sink, streams, self._end)
        if found is not None and not found.headers.get(ID, "").endswith(f":{self._mark}"):
            raise RetryableError(f"{self._where}: {_LOST}")
        self.row_mark = mark_of(self._end, found)

    async def _write_chunk(self, messages: Messages, mark: ChunkMark) -> WrittenChunk:
        if not isinstance(self._claim, RunNotes):
            raise FatalError(f"{self._where}: write_chunk before fence; report this as a defect")
        streams = await self._connection.up()
        notes = ChunkNotes.of(self._claim, self._sink, mark.name)
        held = None
        if self._chunk == mark.name or not mark.is_first:
            held = await self._append_chunk(streams, notes, None)
        if held is None:
            refused = await self._refused(streams, messages)
            if refused or not len(messages):
                return WrittenChunk(None if refused else mark.text, refused)
            self._chunk = mark.name
            held = await self._append_chunk(streams, notes, KeptRows.new(messages, mark.text))
        if held is None:
            raise RetryableError(f"{self._where}: {_LOST}")
        self._chunk, self.row_mark = None, held.mark
        return WrittenChunk(held.text)

    async def _refused(self, streams: Streams, messages: Messages) -> list[Rejection]:
        """Return what of a chunk cannot be stored."""
        outgoing = Outgoing(messages, self._sink.subject, self._where, self._memory.warned)
        more = dict.fromkeys((OWNER, BEHIND, CHUNK), _LONGEST * 5) | self._longest()
        if await self._takes(streams, messages):
            stream = await streams.look(str(self._sink.stream))
            if outgoing.surely_fits(more, room(stream, streams.client.payload_max)):
                return []
        return (await self._prepare(streams, outgoing, lambda _: more))[1]

    async def _takes(self, streams: Streams, messages: Messages) -> bool:
        """Return whether the stream takes every subject of these messages."""
        try:
            for name in messages.topics.dictionary.to_pylist():
                if illegal(name, self._sink.subject):
                    return False
                await streams.of(name)
        except JetStreamRefusal:
            return False
        return True

    async def _append_chunk(
        self, streams: Streams, notes: ChunkNotes, new: KeptRows | None
    ) -> WrittenRows | None:
        """Append what the stream lacks of a chunk; return what it holds then.

        Others may append beside it, even rows of this chunk: they are looked for each time.

        Args:
            streams: of the connection.
            notes: of the chunk.
            new: taken if the stream holds no row; None: return None then.
        """
        rows, is_kept, is_gone = new, False, False
        while True:
            tail = await self._tail(streams)
            self._end, self._sure = tail.seq, True
            held = await notes.held(streams, tail.seq)
            if held is not None and held.text is not None:
                if is_kept:
                    notes.finish(held)
                return held
            if held is not None and (rows is None or rows.view != held.view):
                rows, is_kept = notes.rows(held.view), True
                if rows is None and not is_gone:
                    # Another writer has just completed it.
                    rows, is_kept, is_gone = new, False, True
                    continue
                if rows is None:
                    log.warning("%s: rows of a chunk are not kept any more", self._where)
                    rows, is_kept, held = new, False, None
            if rows is None:
                return None
            count = 0 if held is None else held.count
            if count < len(rows.messages):
                notes.keep(rows, tail.seq, is_kept=is_kept)
                is_kept, behind = True, self._positions.behind(tail)
                held = await self._append_kept(streams, notes.chunk, rows, count, behind)
            if held is not None and held.count == len(rows.messages):
                held = replace(held, text=rows.text)
                notes.finish(held)
                return held

    async def _append_kept(
        self, streams: Streams, chunk: str, rows: KeptRows, count: int, behind: str
    ) -> WrittenRows | None:
        """Append rows from the one numbered ``count`` on; None if not all of them are stored."""
        outgoing = Outgoing(rows.messages, self._sink.subject, self._where, self._memory.warned)
        more = {OWNER: self._positions.owner, BEHIND: behind} | self._longest()
        stream = await streams.of(outgoing.subject(count))
        bytes_max = room(stream, streams.client.payload_max)
        origin = f"{chunk} {rows.view}"
        batch = ChunkMessages(outgoing, count, self._sink, more, origin, bytes_max)
        if await self._append_behind(streams, batch) < len(batch):
            return None
        return await written_up_to(self._sink, streams, self._end, rows.view)

    async def _append_behind(
        self, streams: Streams, batch: OutgoingMessages, *, is_contended: bool = True
    ) -> int:
        """Append messages where the stream is known to end; return how many are stored."""
        self._attempts += 1
        self._mark = f"{self._sink.id}:{self._name}.{self._attempts}"
        start, first_number = self._end, self._memory.numbers
        self._memory.numbers += len(batch)
        self.stands_at(None)
        attempt = (streams, batch, start, first_number, self._mark)
        stored = await Appender(self._sink, *attempt, is_contended=is_contended).append()
        if stored == len(batch):
            self.stands_at(start + stored)
        return stored

    async def _whole_tail(self, streams: Streams) -> StreamEnd:
        """Return where the stream ends, behind a whole chunk if it ends with rows of one."""
        tail = await self._tail(streams)
        row = ChunkRow.of(tail.headers)
        if row is None or row.is_last or not isinstance(self._claim, RunNotes):
            return tail
        notes = ChunkNotes(self._claim, self._sink, row.chunk)
        await self._append_chunk(streams, notes, None)
        return await self._tail(streams)

    def _longest(self) -> dict[str, str]:
        """Return the longest headers of the kind that an attempt adds."""
        return {LAST_SEQ: _LONGEST, LAST_ID: f"{_LONGEST * 3}:{self._sink.id}"}

    async def _prepare(
        self, streams: Streams, outgoing: Outgoing, headers: Callable[[bytes], dict[str, str]]
    ) -> tuple[list[NatsMessage], list[Rejection]]:
        batch, rejections = [], []
        for index, event_id in enumerate(outgoing.messages.event_ids.to_pylist()):
            more = headers(event_id) | self._longest()
            try:
                stream = await streams.of(outgoing.subject(index))
                limit = room(stream, streams.client.payload_max)
                batch.append(outgoing.message(index, self._sink.id, more, limit))
            except JetStreamRefusal as refusal:
                unfit = UnfitMessage("routing", f"the subject is not stored: {refusal.text}")
                rejections.append(outgoing.rejection(index, unfit))
            except UnfitMessage as unfit:
                rejections.append(outgoing.rejection(index, unfit))
        return batch, rejections

    def _find(self, tail: StreamEnd, outgoing: Outgoing, done: int) -> int:
        """Return how many messages of a batch the stream holds, after a failure."""
        event, _, mark = (tail.headers or {}).get(ID, "").partition(":")
        if mark.startswith(f"{self._sink.id}:{self._name}."):
            ids = outgoing.messages.event_ids.to_pylist()
            place = next((n for n, each in enumerate(ids) if _is(each, event)), None)
            if place is not None:
                self._end, self._sure = tail.seq, True
                return place + 1
        if tail.seq != self._end:
            if not self._ends_with_rows(tail):
                raise self._fenced(tail.seq)
            self._end = tail.seq
        self._sure = True
        return done

    def _ends_with_rows(self, tail: StreamEnd) -> bool:
        """Return whether a copy beside the stream has appended rows since, and nobody a change.

        Rows name the last change in front of them. A chunk that is stored in part is completed
        first, as ``recover`` does.
        """
        headers = tail.headers or {}
        row = ChunkRow.of(headers)
        is_whole = row is None or row.is_last
        return tail.seq > self._end and headers.get(BEHIND) == self._behind and is_whole

    def _fenced(self, seq: int) -> FencedError:
        return FencedError(
            f"{self._where}: another writer took stream {self._sink.stream!r} to {seq}, and our "
            f"last message is {self._end}; stop whatever else writes to it"
        )

    def stands_at(self, seq: int | None) -> None:
        """Take note of where the stream ends; None if that is not sure."""
        self._sure = seq is not None
        self._end = self._end if seq is None else seq

    async def _more(self, streams: Streams) -> dict[str, str]:
        self._sure = False
        if self._rows is None or self._rows[0] is not streams:
            behind = self._positions.behind(await self._positions.tail(streams))
            self._rows = (streams, {OWNER: self._positions.owner, BEHIND: behind})
        return self._rows[1]


def _is(event_id: bytes, text: str) -> bool:
    return event_id.hex() == text.replace("-", "")
