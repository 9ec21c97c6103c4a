"""Keep-alive connections, each request with one deadline, and what their failures mean.

Clients of HTTP bound each wait for a few bytes. An endpoint that answers a byte at a time would
hold a request for hours, so the bound is put below the client, where the bytes are.
"""

import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    FatalError,
    RetryableError,
)
from airflow_provider_deltaforge.sinks.http.address import Target

_IDLE_S = 60.0
_ANSWER_MAX = 65_536

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
        """Note a socket that is in use."""
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
    """Make the kernel drop what the other side does not acknowledge, also while we are frozen."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None:
        with suppress(OSError):
            milliseconds = max(1, int(seconds * 1000))
            stream.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, option, milliseconds)


def _until(deadline: float) -> float:
    return max(_LEAST_S, deadline - time.monotonic())


class BrokenOffError(RetryableError):
    """The endpoint hung up before it had all of a request, as some do that find it too large."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came back; its body is read and forgotten."""

    status: int
    retry_after: str | None


class Connections:
    """One connection per host, kept open between requests. Used by one thread, but for ``cut``.

    Args:
        tls: how TLS is spoken; None where it is not.
        connect_s: how long connecting may take.
        proxy: address of a proxy, and user and password there.
    """

    def __init__(
        self,
        tls: ssl.SSLContext | None,
        connect_s: float,
        proxy: tuple[str, tuple[bytes, bytes] | None] | None = None,
    ) -> None:
        import httpcore

        self._core: Any = httpcore
        self._network = Network(httpcore, connect_s)
        network: Any = self._network  # It has the methods of a backend.
        more: dict[str, Any] = {"keepalive_expiry": _IDLE_S, "network_backend": network}
        self._pool: Any = (
            httpcore.ConnectionPool(ssl_context=tls, **more)
            if proxy is None
            else httpcore.HTTPProxy(proxy[0], proxy_auth=proxy[1], ssl_context=tls, **more)
        )

    def send(
        self,
        method: bytes,
        target: Target,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        timeout_s: float,
    ) -> HttpAnswer:
        """Send one request and return what was answered.

        Raises:
            RetryableError: there is no whole answer; the request may have arrived or not.
            AccessError: TLS was refused, by either side.
        """
        origin = target.origin
        url = self._core.URL(
            scheme=origin.scheme.encode(),
            host=origin.host.encode(),
            port=origin.port,
            target=target.path,
        )
        request = self._core.Request(method, url, headers=headers, content=body)
        self._network.deadline = time.monotonic() + timeout_s
        self._network.broke_writing = False
        opened = self._network.opened
        try:
            try:
                return self._once(request)
            except (self._core.RemoteProtocolError, self._core.NetworkError):
                # An endpoint may close an idle connection at any time, so also just now.
                if self._network.opened > opened or self._network.is_cut:
                    raise
                return self._once(request)
        except self._core.ProxyError as error:
            raise _refused_by_proxy(str(error)) from error
        except (
            self._core.TimeoutException,
            self._core.NetworkError,
            self._core.ProtocolError,
        ) as error:
            until_s = min(timeout_s, self._network.connect_s)
            within_s = until_s if isinstance(error, self._core.ConnectTimeout) else timeout_s
            failure = _to_error(error, str(origin), within_s)
            # Noticed while writing or, if much was on the way still, while waiting for the answer.
            was_reset = isinstance(_cause(error), ConnectionResetError) and len(body) > AT_ONCE
            if type(failure) is RetryableError and (self._network.broke_writing or was_reset):
                raise BrokenOffError(
                    f"{origin} hung up before it had all of a request of {len(body)} bytes; raise "
                    "its limit, or lower batch.max_bytes"
                ) from error
            raise failure from error

    def send_under(self, hold: Callable[[], None]) -> None:
        """Ask before each piece of a request, however slow its way; see ``WriterClaim.hold``."""
        self._network.hold = hold

    def cut(self) -> None:
        """Break what is under way. Called from another thread."""
        self._network.cut()

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    def _once(self, request: Any) -> HttpAnswer:
        response = self._pool.handle_request(request)
        try:
            self._read_off(response)
        finally:
            response.close()
        headers = {name.lower(): value for name, value in response.headers}
        retry_after = headers.get(b"retry-after")
        return HttpAnswer(response.status, retry_after.decode("latin-1") if retry_after else None)

    def _read_off(self, response: Any) -> None:
        """Read the body, so that the connection can be used again; a long one is not worth it."""
        size = 0
        for part in response.iter_stream():
            size += len(part)
            if size > _ANSWER_MAX:
                return


def _to_error(error: BaseException, origin: str, within_s: float) -> DeltaForgeError:
    """Return the error that the engine acts on."""
    cause = _cause(error)
    name = type(error).__name__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return AccessError(
            f"{origin} shows a certificate that is not trusted ({cause.verify_message}); "
            "set ca_file, or correct the host in 'url'"
        )
    if isinstance(cause, ssl.SSLError) and "ALERT" in (cause.reason or ""):
        return AccessError(
            f"{origin} refuses our TLS ({cause.reason}); check cert_file and key_file"
        )
    if "Timeout" in name:
        doing = "is not connected to" if name == "ConnectTimeout" else "does not answer"
        return RetryableError(f"{origin} {doing} within {within_s:g} s")
    if name == "LocalProtocolError":
        return FatalError(f"{origin}: a request cannot be written ({error}); correct 'headers'")
    return RetryableError(f"{origin}: {_text(cause)}; check that it is up and reachable")


def _cause(error: BaseException) -> BaseException:
    """Return what happened to the socket: the client keeps it as its own error's argument."""
    return next((each for each in error.args if isinstance(each, BaseException)), error)


def _refused_by_proxy(answer: str) -> DeltaForgeError:
    status = answer[:3]
    if status in {"401", "403", "407"}:
        return AccessError(f"the proxy answers {status}; check 'proxy' and what it allows")
    return RetryableError(f"the proxy answers {status}; check that it reaches the endpoint")


def _text(cause: BaseException) -> str:
    reason = getattr(cause, "strerror", None) or getattr(cause, "reason", None) or str(cause)
    return str(reason) or type(cause).__name__


def tls_context(
    ca_file: str | None, cert_file: str | None, key_file: str | None, password: str | None
) -> ssl.SSLContext:
    """Return how TLS is spoken.

    Raises:
        OSError, ssl.SSLError: a file cannot be used.
    """
    context = ssl.create_default_context(cafile=ca_file)
    if cert_file is not None:
        # Without a password OpenSSL would ask for it on the terminal.
        context.load_cert_chain(cert_file, key_file, password or "")
    return context
