"""What one client may take of the HTTP server: time, header bytes, connections.

uvicorn itself waits without end for a request that has begun. Here a connection is closed whose
request does not arrive in time, or whose answer is not done in time; and when there are too many
connections, the one goes that has waited longest for a request: clients that only hold connections
open push each other out, and nobody else.
"""

from asyncio import TimerHandle
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """In seconds, bytes, and a count of connections.

    Attributes:
        head_s: from the beginning of a request to the end of its headers.
        body_s: from there to the end of its body.
        answer_s: from there to the end of the answer.
        head_bytes: of a request line with its headers.
        connections: open at once.
    """

    head_s: float = 10.0
    body_s: float = 30.0
    answer_s: float = 120.0
    head_bytes: int = 16 << 10
    connections: int = 500


class LimitedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, within limits."""

    def __init__(self, limits: HttpLimits, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._limits = limits
        self._deadline: TimerHandle | None = None
        self._phase = ""

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request, or close the connection that has waited longest for one."""
        super().connection_made(transport)
        self._enter("head", self._limits.head_s)
        if len(self.connections) > self._limits.connections:
            waiting = [other for other in self.connections if other.waits_since() is not None]
            min(waiting, key=lambda other: other.waits_since()).cut()  # We wait ourselves.

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._enter("")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request; with the first ones its time begins."""
        if not self._phase:
            self._enter("head", self._limits.head_s)
        super().data_received(data)

    def handle_events(self) -> None:
        """Act on what has arrived, and wait for what comes next."""
        super().handle_events()
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            self._enter("body", self._limits.body_s)
        elif state is not h11.IDLE:
            self._enter("answer", self._limits.answer_s)
        elif self.conn.trailing_data[0]:
            self._enter("head", self._limits.head_s)
        # Between two requests uvicorn closes it when it has idled too long; only an answer that
        # is not read keeps its deadline.
        elif not self.transport.get_write_buffer_size():
            self._enter("")

    def waits_since(self) -> float | None:
        """Return since when no request is being answered; None while one is."""
        if self._phase in {"body", "answer"}:
            return None
        return self._deadline.when() if self._deadline is not None else 0.0

    def cut(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def _enter(self, phase: str, seconds: float = 0.0) -> None:
        if phase == self._phase:
            return  # Bytes that trickle in give no further time.
        self._phase = phase
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if phase:
            self._deadline = self.loop.call_later(seconds, self.cut)
