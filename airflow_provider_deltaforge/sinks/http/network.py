"""Sockets under the client: a request has one deadline for all of it, and can be cut off.

Clients of HTTP bound each wait for a few bytes. An endpoint that answers a byte at a time would
hold a request for hours, so the bound is put below the client, where the bytes are.
"""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

AT_ONCE = 65_536
"""Bytes that are held back, to leave in one piece."""
_LEAST_S = 0.001


class Network:
    """Opens sockets that obey the deadline. Used by one thread, but for ``cut``.

    Args:
        core: the client's module.
        connect_s: how long connecting may take.

    Attributes:
        deadline: of the request under way.
        opened: how many connections were.
        broke_writing: nobody took all of the request under way.
        is_cut: nothing works any more.
        hold: asked before anything is sent; raises where another driver may send.
    """

    def __init__(self, core: Any, connect_s: float) -> None:
        self.core = core
        self.connect_s = connect_s
        self._backend = core.SyncBackend()
        self._sockets: list[socket.socket] = []
        self.deadline = 0.0
        self.opened = 0
        self.is_cut = False
        self.broke_writing = False
        self.hold: Callable[[], None] = lambda: None

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, **more: Any
    ) -> "_Stream":
        """Connect; the client calls this."""
        del timeout
        self.opened += 1
        until = min(self.deadline, time.monotonic() + self.connect_s)
        stream = self._backend.connect_tcp(host, port, _until(until), **more)
        _give_up_in_time(stream, self.deadline - time.monotonic())
        return _Stream(self, stream, until)

    def entered(self, stream: Any) -> None:
        """Know a socket that is in use."""
        self._sockets.append(stream.get_extra_info("socket"))
        if self.is_cut:
            self.cut()

    def left(self, stream: Any) -> None:
        """Forget a socket."""
        with suppress(ValueError):
            self._sockets.remove(stream.get_extra_info("socket"))

    def cut(self) -> None:
        """Break every connection, also those to come. Called from another thread."""
        self.is_cut = True
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Stream:
    """A socket of the client's own kind, with our bounds around every call.

    The client writes headers and body apart; a small request leaves in one piece, with the read
    that waits for its answer.
    """

    def __init__(self, network: Network, stream: Any, handshake_until: float) -> None:
        self._network = network
        self._stream = stream
        self._handshake_until = handshake_until
        self._held = bytearray()
        network.entered(stream)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        del timeout
        if self._held:
            # Nobody may take it any more; what was answered before that says why.
            with suppress(self._network.core.WriteError):
                self._send()
        read: bytes = self._stream.read(max_bytes, _until(self._network.deadline))
        return read

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        del timeout
        if len(buffer) <= AT_ONCE:
            self._held += buffer
            return
        self._send()
        self._send_all(buffer)

    def _send(self) -> None:
        held, self._held = self._held, bytearray()
        self._send_all(held)

    def _send_all(self, content: bytes | bytearray) -> None:
        """Send everything within the deadline, however little is taken at a time."""
        connection: socket.socket = self._stream.get_extra_info("socket")
        rest = memoryview(content)
        try:
            while rest:
                self._network.hold()
                connection.settimeout(_until(self._network.deadline))
                rest = rest[connection.send(rest) :]
        except TimeoutError as error:
            raise self._network.core.WriteTimeout(error) from error
        except OSError as error:
            self._network.broke_writing = True
            raise self._network.core.WriteError(error) from error

    def close(self) -> None:
        self._network.left(self._stream)
        self._stream.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> "_Stream":
        del timeout
        self._network.left(self._stream)
        until = self._handshake_until
        inner = self._stream.start_tls(ssl_context, server_hostname, _until(until))
        return _Stream(self._network, inner, until)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _give_up_in_time(stream: Any, seconds: float) -> None:
    """Let the kernel drop what the other side does not acknowledge, also if we are frozen."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None:
        with suppress(OSError):
            milliseconds = max(1, int(seconds * 1000))
            stream.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, option, milliseconds)


def _until(deadline: float) -> float:
    return max(_LEAST_S, deadline - time.monotonic())
