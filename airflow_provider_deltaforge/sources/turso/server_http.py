"""Requests to a server: one connection, how long each may take, and what its failures mean."""

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any

from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    FatalError,
    RetryableError,
    SpecError,
)
from airflow_provider_deltaforge.sources.turso.server_address import ServerAddress
from airflow_provider_deltaforge.sources.turso.tuning import TursoTuning

_IDLE_S = 30.0
_ANSWER_MAX = 65_536
SHORT_S = 2.0
"""How long to wait for what can be left out."""
_NO_TOKEN = re.compile(r"^\Z|[^!-~]")
"""The client quotes a token that no header can hold; one with blanks would not be masked there."""
_REFUSES_TLS = re.compile("ALERT|WRONG_VERSION|HTTP_REQUEST|PACKET_LENGTH|RECORD_LAYER|UNSUPPORTED")
"""The server has no TLS, or none that fits ours. Any other failure is a connection that broke."""


class ServerHttp:
    """One connection, opened when it is needed. Used by one thread at a time, but for ``hurry``.

    Args:
        address: of the server, for people.
        token: for it, if it asks for one.
        tuning: how long to wait.

    Attributes:
        answer_s: how long the server may be silent.

    Raises:
        SpecError: the token cannot be one.
        FatalError: the client is not installed.
    """

    def __init__(self, address: ServerAddress, token: str | None, tuning: TursoTuning) -> None:
        try:
            import httpcore
        except ImportError as error:
            raise FatalError(
                "the client of servers is not installed; pip install "
                "'airflow-provider-deltaforge[turso]'"
            ) from error
        if token is not None and _NO_TOKEN.search(token):
            raise SpecError(
                "source.auth_token: it is empty, or has a character that no token has, such as a "
                "blank or a line break; check where it comes from"
            )
        self.answer_s = tuning.answer_s
        self._core: Any = httpcore
        self._address = address
        self._token = token
        self._connect_s = tuning.connect_s
        tls = ssl.create_default_context() if address.scheme == "https" else None
        network: Any = _Network(httpcore)  # It has the method of a backend that is used.
        self._network = network
        self._pool: Any = httpcore.ConnectionPool(
            ssl_context=tls,
            max_connections=1,
            keepalive_expiry=_IDLE_S,
            network_backend=network,
        )

    @contextmanager
    def answer(
        self, method: bytes, at: ServerAddress, path: str, content: bytes, longest_s: float = inf
    ) -> Iterator[Any]:
        """Send one request; its answer is read inside, and closed behind.

        Raises:
            RetryableError: there is no whole answer; the request may have arrived or not.
            AccessError: TLS was refused, by either side.
        """
        headers = [
            (b"Host", str(at).partition("://")[2].partition("/")[0].encode()),
            (b"User-Agent", b"deltaforge"),
            (b"Content-Type", b"application/json"),
        ]
        if self._token is not None:
            headers.append((b"Authorization", b"Bearer " + self._token.encode()))
        wait_s = min(self.answer_s, longest_s)
        connect_s = min(self._connect_s, wait_s)
        waits = {"connect": connect_s, "read": wait_s, "write": wait_s, "pool": wait_s}
        url = self._core.URL(
            scheme=at.scheme.encode(),
            host=at.host.encode(),
            port=at.port,
            target=(at.path + path).encode(),
        )
        more = {"headers": headers, "content": content, "extensions": {"timeout": waits}}
        with self._failures(), self._pool.stream(method, url, **more) as response:
            yield response

    def body(self, response: Any) -> bytes:
        """Return the body of an answer, or the beginning of a long one."""
        content = b""
        for part in response.iter_stream():
            content += part
            if len(content) > _ANSWER_MAX:
                break
        return content

    def shown(self, text: str | bytes) -> str:
        """Return a server's text for people, without our token, if it repeats that."""
        shown = _printable(text)
        return (shown.replace(self._token, "***") if self._token else shown)[:200]

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn the client's errors into ours."""
        core = self._core
        try:
            yield
        except (core.TimeoutException, core.NetworkError, core.ProtocolError) as error:
            raise self._to_error(error) from error

    def _to_error(self, error: BaseException) -> DeltaForgeError:
        at = self._address
        cause = next((each for each in error.args if isinstance(each, BaseException)), error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return AccessError(
                f"{at} shows a certificate that is not trusted ({cause.verify_message}); correct "
                "the host in source.url, or name its authority's file in SSL_CERT_FILE"
            )
        if isinstance(cause, ssl.SSLError) and _REFUSES_TLS.search(cause.reason or ""):
            return AccessError(
                f"{at}: no TLS with it ({cause.reason or cause}); check the port, and whether "
                "source.url should begin with http://"
            )
        if isinstance(error, self._core.ConnectTimeout):
            return RetryableError(f"{at} is not connected to in time")
        if isinstance(error, self._core.TimeoutException):
            return RetryableError(f"{at} does not answer within {self.answer_s:g} s")
        text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        return RetryableError(f"{at}: {text}; check that it is up and reachable")

    def hurry(self) -> None:
        """Break off what is under way, and wait only a moment from now on; by any thread."""
        self.answer_s = min(self.answer_s, SHORT_S)
        self._network.cut()

    def close(self) -> None:
        """Close the connection. Safe to call twice; the next request opens another."""
        self._pool.close()
        self._network.forget()


class _Network:
    """Opens connections that another thread can break."""

    def __init__(self, core: Any) -> None:
        self._backend = core.SyncBackend()
        self._socket: socket.socket | None = None

    def connect_tcp(self, host: str, port: int, **more: Any) -> Any:
        """Connect; the client calls this."""
        stream = self._backend.connect_tcp(host, port, **more)
        self.forget()
        # TLS takes the first handle away; this one leads to the same connection.
        self._socket = stream.get_extra_info("socket").dup()
        return stream

    def cut(self) -> None:
        """Break the connection, also while another thread waits for an answer."""
        handle = self._socket
        if handle is not None:
            with suppress(OSError):
                handle.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Close our handle. Safe to call twice."""
        handle, self._socket = self._socket, None
        if handle is not None:
            handle.close()


def _printable(content: str | bytes) -> str:
    text = content.decode(errors="replace") if isinstance(content, bytes) else content
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
