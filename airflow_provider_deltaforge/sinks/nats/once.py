"""Exactly once: each message is stored only right behind the one before it.

The stream is a log with one writer. ``Nats-Expected-Last-Sequence`` and, from the second message
on, ``Nats-Expected-Last-Msg-Id`` make each append conditional on where the stream ends. The ids
name the writer and its attempt, so a message can only follow the one it was sent behind, although
many are under way. Of two writers that know the same end only one gets on, the other is refused;
whatever either stored carries its position, and nothing has to be written to fence.
"""

import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any

import orjson

from airflow_provider_deltaforge.errors import DeltaForgeError, FencedError, RetryableError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import LEASE, SinkPosition, WriterClaim
from airflow_provider_deltaforge.sinks.nats.client import no_responders
from airflow_provider_deltaforge.sinks.nats.error_codes import (
    MOVED,
    JetStreamRefusal,
    refusal_in,
    to_error,
)
from airflow_provider_deltaforge.sinks.nats.outgoing import (
    BEHIND,
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
from airflow_provider_deltaforge.sinks.nats.sink import NatsSink
from airflow_provider_deltaforge.sinks.nats.streams import Streams
from airflow_provider_deltaforge.sinks.nats.writer import NatsWriter, room

_ACKNOWLEDGED = 128
"""Of so many messages the last is acknowledged, which vouches for the others."""
_IN_FLIGHT = 8 * _ACKNOWLEDGED
_LONGEST = "9" * 20


class NatsOnceWriter(NatsWriter):
    """Knows where the stream ends, and appends there."""

    def __init__(self, sink: NatsSink, pipeline: str) -> None:
        super().__init__(sink, pipeline)
        self._positions = PositionHeaders(sink, f"{pipeline}/{sink.id}")
        self._name = secrets.token_hex(4)
        self._attempts = 0
        self._end = 0
        self._sure = False
        self._rows: tuple[Streams, dict[str, str]] | None = None
        self.has_expired = False
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
        if self._claim is None or not len(messages):
            return super().write(messages)
        rows = self._append_rows(messages)
        return self._run(self._bounded(rows, f"{len(messages)} messages"))

    def recover(self) -> SinkPosition | None:
        """Return how far the stream holds the log; see ``ExactlyOnceWriter``.

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
        tail = await self._tail(streams)
        self._end, self._sure = tail.seq, True
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
            done = await _Appender(self, streams, batch[done:]).append() + done
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

        Each of them may move the end: then it is looked for again. What a broken connection has
        stored of a batch is known from the stream's last message, if that is still one of it.
        """
        streams = await self._connection.up()
        outgoing = Outgoing(messages, self._sink.subject, self._where, self._memory.warned)
        if self._copied is None or not self._copied[0].same_as(messages):
            self._copied = (messages, 0)
        batch: list[NatsMessage] = []
        rejections: list[Rejection] = []
        done, behind = self._copied[1], ""
        while not behind or done < len(batch):
            tail = await self._tail(streams)
            self._end, self._sure = tail.seq, True
            if self._positions.behind(tail) != behind:
                behind = self._positions.behind(tail)
                more = {OWNER: self._positions.owner, BEHIND: behind}
                batch, rejections = await self._prepare(streams, outgoing, lambda _: more)  # noqa: B023
            if done < len(batch):
                done += await _Appender(self, streams, batch[done:]).append()
                self._copied = (messages, done)
        self._copied = None
        return rejections

    async def _prepare(
        self, streams: Streams, outgoing: Outgoing, headers: Callable[[bytes], dict[str, str]]
    ) -> tuple[list[NatsMessage], list[Rejection]]:
        batch, rejections = [], []
        for index, event_id in enumerate(outgoing.messages.event_ids.to_pylist()):
            more = headers(event_id)
            more = more | {LAST_SEQ: _LONGEST, LAST_ID: f"{_LONGEST * 3}:{self._sink.id}"}
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
            raise self._fenced(tail.seq)
        self._sure = True
        return done

    def _fenced(self, seq: int) -> FencedError:
        return FencedError(
            f"{self._where}: another writer took stream {self._sink.stream!r} to {seq}, and we "
            f"stood at {self._end}; stop whatever else writes to it"
        )

    def mark(self) -> str:
        """Return what the ids of the next attempt end with."""
        self._attempts += 1
        return f"{self._sink.id}:{self._name}.{self._attempts}"

    def numbers(self, count: int) -> int:
        """Return the first of so many numbers that no message on this connection has yet."""
        self._memory.numbers += count
        return self._memory.numbers - count

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


class _Appender:
    """Appends messages from where the writer knows the stream to end."""

    def __init__(self, writer: NatsOnceWriter, streams: Streams, batch: list[NatsMessage]) -> None:
        self._writer = writer
        self._client = streams.client
        self._batch = batch
        self._start = writer._end  # noqa: SLF001 - a part of the writer
        self._first_number = writer.numbers(len(batch))
        self._patience_s = writer._sink.send_timeout_secs  # noqa: SLF001
        self._where = writer._where  # noqa: SLF001
        self._stored = 0
        self._refusal: JetStreamRefusal | None = None
        self._failure: DeltaForgeError | None = None

    async def append(self) -> int:
        """Return how many are stored; fewer than given if the rest has to be looked for.

        Raises:
            RetryableError, AccessError, FatalError: the first message cannot be stored.
        """
        self._client.on_reply = self._answered
        suffix, last = self._writer.mark(), ""
        self._writer.stands_at(None)
        for index, message in enumerate(self._batch):
            headers = dict(message.headers)
            headers[ID] = f"{headers[ID].partition(':')[0]}:{suffix}"
            headers[LAST_SEQ] = str(self._start + index)
            headers[LAST_ID] = last
            if not last:
                # After a restart a server knows the last id only within the duplicate window.
                del headers[LAST_ID]
            last = headers[ID]
            asked = not index or not (index + 1) % _ACKNOWLEDGED or index + 1 == len(self._batch)
            await self._client.send(
                self._first_number + index if asked else None,
                message.subject,
                headers,
                message.payload,
            )
            if not await self._caught_up(index + 1, _IN_FLIGHT):
                return self._stored
        if await self._caught_up(len(self._batch), 0):
            self._writer.stands_at(self._start + self._stored)
        return self._stored

    async def _caught_up(self, sent: int, distance: int) -> bool:
        """Wait until all but ``distance`` messages are stored; say whether none was refused."""
        while sent - self._stored > distance:
            if self._failure is not None:
                raise self._failure
            if self._refusal is not None:
                break
            self._client.check()
            if not await self._client.wait(self._patience_s):
                raise RetryableError(
                    f"{self._where}: {self._client.server} acknowledges nothing within "
                    f"{self._patience_s} s (send_timeout_secs); check that it is up and that the "
                    "stream has a leader"
                )
        if self._refusal is None:
            return True
        if not self._stored and self._refusal.code not in MOVED:
            raise to_error(self._refusal, self._where)
        return False

    def _answered(self, number: int, answer: Any) -> None:
        index = number - self._first_number
        if not 0 <= index < len(self._batch):
            return
        if no_responders(answer):
            text = "the stream takes no messages at present; has it a leader?"
            self._failure = RetryableError(f"{self._where}: {text}")
            return
        reply = orjson.loads(answer.data)
        if "error" in reply:
            self._refusal = self._refusal or refusal_in(reply["error"])
        elif reply["seq"] != self._start + index + 1 or reply.get("duplicate"):
            self._refusal = JetStreamRefusal(
                0, f"a message was stored at {reply['seq']}, not behind ours"
            )
        else:
            self._stored = max(self._stored, index + 1)


def _is(event_id: bytes, text: str) -> bool:
    return event_id.hex() == text.replace("-", "")


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
        return f"{seq} {'' if found is None else found.time}"

    async def _is_lost(self, mark: str) -> bool:
        streams = await self._connection.up()
        seq, _, time = mark.partition(" ")
        if int(seq) > (await streams.look(str(self._sink.stream))).last_seq:
            return True
        found = await message_at(self._sink, streams, int(seq))
        return found is not None and found.time != time
