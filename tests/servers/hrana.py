"""A libSQL server's protocol, Hrana 3 over HTTP, in front of a real embedded database.

What it answers is held equal to answers recorded of libsql-server
(``tests/sources/turso/exchanges.py``).
"""

import base64
import json
import math
import secrets
import socket
import sqlite3
import ssl
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.servers.process import HOST, free_port

LARGEST = 10_000_000
"""Bytes of one answer, as libsql-server bounds them; a cursor is not bound."""
_WAIT_S = 5.0


class RefusedError(Exception):
    """A request that is refused as a whole: status and what is said."""


@dataclass
class Stream:
    """One connection, and when it was used last."""

    connection: Any
    used: float = field(default_factory=time.monotonic)
    in_transaction: bool = False


class HranaFront:
    """A server on the loopback address; ``with`` it.

    Args:
        path: of the database file.
        engine: ``sqlite``, or ``turso``, which captures what is written through this server.
        token: that requests must show.
        tls: certificate and key in one file.
        idle_s: how long a stream is kept that nobody uses.

    Attributes:
        read_only: refuse what writes, like a token without that right.
        answer: what to say to everybody instead: status and body.
        delay_s: before each answer.
        base_url: where it sends its clients.
        requests: how many came.
    """

    def __init__(
        self,
        path: Path,
        engine: str = "sqlite",
        token: str | None = None,
        tls: Path | None = None,
        idle_s: float = 10.0,
        port: int | None = None,
    ) -> None:
        self.path = path
        self.engine = engine
        self.token = token
        self.idle_s = idle_s
        self.read_only = False
        self.answer: tuple[int, bytes] | None = None
        self.delay_s = 0.0
        self.requests = 0
        self.base_url: str | None = None
        self.port = port or free_port()
        self.streams: dict[str, Stream] = {}
        self._tls = tls
        self._turns = threading.Lock()  # Turso's engine: one connection for all, in turns.
        self._connection: Any = None
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{HOST}:{self.port}"

    def __enter__(self) -> "HranaFront":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        front = self

        class Handler(_Handler):
            server_of = front

        self._server = _Quiet((HOST, self.port), Handler)
        self._server.daemon_threads = True
        if self._tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        if self.engine == "sqlite":
            with closing(sqlite3.connect(self.path)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        threading.Thread(target=self._forget_idle, args=(self._server,), daemon=True).start()

    def _forget_idle(self, server: Any) -> None:
        """Roll back what a client left behind that was killed."""
        while self._server is server:
            for baton, stream in list(self.streams.items()):
                if time.monotonic() - stream.used > self.idle_s:
                    self.drop(baton)
            time.sleep(0.2)

    def stop(self) -> None:
        """Go away like a server that is killed: streams are forgotten, transactions rolled back."""
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        for sock in list(_open_sockets.pop(self.port, ())):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for baton in list(self.streams):
            self.drop(baton)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def serve(self, path: Path) -> None:
        """Serve another file from now on, as after a restore."""
        self.stop()
        self.path = path
        self.start()

    def run(self, *statements: str) -> None:
        """Run statements as a client would, in one transaction."""
        stream = self._opened()
        try:
            for statement in ("BEGIN", *statements, "COMMIT"):
                self.execute(stream, {"sql": statement})
        finally:
            self._end(stream)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        stream = self._opened()
        try:
            return self._fetched(stream, sql, ())[1]
        finally:
            self._end(stream)

    # Streams

    def take(self, baton: str | None) -> Stream:
        """Return the stream of a baton, which is good for one request."""
        if baton is None:
            return self._opened()
        stream = self.streams.pop(baton, None)
        if stream is None:
            raise RefusedError(400, "Received an invalid baton, or the stream has expired")
        if time.monotonic() - stream.used > self.idle_s:
            self._end(stream)
            raise RefusedError(400, "The stream has expired due to inactivity")
        return stream

    def give(self, stream: Stream) -> str:
        stream.used = time.monotonic()
        baton = secrets.token_urlsafe(24)
        self.streams[baton] = stream
        return baton

    def drop(self, baton: str) -> None:
        stream = self.streams.pop(baton, None)
        if stream is not None:
            self._end(stream)

    def _opened(self) -> Stream:
        if self.engine == "sqlite":
            connection = sqlite3.connect(
                self.path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
            )
            return Stream(connection)
        with self._turns:
            if self._connection is None:
                import turso

                self._connection = turso.connect(
                    str(self.path),
                    experimental_features="multiprocess_wal",
                    isolation_level=None,
                )
                capture = "PRAGMA unstable_capture_data_changes_conn('full')"
                self._connection.execute(capture).fetchall()
        return Stream(self._connection)

    def _end(self, stream: Stream) -> None:
        if self.engine == "sqlite":
            stream.connection.close()
        elif stream.in_transaction:
            stream.connection.execute("ROLLBACK").fetchall()
            stream.in_transaction = False
            self._turns.release()

    # Statements

    def execute(self, stream: Stream, stmt: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        """Return the columns and rows of a statement, as the protocol writes them."""
        sql = stmt["sql"]
        if self.read_only and sql.split(maxsplit=1)[0].upper() not in _READS:
            raise RefusedError(403, "Authorization forbidden: no Write permission")
        names, rows = self._fetched(stream, sql, [_argument(each) for each in stmt.get("args", ())])
        return [{"name": name, "decltype": None} for name in names], [
            [_value(each) for each in row] for row in rows
        ]

    def _fetched(self, stream: Stream, sql: str, values: Any) -> tuple[list[str], list[Any]]:
        word = sql.split(maxsplit=1)[0].upper()
        if self.engine == "turso" and not stream.in_transaction:
            if not self._turns.acquire(timeout=_WAIT_S):
                raise sqlite3.OperationalError("database is locked")
            try:
                fetched = _fetch(stream.connection, sql, values)
                stream.in_transaction = word == "BEGIN"
                return fetched
            finally:
                if not stream.in_transaction:
                    self._turns.release()
        fetched = _fetch(stream.connection, sql, values)
        if self.engine == "turso" and word in ("COMMIT", "ROLLBACK"):
            stream.in_transaction = False
            self._turns.release()
        elif self.engine == "sqlite":
            stream.in_transaction = stream.connection.in_transaction
        return fetched


_READS = {"SELECT", "WITH", "PRAGMA", "BEGIN", "COMMIT", "ROLLBACK"}
_open_sockets: dict[int, set[socket.socket]] = {}


class _Quiet(ThreadingHTTPServer):
    """Says nothing of clients that hang up."""

    allow_reuse_address = True

    def handle_error(self, *_: object) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of: HranaFront

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        _open_sockets.setdefault(self.server_of.port, set()).add(self.connection)

    def finish(self) -> None:
        _open_sockets.get(self.server_of.port, set()).discard(self.connection)
        super().finish()

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        text = b"hrana front 1.0" if self.path == "/version" else None
        self._say(200 if text else 404, text or b"", "text/plain")

    def do_POST(self) -> None:
        front = self.server_of
        front.requests += 1
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        time.sleep(front.delay_s)
        if front.answer is not None:
            return self._say(*front.answer)
        try:
            self._check_access()
            body = json.loads(content)
            stream = front.take(body.get("baton"))
            try:
                answer = (self._pipeline if self.path == "/v3/pipeline" else self._cursor)(
                    stream, body
                )
            except BaseException:
                front._end(stream)
                raise
        except RefusedError as error:
            status, text = error.args
            is_json = status in (401, 403, 500)
            content = json.dumps({"error": text}).encode() if is_json else text.encode()
            return self._say(status, content)
        return self._say(200, answer)

    def _check_access(self) -> None:
        token = self.server_of.token
        if token and self.headers.get("Authorization") != f"Bearer {token}":
            raise RefusedError(401, "Unauthorized: `The JWT is invalid`")
        if self.path not in ("/v3/pipeline", "/v3/cursor"):
            raise RefusedError(404, "")

    def _pipeline(self, stream: Stream, body: dict[str, Any]) -> bytes:
        front = self.server_of
        results: list[Any] = []
        is_closed = False
        for request in body["requests"]:
            if request["type"] == "close":
                front._end(stream)
                is_closed = True
                response: dict[str, Any] = {"type": "close"}
            elif request["type"] == "batch":
                done = _steps(front, stream, request["batch"])
                if len(json.dumps([step[0] for step in done])) > LARGEST:
                    error = {"message": "Response is too large", "code": "RESPONSE_TOO_LARGE"}
                    results.append({"type": "error", "error": error})
                    continue
                result = {
                    "step_results": [_result(step[0]) for step in done],
                    "step_errors": [step[1] for step in done],
                    "replication_index": None,
                }
                response = {"type": "batch", "result": result}
            else:
                raise RefusedError(400, "unknown request")
            results.append({"type": "ok", "response": response})
        baton = None if is_closed else front.give(stream)
        return json.dumps({"baton": baton, "base_url": front.base_url, "results": results}).encode()

    def _cursor(self, stream: Stream, body: dict[str, Any]) -> bytes:
        front = self.server_of
        lines: list[Any] = []
        for at, (rows, error) in enumerate(_steps(front, stream, body["batch"])):
            if error is not None:
                if "INPUT" not in error["code"] and "UNKNOWN" not in error["code"]:
                    lines.append({"type": "step_begin", "step": at, "cols": []})
                lines.append({"type": "step_error", "step": at, "error": error})
            elif rows is not None:
                lines.append({"type": "step_begin", "step": at, "cols": rows[0]})
                lines += [{"type": "row", "row": row} for row in rows[1]]
                lines.append(
                    {"type": "step_end", "affected_row_count": 0, "last_insert_rowid": None}
                )
        lines.append({"type": "replication_index", "replication_index": None})
        lines.insert(0, {"baton": front.give(stream), "base_url": front.base_url})
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    def _say(self, status: int, content: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _steps(front: HranaFront, stream: Stream, batch: Any) -> list[tuple[Any, Any]]:
    """Return rows or error of each step; neither for one that was left out."""
    done: list[tuple[Any, Any]] = []
    for step in batch["steps"]:
        if not _holds(step.get("condition"), stream, done):
            done.append((None, None))
            continue
        try:
            rows = front.execute(stream, step["stmt"])
        except RefusedError:
            raise
        except Exception as error:  # noqa: BLE001 - of either engine
            done.append((None, {"message": str(error), "code": _code(error)}))
        else:
            done.append((rows, None))
    return done


def _holds(condition: Any, stream: Stream, done: list[tuple[Any, Any]]) -> bool:
    if condition is None:
        return True
    if condition["type"] == "not":
        return not _holds(condition["cond"], stream, done)
    if condition["type"] == "and":
        return all(_holds(each, stream, done) for each in condition["conds"])
    if condition["type"] == "ok":
        return done[condition["step"]][0] is not None
    assert condition == {"type": "is_autocommit"}
    return not stream.in_transaction


def _result(rows: Any) -> Any:
    if rows is None:
        return None
    return {
        "cols": rows[0],
        "rows": rows[1],
        "affected_row_count": 0,
        "last_insert_rowid": None,
    }


def _fetch(connection: Any, sql: str, values: Any) -> tuple[list[str], list[Any]]:
    try:
        cursor = connection.execute(sql, tuple(values))
        rows = cursor.fetchall()
    except sqlite3.OperationalError as error:
        if "decode to UTF-8" in str(error):
            raise RefusedError(500, "invalid utf-8 sequence") from error
        raise
    return [each[0] for each in cursor.description or ()], rows


def _code(error: Exception) -> str:
    name = str(getattr(error, "sqlite_errorname", "SQLITE_ERROR"))
    if name == "SQLITE_ERROR":
        text = str(error)
        if "locked" in text:
            return "SQLITE_BUSY"
        return "SQLITE_UNKNOWN" if "no such table" in text else "SQL_INPUT_ERROR"
    return "_".join(name.split("_")[:2])


def _argument(value: dict[str, Any]) -> Any:
    kind = value["type"]
    if kind == "null":
        return None
    if kind == "integer":
        return int(value["value"])
    if kind == "blob":
        return base64.b64decode(value["base64"] + "==")
    return value["value"]


def _value(value: Any) -> dict[str, Any]:
    if value is None:
        return {"type": "null"}
    if isinstance(value, int):
        return {"type": "integer", "value": str(value)}
    if isinstance(value, float):
        return {"type": "float", "value": value if math.isfinite(value) else None}
    if isinstance(value, bytes):
        return {"type": "blob", "base64": base64.b64encode(value).decode().rstrip("=")}
    return {"type": "text", "value": value}
