"""Messages on their way to the end of a stream, each right behind the one before it."""

from collections.abc import Iterable
from typing import Any, Protocol

import orjson

from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError
from airflow_provider_deltaforge.sinks.nats.client import no_responders
from airflow_provider_deltaforge.sinks.nats.error_codes import (
    MOVED,
    JetStreamRefusal,
    refusal_in,
    to_error,
)
from airflow_provider_deltaforge.sinks.nats.outgoing import ID, LAST_ID, LAST_SEQ, NatsMessage
from airflow_provider_deltaforge.sinks.nats.position import last_of
from airflow_provider_deltaforge.sinks.nats.sink import NatsSink
from airflow_provider_deltaforge.sinks.nats.streams import Streams

_ACKNOWLEDGED = 128
"""Of so many messages the last is acknowledged, which vouches for the others."""
_IN_FLIGHT = 8 * _ACKNOWLEDGED


class OutgoingMessages(Iterable[NatsMessage], Protocol):
    """Messages in order, perhaps made when they are asked for."""

    def __len__(self) -> int:
        """Return how many there are."""


class Appender:
    """Appends messages where the stream is known to end. Used once.

    Args:
        sink: the description.
        streams: of the connection.
        batch: the messages.
        start: the last sequence that the stream gave.
        first_number: no message of this connection has this number yet, or one behind it.
        mark: what the ids of this attempt end with.
        is_contended: others append, too; the first message shows who is in front.
    """

    def __init__(
        self,
        sink: NatsSink,
        streams: Streams,
        batch: OutgoingMessages,
        start: int,
        first_number: int,
        mark: str,
        *,
        is_contended: bool,
    ) -> None:
        self._sink, self._streams, self._client = sink, streams, streams.client
        self._batch, self._start, self._first_number, self._mark = batch, start, first_number, mark
        self._is_contended = is_contended
        self._patience_s = sink.send_timeout_secs
        self._where = f"nats sink {sink.id}"
        self._sent = self._stored = 0
        self._refusal: JetStreamRefusal | None = None
        self._failure: DeltaForgeError | None = None

    async def append(self) -> int:
        """Return how many are stored: not all if another writer has added to the stream.

        Raises:
            RetryableError, AccessError, FatalError: the first message cannot be stored.
        """
        self._client.on_reply = self._answered
        last = ""
        for index, message in enumerate(self._batch):
            headers = dict(message.headers)
            headers[ID] = f"{headers[ID].partition(':')[0]}:{self._mark}"
            headers[LAST_SEQ] = str(self._start + index)
            headers[LAST_ID] = last
            if not last:
                # After a restart a server knows the last id only within the duplicate window.
                del headers[LAST_ID]
            last = headers[ID]
            asked = not index or not (index + 1) % _ACKNOWLEDGED or index + 1 == len(self._batch)
            self._sent = index + 1
            await self._client.send(
                self._first_number + index if asked else None,
                message.subject,
                headers,
                message.payload,
            )
            if not await self._caught_up(_IN_FLIGHT if index or not self._is_contended else 0):
                return await self._count()
        if not await self._caught_up(0):
            return await self._count()
        return self._stored

    async def _caught_up(self, distance: int) -> bool:
        """Wait until all but ``distance`` messages are stored; return whether none was refused."""
        while self._sent - self._stored > distance:
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

    async def _count(self) -> int:
        """Return how many are stored, with those that were not acknowledged one by one."""
        if self._stored:
            ours = f":{self._mark}"
            first, last = self._start + self._stored + 1, self._start + self._sent
            found = await last_of(
                self._sink,
                self._streams,
                first,
                last,
                lambda headers: headers.get(ID, "").endswith(ours),
            )
            self._stored = self._stored if found is None else found.seq - self._start
        return self._stored

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
