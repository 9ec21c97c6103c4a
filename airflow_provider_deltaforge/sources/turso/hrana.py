"""Statements to a libSQL server: streams of Hrana 3 over HTTP, and what their failures mean.

A stream is a connection that the server keeps between requests; the baton of each answer names it
in the next request. The client is httpcore, which says what happened to the socket and bounds every
wait; docs/decisions/turso_network.md has the reasons.
"""

import base64
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
    WrongServerError,
)
from airflow_provider_deltaforge.sources.turso.server_address import ServerAddress, server_of
from airflow_provider_deltaforge.sources.turso.server_http import SHORT_S, ServerHttp
from airflow_provider_deltaforge.sources.turso.tuning import TursoTuning

_IN_TRANSACTION = {"type": "not", "cond": {"type": "is_autocommit"}}

_STEPS = 100
"""Statements in one request."""

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
        longest_s: how long the server may be silent, if that is less than usual.
        opened: how many connections were.
    """

    def __init__(self, address: ServerAddress, token: str | None, tuning: TursoTuning) -> None:
        self.address = address
        self.in_transaction = False
        self.longest_s = inf
        self.opened = 0
        self._large: set[str] = set()
        self._http = ServerHttp(address, token, tuning)
        self._has_token = token is not None
        self._at = address
        self._baton: str | None = None

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
            raise self._ended()
        return rows

    def run_all(self, statements: Sequence[str]) -> None:
        """Run statements of the open transaction, each only if the one before it was.

        Raises:
            RetryableError, AccessError, FatalError: as ``run``; the transaction must be given up.
        """
        for first in range(0, len(statements), _STEPS):
            part = statements[first : first + _STEPS]
            steps = [{"stmt": {"sql": sql}, "condition": _after(at)} for at, sql in enumerate(part)]
            for rows, error in self._steps({"steps": steps}):
                if error:
                    raise self._failed(error)
                if rows is None:
                    raise self._ended()

    def _at_once(self, batch: Any) -> _Rows | None:
        """Return a statement's rows from one answer; None if it was not run."""
        ((rows, error),) = self._steps(batch)
        if error:
            raise self._failed(error)
        return rows

    def _steps(self, batch: Any) -> list[tuple[_Rows | None, Any]]:
        """Return the rows or the error of each step; neither for one that was not run."""
        requests = {"requests": [{"type": "batch", "batch": batch}]}
        with self._answer("/v3/pipeline", requests) as parts:
            answer = self._parsed(b"".join(parts))
        self._follow(answer)
        try:
            (result,) = answer["results"]
            if result.get("error"):
                return [(None, result["error"])] * len(batch["steps"])
            done = result["response"]["result"]
            return [
                (None if rows is None else _rows(rows["rows"]), error)
                for rows, error in zip(done["step_results"], done["step_errors"], strict=True)
            ]
        except (KeyError, TypeError, ValueError) as wrong:
            raise self._stranger() from wrong

    def _row_by_row(self, batch: Any) -> _Rows | None:
        """Return a statement's rows, as many as there are; None if it was not run.

        Servers bound an answer as a whole, to 10 MB for example, but not a row at a time, which
        costs them more.
        """
        rows: _Rows = []
        ended = False
        with self._answer("/v3/cursor", {"batch": batch}) as parts:
            lines = self._lines(parts)
            head = next(lines, None)
            if head is None:
                raise self._stranger()
            self._follow(head)
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
        """Return the name and version that the server reports; None if it reports none."""
        with self._http.answer(b"GET", self._at, "/version", b"") as response:
            if response.status != 200:
                return None
            return self._http.shown(self._http.body(response)) or None

    def hurry(self) -> None:
        """Break off what is under way, and wait only a moment from now on; by any thread."""
        self._http.hurry()

    def close(self) -> None:
        """Close the stream; the server rolls back what is not committed. Safe to call twice."""
        baton, self._baton = self._baton, None
        self.in_transaction = False
        if baton is not None:
            content = orjson.dumps({"baton": baton, "requests": [{"type": "close"}]})
            ask = self._http.answer(b"POST", self._at, "/v3/pipeline", content, SHORT_S)
            with suppress(DeltaForgeError), ask:  # It forgets streams that nobody uses.
                pass
        self._at = self.address
        self._http.close()

    @contextmanager
    def _answer(self, path: str, body: dict[str, Any]) -> Iterator[Iterator[bytes]]:
        """Send a request of this stream; its answer is read inside, in parts."""
        baton, self._baton = self._baton, None
        self.opened += baton is None
        content = orjson.dumps({"baton": baton, **body})
        ask = self._http.answer(b"POST", self._at, path, content, self.longest_s)
        with ask as response:
            if response.status != 200:
                raise self._refused(response, had_baton=baton is not None)
            yield response.iter_stream()

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

    def _ended(self) -> RetryableError:
        return RetryableError(
            f"{self.address}: the transaction was ended by the server; trying again"
        )

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
        code, text = str(error.get("code") or ""), self._http.shown(str(error.get("message") or ""))
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
        text = self._http.shown(_message(self._http.body(response)))
        refusal = f"{self.address} answers {status}" + (f": {text}" if text else "")
        self._at = self.address
        token = "renew" if self._has_token else "set"
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


def _after(step: int) -> dict[str, Any]:
    """Return the condition of a step: in the transaction, and behind a step that was run."""
    if step == 0:
        return _IN_TRANSACTION
    return {"type": "and", "conds": [_IN_TRANSACTION, {"type": "ok", "step": step - 1}]}


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
    """Return the error text in the body of a refusal."""
    with suppress(ValueError):
        parsed = orjson.loads(content)
        if isinstance(parsed, dict):
            return str(parsed.get("error") or parsed.get("message") or "")
    return content.decode(errors="replace")
