"""Sends request after request, and remembers how far a batch has come."""

import logging
import ssl
import threading
import time
import uuid
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from airflow_provider_deltaforge import __version__
from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    FatalError,
    RetryableError,
    SpecError,
)
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.http import answers
from airflow_provider_deltaforge.sinks.http.address import Addresses, Target, UnroutableError
from airflow_provider_deltaforge.sinks.http.answers import Meaning
from airflow_provider_deltaforge.sinks.http.connection import Answer, Connections, tls_context
from airflow_provider_deltaforge.sinks.http.headers import configured, header_text, routed
from airflow_provider_deltaforge.sinks.http.plan import Plan, array_body, identity
from airflow_provider_deltaforge.sinks.http.signing import signed, signing_key
from airflow_provider_deltaforge.sinks.http.sink import HttpSink

log = logging.getLogger(__name__)

_TOO_LARGE = 413


class HttpWriter:
    """One request at a time: what is answered is never sent again by this writer."""

    def __init__(self, sink: HttpSink, pipeline: str) -> None:
        self._sink = sink
        self._where = f"http sink {sink.id}"
        self._pipeline = pipeline
        self._addresses = Addresses(sink.url, sink.allowed_origins)
        tls = _tls(sink) if self._addresses.encrypted else None
        self._connections = Connections(tls, sink.connect_timeout_secs)
        self._timeout_s = float(
            sink.batch_timeout_secs if sink.batch_mode else sink.send_timeout_secs
        )
        self._method = sink.method.encode()
        self._fixed = {
            b"content-type": sink.content_type.encode(),
            b"user-agent": f"deltaforge/{__version__}".encode(),
            **configured({name: each.get_secret_value() for name, each in sink.headers.items()}),
        }
        secret = sink.signing_secret
        self._signing_key = None if secret is None else signing_key(secret.get_secret_value())
        self._plan: Plan | None = None
        self._rest_until = 0.0
        self._bytes_max: dict[str, int] = {}
        self._abandoned = threading.Event()

    def write(self, messages: Messages) -> Sequence[Rejection]:
        """Send in order; see ``SinkWriter``."""
        if not len(messages):
            return []
        plan = self._take_up(messages)
        self._rest()
        while plan.spans:
            self._check_abandoned()
            self._send_next(plan)
        self._plan = None
        return plan.rejections

    def abandon(self) -> None:
        """Break off the request under way and send no other; see ``Interruptible``."""
        self._abandoned.set()
        self._connections.cut()

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def _take_up(self, messages: Messages) -> Plan:
        if self._plan is None or not self._plan.is_for(messages):
            make = Plan.in_arrays if self._sink.batch_mode else Plan.singly
            self._plan = make(messages)
        return self._plan

    def _send_next(self, plan: Plan) -> None:
        """Send the next request, if it can be, and do what its answer means."""
        rows = plan.next_rows
        body = self._body(plan, rows)
        url = plan.messages.topics[int(rows[0])].as_py()
        if len(rows) > 1 and len(body) > self._bytes_max.get(url, len(body)):
            plan.halve()
            return
        try:
            target = self._addresses.target(url)
            headers = self._headers(plan.messages, rows, target, body)
        except UnroutableError as error:
            plan.refuse("routing", f"{self._where}: {error}")
            return
        try:
            answer = self._connections.send(self._method, target, headers, body, self._timeout_s)
        except DeltaForgeError as error:
            self._check_abandoned()
            raise type(error)(f"{self._where}: {error}{self._so_far(plan)}") from error
        self._obey(answer, target, plan)
        if answer.status == _TOO_LARGE and len(rows) > 1:
            self._bytes_max[url] = len(body) // 2

    def _obey(self, answer: Answer, target: Target, plan: Plan) -> None:
        meaning = answers.meaning(answer.status)
        if meaning is Meaning.TAKEN:
            plan.answered()
        elif meaning is not Meaning.REFUSED:
            self._raise(meaning, answer, target, plan)
        elif len(plan.next_rows) > 1:
            log.info(
                "http endpoint refuses an array; sending it in halves",
                extra={"pipeline": self._pipeline, "sink": self._sink.id, "status": answer.status},
            )
            plan.halve()
        else:
            said = f"{self._where}: {target.origin} refuses it: {answers.words(answer.status)}"
            plan.refuse(answers.kind(answer.status), said)

    def _raise(self, meaning: Meaning, answer: Answer, target: Target, plan: Plan) -> NoReturn:
        said = f"{self._where}: {target.origin} answers {answers.words(answer.status)}"
        if meaning is Meaning.FORBIDDEN:
            raise AccessError(f"{said}; check the credentials in 'headers' and what they allow")
        if meaning is Meaning.WRONG:
            content = self._fixed[b"content-type"].decode()
            raise FatalError(f"{said}; {answers.what_is_wrong(answer.status, content)}")
        rest_s = answers.rest_s(answer.retry_after)
        self._rest_until = time.monotonic() + rest_s
        asks = f"; it asks for {rest_s:.0f} s of rest" if rest_s else ""
        check = answers.what_to_check(answer.status)
        raise RetryableError(f"{said}{asks}{check}{self._so_far(plan)}")

    def _rest(self) -> None:
        """Leave the endpoint alone for as long as it asked for."""
        rest_s = self._rest_until - time.monotonic()
        if rest_s <= 0:
            return
        self._abandoned.wait(min(rest_s, self._timeout_s))
        self._check_abandoned()
        rest_s = self._rest_until - time.monotonic()
        if rest_s > 0:
            raise RetryableError(
                f"{self._where}: the endpoint asks for {rest_s:.0f} s more of rest"
            )

    def _body(self, plan: Plan, rows: "np.typing.NDArray[np.intp]") -> bytes:
        if self._sink.batch_mode:
            return array_body(plan.messages, rows)
        value = plan.messages.values[int(rows[0])].as_py()
        return b"null" if value is None else value

    def _headers(
        self, messages: Messages, rows: "np.typing.NDArray[np.intp]", target: Target, body: bytes
    ) -> list[tuple[bytes, bytes]]:
        row = int(rows[0])
        headers = dict(self._fixed)
        if messages.headers is not None:
            headers |= routed(messages.headers[row].as_py() or ())
        if self._sink.batch_mode:
            name = identity(messages, rows)
        else:
            name = str(uuid.UUID(bytes=messages.event_ids[row].as_py()))
            headers[b"df-event-id"] = name.encode()
            key = messages.keys[row].as_py()
            if key is not None:
                headers[b"df-key"] = header_text(key)
        headers[b"idempotency-key"] = name.encode()
        if self._signing_key is not None:
            headers |= signed(self._signing_key, name, int(time.time()), body)
        return [
            (b"host", target.origin.netloc.encode()),
            (b"content-length", b"%d" % len(body)),
            *headers.items(),
        ]

    def _so_far(self, plan: Plan) -> str:
        if not plan.taken:
            return ""
        return f" ({plan.taken} of {len(plan.messages)} events are through, the others wait)"

    def _check_abandoned(self) -> None:
        if self._abandoned.is_set():
            raise RetryableError(f"{self._where}: asked to end before a batch was through")


def _tls(sink: HttpSink) -> ssl.SSLContext:
    password = None if sink.key_password is None else sink.key_password.get_secret_value()
    try:
        return tls_context(sink.ca_file, sink.cert_file, sink.key_file, password)
    except OSError as error:  # What OpenSSL says of a file is one, too.
        named = [name for name in ("ca_file", "cert_file", "key_file") if getattr(sink, name)]
        reason = getattr(error, "reason", None) or error.strerror or "unknown reason"
        raise SpecError(
            f"http sink {sink.id}: {', '.join(named) or 'the trusted certificates'} cannot be "
            f"used ({reason}); name files in PEM that this process may read"
        ) from error
