"""Sends the requests of a plan one after the other, over connections of its own."""

import logging
import math
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from http import HTTPStatus
from typing import NoReturn

import numpy as np

from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    FatalError,
    RetryableError,
)
from airflow_provider_deltaforge.events.message import Messages
from airflow_provider_deltaforge.sinks.header_text import header_text
from airflow_provider_deltaforge.sinks.http.address import Addresses, Target, UnroutableError
from airflow_provider_deltaforge.sinks.http.connection import (
    BrokenOffError,
    Connections,
    HttpAnswer,
)
from airflow_provider_deltaforge.sinks.http.headers import routed
from airflow_provider_deltaforge.sinks.http.plan import RequestPlan, array_body, identity
from airflow_provider_deltaforge.sinks.http.signing import signed

log = logging.getLogger(__name__)

_TOO_LARGE = 413
_REST_MAX_S = 3600.0
_LATER = frozenset({404, 408, 421, 423, 425, 429})
_FORBIDDEN = frozenset({401, 402, 403, 407, 511})
_WRONG = {
    405: "the endpoint takes another 'method'",
    406: "the endpoint cannot answer this kind of request; check 'url'",
    410: "the endpoint is gone for good; correct 'url'",
    415: "the endpoint does not take {content}; choose another 'encoding' or 'envelope', "
    "or set Content-Type in 'headers'",
    426: "the endpoint asks for another protocol; correct 'url'",
    501: "the endpoint does not know this 'method'",
    505: "the endpoint does not speak HTTP/1.1",
}
_KINDS = {413: "message_too_large"}


class Reaction(Enum):
    """What to do after an answer."""

    TAKEN = auto()
    LATER = auto()
    """Send the same again, after a while."""
    REFUSED = auto()
    """The fault of an event."""
    FORBIDDEN = auto()
    """Credentials or permissions."""
    WRONG = auto()
    """The document names the wrong place, or a wrong way to speak to it."""


@dataclass(frozen=True)
class RequestOptions:
    """How requests of a sink are made; shared by its senders.

    Attributes:
        where: how messages for people name the sink.
        about: names pipeline and sink in logs.
        addresses: where requests may go.
        method: of the requests.
        headers: sent with every request.
        signing_key: signs them, if there is one.
        in_arrays: a request holds more than one event.
        timeout_s: how long one may take.
        bare_type: what events without their envelope are called; None: as the others.
    """

    where: str
    about: dict[str, str]
    addresses: Addresses
    method: bytes
    headers: dict[bytes, bytes]
    signing_key: bytes | None
    in_arrays: bool
    timeout_s: float
    bare_type: bytes | None


class HttpSender:
    """One request at a time. Used by one thread, but for ``cut``.

    Args:
        options: how requests are made.
        connections: its own.
        check: called before each request; raises when there is a reason to send no more.
    """

    def __init__(
        self, options: RequestOptions, connections: Connections, check: Callable[[], None]
    ) -> None:
        self._options = options
        self._connections = connections
        self._check = check
        self._bytes_max: dict[str, int] = {}
        self.rest_until = 0.0

    def send(self, plan: RequestPlan) -> None:
        """Send what is left of a plan.

        Raises:
            RetryableError, AccessError, FatalError: see ``SinkWriter``; what was answered has left
                the plan.
        """
        while plan.spans:
            self._check()
            self._send_next(plan)

    def send_under(self, hold: Callable[[], None]) -> None:
        """Ask before each piece of a request, however slow its way; see ``WriterClaim.hold``."""
        self._connections.send_under(hold)

    def cut(self) -> None:
        """Break the request under way. Called from another thread."""
        self._connections.cut()

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def _send_next(self, plan: RequestPlan) -> None:
        """Send the next request, if it can be sent, and react to its answer."""
        rows = plan.next_rows
        body = self._body(plan, rows)
        url = plan.messages.topics[int(rows[0])].as_py()
        if len(rows) > 1 and len(body) > min(plan.bytes_max, self._bytes_max.get(url, len(body))):
            plan.halve()
            return
        options = self._options
        try:
            target = options.addresses.target(url)
            headers = self._headers(plan.messages, rows, target, body)
        except UnroutableError as error:
            plan.refuse("routing", f"{options.where}: {error}")
            return
        try:
            answer = self._connections.send(
                options.method, target, headers, body, options.timeout_s
            )
        except DeltaForgeError as error:
            self._check()
            if isinstance(error, BrokenOffError):
                # For this batch only: a network that broke just then looks the same.
                plan.bytes_max = len(body) // 2
            raise type(error)(f"{options.where}: {error}{_so_far(plan)}") from error
        self._react(answer, target, plan)
        if answer.status == _TOO_LARGE and len(rows) > 1:
            self._bytes_max[url] = len(body) // 2

    def _react(self, answer: HttpAnswer, target: Target, plan: RequestPlan) -> None:
        reaction = _reaction_to(answer.status)
        if reaction is Reaction.TAKEN:
            plan.answered()
        elif reaction is not Reaction.REFUSED:
            self._raise(reaction, answer, target, plan)
        elif len(plan.next_rows) > 1:
            log.info(
                "http endpoint refuses an array; sending it in halves",
                extra={**self._options.about, "status": answer.status},
            )
            plan.halve()
        else:
            reason = f"{target.origin} refuses it: {_phrase(answer.status)}"
            plan.refuse(_kind(answer.status), f"{self._options.where}: {reason}")

    def _raise(
        self, reaction: Reaction, answer: HttpAnswer, target: Target, plan: RequestPlan
    ) -> NoReturn:
        text = f"{self._options.where}: {target.origin} answers {_phrase(answer.status)}"
        if reaction is Reaction.FORBIDDEN:
            raise AccessError(
                f"{text}; check the credentials in 'headers' or 'proxy', and what they allow"
            )
        if reaction is Reaction.WRONG:
            content = self._options.headers[b"content-type"].decode()
            raise FatalError(f"{text}; {_what_is_wrong(answer.status, content)}")
        rest_s = retry_after_s(answer.retry_after)
        self.rest_until = time.monotonic() + rest_s
        asks = f"; it asks for {rest_s:.0f} s of rest" if rest_s else ""
        check = _what_to_check(answer.status)
        raise RetryableError(f"{text}{asks}{check}{_so_far(plan)}")

    def _body(self, plan: RequestPlan, rows: "np.typing.NDArray[np.intp]") -> bytes:
        if self._options.in_arrays:
            return array_body(plan.messages, rows)
        value = plan.messages.values[int(rows[0])].as_py()
        return b"null" if value is None else value

    def _headers(
        self, messages: Messages, rows: "np.typing.NDArray[np.intp]", target: Target, body: bytes
    ) -> list[tuple[bytes, bytes]]:
        row = int(rows[0])
        headers = dict(self._options.headers)
        bare_type = self._options.bare_type
        if bare_type and messages.bare is not None and messages.bare[row].as_py():
            headers[b"content-type"] = bare_type
        if messages.headers is not None:
            headers |= routed(messages.headers[row].as_py() or ())
        if self._options.in_arrays:
            name = identity(messages, rows)
        else:
            name = str(uuid.UUID(bytes=messages.event_ids[row].as_py()))
            headers[b"df-event-id"] = name.encode()
            key = messages.keys[row].as_py()
            if key is not None:
                headers[b"df-key"] = header_text(key).encode()
        headers[b"idempotency-key"] = name.encode()
        if self._options.signing_key is not None:
            headers |= signed(self._options.signing_key, name, int(time.time()), body)
        return [
            (b"host", target.origin.netloc.encode()),
            (b"content-length", b"%d" % len(body)),
            *headers.items(),
        ]


def _so_far(plan: RequestPlan) -> str:
    if not plan.taken:
        return ""
    return f" ({plan.taken} of {len(plan.order)} events are through, the others wait)"


def _reaction_to(status: int) -> Reaction:
    """Return what to do after an answer with this status."""
    if 200 <= status < 300:
        return Reaction.TAKEN
    if status in _FORBIDDEN:
        return Reaction.FORBIDDEN
    if status in _WRONG or status < 400:
        return Reaction.WRONG
    return Reaction.LATER if status in _LATER or status >= 500 else Reaction.REFUSED


def _phrase(status: int) -> str:
    """Return a status as people know it; the endpoint's own words are not repeated."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _what_is_wrong(status: int, content: str) -> str:
    """Return what to change where the reaction is WRONG."""
    if status in _WRONG:
        return _WRONG[status].format(content=content)
    return "redirects are not followed; write the address it leads to in 'url'"


def _what_to_check(status: int) -> str:
    """Return what to look at where the reaction is LATER; empty for most answers."""
    if status == HTTPStatus.NOT_FOUND:
        return "; make the endpoint, or correct 'url'"
    return ""


def _kind(status: int) -> str:
    """Return the kind of rejection that a refused event becomes."""
    return _KINDS.get(status, "refused")


def retry_after_s(retry_after: str | None) -> float:
    """Return how many seconds a ``Retry-After`` asks for, at most an hour."""
    if not retry_after:
        return 0.0
    try:
        asked = float(retry_after)
    except ValueError:
        try:
            asked = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except ValueError:
            return 0.0
    return min(max(asked, 0.0), _REST_MAX_S) if math.isfinite(asked) else 0.0
