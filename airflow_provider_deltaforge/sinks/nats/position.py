"""Our position, in the messages of a stream that only this sink writes to.

Each message of the log carries the position it lies behind, so the last one shows how far the
stream holds the log. Rows of a snapshot have no position: they name the message with the last one.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.sinks.nats.client import StreamMessage
from airflow_provider_deltaforge.sinks.nats.error_codes import (
    JetStreamCode,
    JetStreamRefusal,
    to_error,
)
from airflow_provider_deltaforge.sinks.nats.outgoing import BEHIND, ID, OWNER, POSITION
from airflow_provider_deltaforge.sinks.nats.sink import NatsSink
from airflow_provider_deltaforge.sinks.nats.streams import Stream, Streams
from airflow_provider_deltaforge.sinks.position_contract import SinkPosition

log = logging.getLogger(__name__)

_ANY_EVENT = bytes(16)
_NOBODY = "make a stream for this sink alone, or empty this one: nats stream purge"


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """Where a stream ends.

    Attributes:
        seq: The last sequence it gave; 0 if none.
        headers: Of the message there; None if that is gone.
    """

    seq: int
    headers: dict[str, str] | None


@dataclass(frozen=True, slots=True)
class PositionHeaders:
    """Reads and makes the headers that hold positions.

    Attributes:
        sink: the description.
        owner: names pipeline and sink.
    """

    sink: NatsSink
    owner: str

    async def tail(self, streams: Streams) -> StreamEnd:
        """Return where the stream ends now.

        Raises:
            FatalError: it could not keep the position, or somebody else writes to it.
        """
        stream = await streams.look(str(self.sink.stream))
        self._check(stream)
        headers = await self._headers(streams, stream.last_seq)
        if headers is not None and headers.get(OWNER) != self.owner and not self._is_older(headers):
            whose = headers.get(OWNER)
            raise FatalError(
                f"{self._where}: message {stream.last_seq} of stream {stream.name!r} was written "
                f"by {f'the sink {whose}' if whose else 'somebody else'}; {_NOBODY} {stream.name}"
            )
        return StreamEnd(stream.last_seq, headers)

    async def held(self, streams: Streams, tail: StreamEnd) -> SinkPosition | None:
        """Return how far the stream holds the log; None if it holds none of ours."""
        if tail.headers is None:
            if tail.seq:
                self._warn("the last message is gone, and with it our position")
            return None
        if POSITION in tail.headers:
            return self._cursor(tail.headers)
        if self._is_older(tail.headers):
            return None
        return await self._before_rows(streams, tail.headers)

    def has_expired(self, tail: StreamEnd) -> bool:
        """Return True if a position is not there because the stream's messages have expired."""
        if tail.headers is None:
            return bool(tail.seq)
        return int(tail.headers.get(BEHIND, "0").split()[0]) > 0

    def _is_older(self, headers: dict[str, str]) -> bool:
        """Return whether this sink wrote a message before the document asked for exactly once."""
        suffix = headers.get(ID, "").partition(":")[2]
        return OWNER not in headers and f"{suffix}:".startswith(f"{self.sink.id}:")

    def behind(self, tail: StreamEnd) -> str:
        """Return the header of a row of a snapshot: where the position is, and where rows begin."""
        if tail.headers is not None and BEHIND in tail.headers:
            return tail.headers[BEHIND]
        held = tail.seq if tail.headers is not None and POSITION in tail.headers else 0
        return f"{held} {tail.seq}"

    async def _before_rows(self, streams: Streams, headers: dict[str, str]) -> SinkPosition | None:
        held, last = (int(part) for part in headers[BEHIND].split())
        found = await self._headers(streams, held)
        if held and found is None:
            self._warn("the message with our position is gone")
        # Whoever still wrote when the first row was about to come.
        while (later := await self._headers(streams, last + 1)) and POSITION in later:
            found, last = later, last + 1
        return None if found is None else self._cursor(found)

    async def _headers(self, streams: Streams, seq: int) -> dict[str, str] | None:
        found = await message_at(self.sink, streams, seq)
        return None if found is None else found.headers

    def _cursor(self, headers: dict[str, str]) -> SinkPosition:
        return SinkPosition.from_text(headers[POSITION], f"{self._where}: header {POSITION}")

    def _warn(self, what: str) -> None:
        log.warning(
            "%s: the pipeline goes on at its own checkpoint, and may repeat its last batch",
            what,
            extra={"sink": self.sink.id, "stream": self.sink.stream},
        )

    @property
    def _where(self) -> str:
        return f"nats sink {self.sink.id}"

    def _check(self, stream: Stream) -> None:
        """Refuse a stream that could lose its last message, or gets messages from elsewhere."""
        settings = stream.settings
        memory = settings.get("storage") == "memory" and settings.get("num_replicas", 1) == 1
        problems = {
            "retention": settings.get("retention", "limits") != "limits",
            "mirror": settings.get("mirror"),
            "sources": settings.get("sources"),
            "storage": memory,
            "subject_delete_marker_ttl": settings.get("subject_delete_marker_ttl"),
        }
        for name, wrong in problems.items():
            if wrong:
                raise FatalError(
                    f"{self._where}: with {name}: {settings[name]} stream {stream.name!r} cannot "
                    "keep our position for exactly_once; make one with --retention limits "
                    "--storage file, and without sources"
                )


def position_text(position: SinkPosition) -> tuple[str, str]:
    """Return what stands before and after an event's id in the text of a cursor."""
    text = replace(position, event_id=_ANY_EVENT).as_text().decode("utf-8")
    before, _, after = text.rpartition(_ANY_EVENT.hex())
    return before, after


async def message_at(
    sink: NatsSink, streams: Streams, seq: int, *, or_next: bool = False
) -> StreamMessage | None:
    """Return a message of the sink's stream, or the next one that is there; None if it is gone.

    Raises:
        RetryableError, AccessError, FatalError: as a write does.
    """
    if not seq:
        return None
    try:
        name, timeout_s = str(sink.stream), sink.send_timeout_secs
        return await streams.client.message(name, seq, timeout_s, or_next=or_next)
    except JetStreamRefusal as refusal:
        if refusal.code == JetStreamCode.MESSAGE_NOT_FOUND:
            return None
        raise to_error(refusal, f"nats sink {sink.id}") from refusal


async def last_of(
    sink: NatsSink,
    streams: Streams,
    first: int,
    last: int,
    is_ours: Callable[[dict[str, str]], bool],
) -> StreamMessage | None:
    """Return the last message of ours among ``first`` to ``last``, where ours are at the beginning.

    Those that have expired are passed over.

    Raises:
        RetryableError, AccessError, FatalError: as a write does.
    """
    found = None
    while first <= last:
        middle = first if found is None else (first + last + 1) // 2
        message = await message_at(sink, streams, middle, or_next=True)
        if message is not None and message.seq <= last and is_ours(message.headers):
            found, first = message, message.seq + 1
        else:
            last = middle - 1
    return found
