"""The publisher: in order, with many messages under way, on connections of its own making.

JetStream stores what it can: a message that it refuses does not stop the ones behind it. So a
message is sent only when every earlier one of its key, or of its row under another key, is stored.
Rows without a key wait for all earlier ones that have one, and those behind wait for them. What is
about a whole table, such as a truncate, waits for everything before it, and holds up the rest.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import orjson

from airflow_provider_deltaforge.errors import DeltaForgeError, FatalError, RetryableError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import WriterClaim, take_lease
from airflow_provider_deltaforge.sinks.nats.client import no_responders
from airflow_provider_deltaforge.sinks.nats.connection import EventLoopThread, NatsConnection
from airflow_provider_deltaforge.sinks.nats.error_codes import (
    REJECTED,
    JetStreamRefusal,
    refusal_in,
    to_error,
)
from airflow_provider_deltaforge.sinks.nats.outgoing import Outgoing, UnfitMessage
from airflow_provider_deltaforge.sinks.nats.sink import NatsSink
from airflow_provider_deltaforge.sinks.nats.streams import Stream, Streams

Result = TypeVar("Result")

_IN_FLIGHT = 2048


@dataclass
class NatsBatch:
    """One batch, from its first message sent to its last answer.

    Attributes:
        messages: The whole batch.
        next: The first message not yet sent.
        low: Every message before it is settled.
        settled: One byte a message: stored, or refused for good.
        stored: By stream, the sequence of each message that it holds; 0 of others.
        refused: Messages that cannot be delivered, by index.
        again: Messages to be sent once more under another id.
        is_mixed: Some have no key, or nothing that says what they are ordered by.
    """

    messages: Messages
    next: int = 0
    low: int = 0
    settled: bytearray = field(init=False)
    stored: "dict[str, np.typing.NDArray[np.int64]]" = field(default_factory=dict)
    refused: dict[int, Rejection] = field(default_factory=dict)
    again: list[int] = field(default_factory=list)
    is_mixed: bool = field(init=False)

    def __post_init__(self) -> None:
        """Find out what each message has to wait for."""
        self.settled = bytearray(len(self.messages))
        self.follows, self.is_mixed = _predecessors(self.messages)

    @property
    def done(self) -> bool:
        """Whether every message is settled."""
        return self.low == len(self.messages)

    def ready(self) -> range:
        """Return the messages that may be sent now, in order."""
        last = min(len(self.messages), self.low + _IN_FLIGHT)
        waiting = np.flatnonzero(self.follows[self.next : last] >= self.low)
        return range(self.next, self.next + int(waiting[0]) if len(waiting) else last)

    def settle(self, index: int) -> None:
        """Take note that a message is stored, or refused for good."""
        self.settled[index] = 1
        while self.low < len(self.settled) and self.settled[self.low]:
            self.low += 1

    def store(self, index: int, stream: str, seq: int) -> None:
        """Take note where a message is stored."""
        if stream not in self.stored:
            self.stored[stream] = np.zeros(len(self.messages), np.int64)
        self.stored[stream][index] = seq
        self.settle(index)

    def last_before(self, stream: str, index: int) -> int:
        """Return the last sequence of what a message has to lie behind in a stream; 0: nothing.

        In a mixed batch everything up to its predecessor counts, else what has the same key.
        """
        stored, prior = self.stored.get(stream), int(self.follows[index])
        if stored is None:
            return 0
        if self.is_mixed:
            return int(stored[: prior + 1].max(initial=0))
        while prior >= 0 and not stored[prior]:  # Refused, or in another stream.
            prior = int(self.follows[prior])
        return int(stored[prior]) if prior >= 0 else 0

    def begin_again(self) -> None:
        """Send what is not settled once more, on another connection."""
        self.next = self.low
        self.again.clear()

    def rejections(self) -> list[Rejection]:
        """Return what was refused, in the order of the messages."""
        return [rejection for _, rejection in sorted(self.refused.items())]


def _predecessors(messages: Messages) -> "tuple[np.typing.NDArray[np.int64], bool]":
    """Return for each message the last one that it has to wait for, or -1.

    Also whether some wait for messages of other keys.
    """
    count = len(messages)
    found = np.full(count, -1, np.int64)
    codes = messages.groups().fill_null(-1).to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    same = codes[order][1:] == codes[order][:-1]
    found[order[1:][same]] = order[:-1][same]
    places, alone = np.arange(count), codes == -1
    keyless = np.asarray(messages.keys.is_null()) & ~alone
    found[keyless] = _last(places, ~keyless)[keyless]
    found = np.maximum(found, np.where(keyless, -1, _last(places, keyless)))
    found = np.maximum(found, np.where(alone, places - 1, _last(places, alone)))
    return found, bool(keyless.any() or alone.any())


def _last(
    places: "np.typing.NDArray[np.int64]", chosen: "np.typing.NDArray[np.bool_]"
) -> "np.typing.NDArray[np.int64]":
    """Return for each place the last chosen one up to it, or -1."""
    if not len(places):
        return places
    return np.maximum.accumulate(np.where(chosen, places, -1))


class NatsWriter:
    """Used by one thread; the client lives in another one, with its event loop."""

    def __init__(self, sink: NatsSink, pipeline: str) -> None:
        import nats.aio.client  # noqa: F401 - a missing extra is an error at once

        self._sink = sink
        self._where = f"nats sink {sink.id}"
        self._connection = NatsConnection(sink, f"deltaforge-{pipeline}-{sink.id}")
        self._loop = EventLoopThread(f"nats-{sink.id}")
        self._delivery: BatchDelivery | None = None
        self._memory = WriterState()
        self._claim: WriterClaim | None = None

    def fence(self, claim: WriterClaim) -> None:
        """Outlive former writers, and send within a lease; see ``FencedWriter``."""
        take_lease(claim)
        self._claim = claim
        self._memory.hold = claim.hold

    def write(self, messages: Messages) -> Sequence[Rejection]:
        """Write in order; see ``SinkWriter``."""
        if not len(messages):
            return []
        return self._run(self._bounded(self._write(messages), f"{len(messages)} messages"))

    def reach(self) -> None:
        """Connect, and look at the stream that the document names; see ``Reachable``."""
        self._run(self._bounded(self._connection.up(), "a look at the stream"))

    def abandon(self) -> None:
        """Give up the write under way; see ``Interruptible``."""
        self._loop.give_up()

    def close(self) -> None:
        """Drop what is not sent, and the connection."""
        self._loop.close(self._connection.drop())

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            return self._loop.run(work)
        except CancelledError:
            raise RetryableError(
                f"{self._where}: asked to end before a batch was acknowledged"
            ) from None

    async def _bounded(self, work: Coroutine[Any, Any, Result], what: str) -> Result:
        """Give up after ``batch_timeout_secs``; after a failure use another connection."""
        patience_s = self._sink.batch_timeout_secs
        try:
            return await asyncio.wait_for(work, patience_s)
        except asyncio.TimeoutError:
            await self._connection.drop()
            raise RetryableError(
                f"{self._where}: no answer to {what} after {patience_s:g} s (batch_timeout_secs); "
                "check that the server keeps up"
            ) from None
        except BaseException:
            # Its answers, and what it still holds, are of no use to the next attempt.
            await self._connection.drop()
            raise

    async def _write(self, messages: Messages) -> Sequence[Rejection]:
        self._memory.unheard_before_s, self._memory.unheard_s = self._memory.unheard_s, None
        streams = await self._connection.up()
        if self._delivery is None or not self._delivery.batch.messages.same_as(messages):
            self._delivery = BatchDelivery(self._sink, messages, self._memory)
        await self._delivery.run(streams, await self._more(streams))
        rejections = self._delivery.batch.rejections()
        self._delivery = None
        return rejections

    async def _more(self, streams: Streams) -> dict[str, str]:
        """Return further headers of every message."""
        del streams
        return {}


class WriterState:
    """What outlives a batch.

    Attributes:
        numbers: How many numbers were given to messages.
        highest: The last sequence of earlier batches, by stream.
        unheard_s: Since when nobody listens, without a stream; None unless the last attempt ended
            with that.
        unheard_before_s: The same, of the attempt before.
        warned: Names of headers that were left out.
        hold: Asked before each message; raises where another driver may write.
    """

    def __init__(self) -> None:
        self.numbers = 0
        self.highest: dict[str, int] = {}
        self.unheard_s: float | None = None
        self.unheard_before_s: float | None = None
        self.warned: set[str] = set()
        self.hold: Callable[[], None] = lambda: None


class BatchDelivery:
    """One batch on its way; lives on when an attempt failed."""

    def __init__(self, sink: NatsSink, messages: Messages, memory: WriterState) -> None:
        self._sink = sink
        self._where = f"nats sink {sink.id}"
        self._memory = memory
        self._outgoing = Outgoing(messages, sink.subject, self._where, memory.warned)
        self.batch = NatsBatch(messages)
        self.under_way = 0
        self._first_number = 0
        self._more: dict[str, str] = {}
        self._failures: list[DeltaForgeError] = []
        self._direct: list[int] = []
        self._unheard: list[int] = []
        self._unstored: set[str] = set()
        """Subjects of messages that were sent where no stream was known."""

    async def run(self, streams: Streams, more: dict[str, str]) -> None:
        """Return when every message is settled; called again after a failure."""
        await self._deliver(streams, more)
        while self._unstored and await streams.have_come(self._unstored):
            # Made meanwhile, it may lack what was sent before, and may have refused the rest.
            self.batch, self._unstored = NatsBatch(self.batch.messages), set()
            await self._deliver(streams, more)
        self._remember()

    async def _deliver(self, streams: Streams, more: dict[str, str]) -> None:
        client, batch, self._more = streams.client, self.batch, more
        self._first_number = self._memory.numbers
        self._memory.numbers += len(batch.messages)
        self.under_way = 0
        self._failures, self._direct, self._unheard = [], [], []
        batch.begin_again()
        client.on_reply = self._answered
        while not batch.done:
            client.check()
            if not self._failures:
                await self._send(streams)
            if self._direct:
                await client.flush(self._sink.send_timeout_secs)
                self._settle_direct()
            elif self._failures and not self.under_way:
                raise self._failures[0]
            elif self.under_way and not await client.wait(self._sink.send_timeout_secs):
                raise RetryableError(
                    f"{self._where}: {client.server} acknowledges nothing within "
                    f"{self._sink.send_timeout_secs} s (send_timeout_secs); check that it is up "
                    "and that the stream has a leader"
                )

    async def _send(self, streams: Streams) -> None:
        again, self.batch.again = self.batch.again, []
        for index in again:
            await self._send_one(streams, index, secrets.token_hex(4))
        for index in self.batch.ready():
            self.batch.next = index + 1
            if not self.batch.settled[index]:
                await self._send_one(streams, index)

    async def _send_one(self, streams: Streams, index: int, mark: str = "") -> None:
        client = streams.client
        try:
            stream = await streams.of(self._outgoing.subject(index))
            suffix = f"{self._sink.id_suffix}:{mark}" if mark else self._sink.id_suffix
            limit = room(stream, client.payload_max)
            message = self._outgoing.message(index, suffix, self._more, limit)
        except JetStreamRefusal as refusal:
            self._refuse(
                index, UnfitMessage("routing", f"the subject is not stored: {refusal.text}")
            )
        except UnfitMessage as unfit:
            self._refuse(index, unfit)
        else:
            if stream is None:
                self._direct.append(index)
                self._unstored.add(message.subject)
            self.under_way += 1
            number = self._first_number + index
            self._memory.hold()
            await client.send(number, message.subject, message.headers, message.payload)

    def _answered(self, number: int, answer: Any) -> None:
        index = number - self._first_number
        if not 0 <= index < len(self.batch.messages) or self.batch.settled[index]:
            return
        if index in self._direct:
            if no_responders(answer):
                self._unheard.append(index)
            return
        self.under_way -= 1
        if no_responders(answer):
            text = "the stream takes no messages at present"
            self._failures.append(RetryableError(f"{self._where}: {text}; has it a leader?"))
            return
        reply = orjson.loads(answer.data)
        if "error" in reply:
            self._complained(index, reply["error"])
        else:
            self._stored(index, reply)

    def _complained(self, index: int, error: dict[str, Any]) -> None:
        refusal = refusal_in(error)
        if refusal.code in REJECTED:
            self._refuse(index, UnfitMessage("message_too_large", refusal.text))
        else:
            self._failures.append(to_error(refusal, self._where))

    def _stored(self, index: int, reply: dict[str, Any]) -> None:
        stream, seq = reply["stream"], reply["seq"]
        if reply.get("duplicate") and not seq:
            text = f"stream {stream!r} takes a message for a duplicate that it does not hold"
            self._failures.append(RetryableError(f"{self._where}: {text}; waiting for it"))
        elif reply.get("duplicate") and seq <= self._stored_before(stream, index):
            # The copy it holds lies before an older message of the same key, which had left the
            # duplicate window: a reader's last word would be the older one.
            self.batch.again.append(index)
        else:
            self.batch.store(index, stream, seq)

    def _stored_before(self, stream: str, index: int) -> int:
        """Return the last sequence that this message must lie behind."""
        return max(self.batch.last_before(stream, index), self._memory.highest.get(stream, 0))

    def _refuse(self, index: int, unfit: UnfitMessage) -> None:
        self.batch.refused[index] = self._outgoing.rejection(index, unfit)
        self.batch.settle(index)

    def _settle_direct(self) -> None:
        """Take what the server has read for delivered, unless nobody listened."""
        if self._unheard:
            self._nobody_listens(self._unheard[0])
        self._memory.unheard_s = self._memory.unheard_before_s = None
        for index in self._direct:
            self.batch.settle(index)
        self.under_way -= len(self._direct)
        self._direct = []

    def _nobody_listens(self, index: int) -> None:
        now = time.monotonic()
        since = self._memory.unheard_s = self._memory.unheard_before_s or now
        patience_s = self._sink.send_timeout_secs
        error = FatalError if now - since >= patience_s else RetryableError
        raise error(
            f"{self._where}: nobody listens on {self._outgoing.subject(index)!r} (no responders), "
            "and no stream takes it; add a subscriber, or a stream: nats stream add"
        )

    def _remember(self) -> None:
        highest = self._memory.highest
        for stream, stored in self.batch.stored.items():
            highest[stream] = max(int(stored.max()), highest.get(stream, 0))


def room(stream: Stream | None, payload_max: int) -> int:
    """Return how long a message may be."""
    if stream is None or stream.message_bytes_max < 0:
        return payload_max
    return min(payload_max, stream.message_bytes_max)
