"""Statements to a libSQL server: streams of Hrana 3 over HTTP, and what their failures mean.

A stream is a connection that the server keeps between requests; the baton of each answer names it
in the next request. The client is httpcore, which says what happened to the socket and bounds every
wait; docs/decisions/turso_network.md has the reasons.
"""

import base64
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from typing import Any

import orjson

from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    FatalError,
    RetryableError,
    SpecError,
    WrongServerError,
)
from airflow_provider_deltaforge.sources.turso.server_address import ServerAddress, server_of
from airflow_provider_deltaforge.sources.turso.tuning import TursoTuning

_IDLE_S = 30.0
_SHORT_S = 2.0
_ANSWER_MAX = 65_536
_IN_TRANSACTION = {"type": "not", "cond": {"type": "is_autocommit"}}

_MAY_NOT = "give source.auth_token the right to do that; for triggers, the right to write"

_NO_TEXT = "a TEXT is no UTF-8, which this server does not send; store it as a BLOB"
_NO_DATABASE = (
    "no database is there, or no server that speaks Hrana 3 over HTTP: libsql-server (sqld) and "
    "Turso Cloud do"
)

_Rows = list[tuple[Any, ...]]

_BUSY = {
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_ABORT",
    "SQLITE_INTERRUPT",
    "SQLITE_NOMEM",
    "SQLITE_FULL",
    "SQLITE_IOERR",
    "SQLITE_SCHEMA",
    "TRANSACTION_BUSY",
    "TRANSACTION_TIMEOUT",
    "PROXY_ERROR",
}
_DENIED = {"SQLITE_READONLY", "SQLITE_AUTH", "SQLITE_PERM", "BLOCKED"}


class StreamLostError(RetryableError):
    """The server does not know the stream any more; a transaction in it was rolled back."""


class _TooLargeError(RetryableError):
    """The rows are more than the server puts into one answer."""


class HranaStream:
    """One connection inside a server; opened by its first statement. Used by one thread at a time.

    Args:
        address: of the server.
        token: for it, if it asks for one.
        tuning: how long to wait.

    Attributes:
        in_transaction: statements run in the transaction that is open, or not at all.
        answer_s: how long the server may be silent.
        opened: how many connections were.
    """

    def __init__(self, address: ServerAddress, token: str | None, tuning: TursoTuning) -> None:
        try:
            import httpcore
        except ImportError as error:
            raise FatalError(
                "the client of servers is not installed; pip install "
                "'airflow-provider-deltaforge[turso]'"
            ) from error
        if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
            raise SpecError(
                "source.auth_token: it is empty, or has a character that no token has, such as a "
                "line break; check where it comes from"
            )
        self.address = address
        self.in_transaction = False
        self.answer_s = tuning.answer_s
        self.opened = 0
        self._large: set[str] = set()
        self._core: Any = httpcore
        self._token = token
        self._tuning = tuning
        self._at = address
        self._baton: str | None = None
        tls = ssl.create_default_context() if address.scheme == "https" else None
        network: Any = _Network(httpcore)  # It has the method of a backend that is used.
        self._network = network
        self._pool: Any = httpcore.ConnectionPool(
            ssl_context=tls,
            max_connections=1,
            keepalive_expiry=_IDLE_S,
            network_backend=network,
        )

    def run(self, sql: str, values: Sequence[Any] = ()) -> _Rows:
        """Run one statement and return its rows; an infinite number comes as NaN.

        Raises:
            StreamLostError: the statement was not run, because the stream is gone.
            RetryableError: the server is away, slow or busy, or the transaction is gone.
            AccessError: it refuses the token, the statement or TLS.
            FatalError: it refuses the statement, which is wrong.
        """
        step: dict[str, Any] = {"stmt": {"sql": sql, "args": [_argument(v) for v in values]}}
        if self.in_transaction:
            step["condition"] = _IN_TRANSACTION
        batch = {"steps": [step]}
        rows: _Rows | None = None
        if sql not in self._large:
            try:
                rows = self._at_once(batch)
            except _TooLargeError:
                self._large.add(sql)
        if sql in self._large:
            rows = self._row_by_row(batch)
        if rows is None:
            raise RetryableError(
                f"{self.address}: the transaction was ended by the server; trying again"
            )
        return rows

    def _at_once(self, batch: Any) -> "_Rows | None":
        """Return a statement's rows from one answer; None if it was not run."""
        body = self._ask("/v3/pipeline", {"requests": [{"type": "batch", "batch": batch}]})
        answer = self._parsed(b"".join(body))
        self._follow(answer)
        try:
            (result,) = answer["results"]
            error = result.get("error")
            if error is None:
                steps = result["response"]["result"]
                ((done,), (error,)) = steps["step_results"], steps["step_errors"]
            rows = None if error or done is None else _rows(done["rows"])
        except (KeyError, TypeError, ValueError) as wrong:
            raise self._stranger() from wrong
        if error:
            raise self._failed(error)
        return rows

    def _row_by_row(self, batch: Any) -> "_Rows | None":
        """Return a statement's rows, as many as there are; None if it was not run.

        Servers bound an answer as a whole, to 10 MB for example, but not a row at a time, which
        costs them more.
        """
        lines = self._lines(self._ask("/v3/cursor", {"batch": batch}))
        head = next(lines, None)
        if head is None:
            raise self._stranger()
        self._follow(head)
        rows: _Rows = []
        ended = False
        for entry in lines:
            kind = entry.get("type")
            if kind == "row":
                rows += _rows([entry["row"]])
            elif kind == "step_end":
                ended = True
            elif kind in ("step_error", "error"):
                raise self._failed(entry.get("error"))
        return rows if ended else None

    def begin(self, sql: str) -> None:
        """Begin a transaction.

        Raises:
            WrongServerError: the server keeps none from one request to the next.
        """
        self.run(sql)
        if self._baton is None:
            raise WrongServerError(
                f"{self.address} keeps no transaction from one request to the next: follow it "
                "through libsql-server (sqld) or Turso Cloud"
            )
        self.in_transaction = True

    def commit(self) -> None:
        """Commit the transaction."""
        self.run("COMMIT")
        self.in_transaction = False

    def version(self) -> str | None:
        """Return what the server says it is; None where it says nothing."""
        response = self._send(b"GET", "/version", b"")
        try:
            if response.status != 200:
                return None
            return _printable(self._body(response))[:100] or None
        finally:
            response.close()

    def hurry(self) -> None:
        """Break off what is under way, and wait only a moment from now on; by any thread."""
        self.answer_s = min(self.answer_s, _SHORT_S)
        self._network.cut()

    def close(self) -> None:
        """Let go of the server, which rolls back what is not committed. Safe to call twice."""
        baton, self._baton = self._baton, None
        self.in_transaction = False
        if baton is not None:
            content = orjson.dumps({"baton": baton, "requests": [{"type": "close"}]})
            with suppress(DeltaForgeError):  # It forgets streams that nobody uses.
                self._send(b"POST", "/v3/pipeline", content, _SHORT_S).close()
        self._at = self.address
        self._pool.close()
        self._network.forget()

    def _send(self, method: bytes, path: str, content: bytes, longest_s: float = inf) -> Any:
        """Send one request; return its answer, whose body is still to be read."""
        at = self._at
        headers = [
            (b"Host", str(at).partition("://")[2].partition("/")[0].encode()),
            (b"User-Agent", b"deltaforge"),
            (b"Content-Type", b"application/json"),
            (b"Content-Length", b"%d" % len(content)),
        ]
        if self._token is not None:
            headers.append((b"Authorization", b"Bearer " + self._token.encode()))
        wait_s = min(self.answer_s, longest_s)
        connect_s = min(self._tuning.connect_s, wait_s)
        waits = {"connect": connect_s, "read": wait_s, "write": wait_s, "pool": wait_s}
        url = self._core.URL(
            scheme=at.scheme.encode(),
            host=at.host.encode(),
            port=at.port,
            target=(at.path + path).encode(),
        )
        request = self._core.Request(
            method, url, headers=headers, content=content, extensions={"timeout": waits}
        )
        with self._failures():
            return self._pool.handle_request(request)

    def _ask(self, path: str, body: dict[str, Any]) -> Iterator[bytes]:
        """Send a request of this stream; yield its answer in parts."""
        baton, self._baton = self._baton, None
        self.opened += baton is None
        response = self._send(b"POST", path, orjson.dumps({"baton": baton, **body}))
        try:
            if response.status != 200:
                raise self._refused(response, had_baton=baton is not None)
            with self._failures():
                yield from response.iter_stream()
        finally:
            response.close()

    def _lines(self, parts: Iterator[bytes]) -> Iterator[Any]:
        """Yield the lines of an answer, parsed, as they come."""
        begun: list[bytes] = []  # Parts of a line: a row may be large.
        for part in parts:
            first, *others = part.split(b"\n")
            begun.append(first)
            for other in others:
                yield self._parsed(b"".join(begun))
                begun = [other]
        if any(begun):
            yield self._parsed(b"".join(begun))

    def _parsed(self, text: bytes) -> Any:
        try:
            parsed = orjson.loads(text)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            raise self._stranger()
        return parsed

    def _stranger(self) -> WrongServerError:
        return WrongServerError(f"{self.address} does not speak Hrana over HTTP; check source.url")

    def _follow(self, head: Any) -> None:
        """Take note of where the stream goes on."""
        self._baton = head.get("baton")
        if head.get("base_url"):
            at = server_of(str(head["base_url"]))
            if self.address.scheme == "https" and at.scheme != "https":
                self._baton = None
                raise AccessError(f"{self.address} sends us to http://, where a token can be read")
            self._at = at

    def _failed(self, error: Any) -> DeltaForgeError:
        """Return the error for a statement that the server refused."""
        error = error if isinstance(error, dict) else {}
        code, text = str(error.get("code") or ""), self._shown(str(error.get("message") or ""))
        if code == "RESPONSE_TOO_LARGE":
            return _TooLargeError(f"{self.address}: {text}")
        if code in _BUSY:
            return RetryableError(f"{self.address}: {text} ({code}); trying again")
        if code in _DENIED or "not authorized" in text.lower() or "permission" in text.lower():
            return AccessError(f"{self.address}: {text} ({code}); {_MAY_NOT}")
        return FatalError(f"{self.address}: {text} ({code or 'no code'})")

    def _refused(self, response: Any, *, had_baton: bool) -> DeltaForgeError:
        """Return the error for a request that the server refused as a whole."""
        status: int = response.status
        text = self._shown(_message(self._body(response)))
        refusal = f"{self.address} answers {status}" + (f": {text}" if text else "")
        self._at = self.address
        token = "renew" if self._token else "set"
        reactions: list[tuple[bool, type[DeltaForgeError], str]] = [
            (status == 401, AccessError, f"{token} source.auth_token"),
            (status == 403, AccessError, _MAY_NOT),
            ("invalid utf-8" in text.lower(), FatalError, _NO_TEXT),
            (status in (408, 429) or status >= 500, RetryableError, "trying again"),
            (had_baton, StreamLostError, "beginning a new stream"),
            (300 <= status < 400, WrongServerError, "name the place itself in source.url"),
            (status in (404, 405), WrongServerError, _NO_DATABASE),
        ]
        for holds, kind, remedy in reactions:
            if holds:
                return kind(f"{refusal}; {remedy}")
        return FatalError(f"{refusal}; check source.url")

    def _body(self, response: Any) -> bytes:
        content = b""
        with self._failures():
            for part in response.iter_stream():
                content += part
                if len(content) > _ANSWER_MAX:
                    break
        return content

    def _shown(self, text: str) -> str:
        """Return what a server said, without our token, if it repeats it."""
        shown = _printable(text.encode())[:200]
        return shown.replace(self._token, "***") if self._token else shown

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn the client's errors into ours."""
        core = self._core
        try:
            yield
        except (core.TimeoutException, core.NetworkError, core.ProtocolError) as error:
            raise self._to_error(error) from error

    def _to_error(self, error: BaseException) -> DeltaForgeError:
        at = self.address
        cause = next((each for each in error.args if isinstance(each, BaseException)), error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return AccessError(
                f"{at} shows a certificate that is not trusted ({cause.verify_message}); correct "
                "the host in source.url, or name its authority's file in SSL_CERT_FILE"
            )
        if isinstance(cause, ssl.SSLError):
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
        """Break the connection, whoever waits for it."""
        handle = self._socket
        if handle is not None:
            with suppress(OSError):
                handle.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Close our handle. Safe to call twice."""
        handle, self._socket = self._socket, None
        if handle is not None:
            handle.close()


def _argument(value: Any) -> dict[str, Any]:
    if value is None:
        return {"type": "null"}
    if isinstance(value, int):
        return {"type": "integer", "value": str(int(value))}
    if isinstance(value, float):
        return {"type": "float", "value": value}
    if isinstance(value, bytes):
        return {"type": "blob", "base64": base64.b64encode(value).decode()}
    return {"type": "text", "value": str(value)}


def _value(value: Any) -> Any:
    kind = value["type"]
    if kind == "integer":
        return int(value["value"])
    if kind == "text":
        return value["value"]
    if kind == "float":
        number = value["value"]
        return float("nan") if number is None else float(number)
    if kind == "blob":
        text = value["base64"]
        return base64.b64decode(text + "=" * (-len(text) % 4))
    return None


def _rows(rows: Sequence[Any]) -> _Rows:
    return [tuple(map(_value, row)) for row in rows]


def _message(content: bytes) -> str:
    """Return what the body of a refusal says."""
    with suppress(ValueError):
        parsed = orjson.loads(content)
        if isinstance(parsed, dict):
            return str(parsed.get("error") or parsed.get("message") or "")
    return content.decode(errors="replace")


def _printable(content: bytes) -> str:
    text = content.decode(errors="replace")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
