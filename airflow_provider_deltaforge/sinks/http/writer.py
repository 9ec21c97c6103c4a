"""Divides a batch among senders, and remembers how far each has come."""

import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_deltaforge import __version__
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import WriterClaim, take_lease
from airflow_provider_deltaforge.sinks.http.address import Addresses, proxy_of
from airflow_provider_deltaforge.sinks.http.connection import Connections, tls_context
from airflow_provider_deltaforge.sinks.http.headers import configured
from airflow_provider_deltaforge.sinks.http.plan import RequestPlan, steps
from airflow_provider_deltaforge.sinks.http.sender import HttpSender, RequestOptions
from airflow_provider_deltaforge.sinks.http.signing import signing_key
from airflow_provider_deltaforge.sinks.http.sink import HttpSink

_SPARE_S = 1.0


class HttpWriter:
    """What is answered is never sent again by this writer."""

    def __init__(self, sink: HttpSink, pipeline: str) -> None:
        self._options = _options(sink, pipeline)
        tls = _tls(sink) if self._options.addresses.encrypted else None
        proxy = None if sink.proxy is None else proxy_of(sink.proxy.get_secret_value())
        self._senders = [
            HttpSender(
                self._options, Connections(tls, sink.connect_timeout_secs, proxy), self._check
            )
            for _ in range(sink.parallelism)
        ]
        self._steps: list[list[RequestPlan]] = []
        self._errors: list[Exception] = []
        self._abandoned = threading.Event()
        self._claim: WriterClaim | None = None

    def write(self, messages: Messages) -> Sequence[Rejection]:
        """Send in order; see ``SinkWriter``."""
        if not len(messages):
            return []
        self._take_up(messages)
        self._rest()
        for plans in self._steps:
            self._send_plans(plans)
            if self._errors:
                # One that needs a person is reported before one that may pass.
                raise min(self._errors, key=lambda error: isinstance(error, RetryableError))
        sent = [plan for plans in self._steps for plan in plans]
        self._steps = []
        rejections = [rejection for plan in sent for rejection in plan.rejections]
        return sorted(rejections, key=lambda rejection: rejection.event_row)

    def fence(self, claim: WriterClaim) -> None:
        """Outlive former writers, and send within a lease; see ``FencedWriter``.

        What the kernel holds of a request it sends by itself, until its own timeout.
        """
        take_lease(claim, self._options.timeout_s + _SPARE_S)
        self._claim = claim
        for sender in self._senders:
            sender.send_under(claim.hold)

    def abandon(self) -> None:
        """Break off what is under way and send nothing more; see ``Interruptible``."""
        self._abandoned.set()
        for sender in self._senders:
            sender.cut()

    def close(self) -> None:
        """Close the connections."""
        for sender in self._senders:
            sender.close()

    def _take_up(self, messages: Messages) -> None:
        """Go on with these messages, or begin with them."""
        if not (self._steps and self._steps[0][0].messages.same_as(messages)):
            self._steps = steps(
                messages if self._options.bare_type else replace(messages, bare=None),
                in_arrays=self._options.in_arrays,
                count=len(self._senders),
            )
        self._errors = []

    def _send_plans(self, plans: Sequence[RequestPlan]) -> None:
        """Send all plans of a step at the same time, and wait for the end of each."""
        jobs = [
            (sender, plan) for sender, plan in zip(self._senders, plans, strict=False) if plan.spans
        ]
        # Daemons: a request that hangs must not keep a process that ends.
        threads = [
            threading.Thread(target=self._send_plan, args=job, name="http-sender", daemon=True)
            for job in jobs[1:]
        ]
        for thread in threads:
            thread.start()
        if jobs:
            self._send_plan(*jobs[0])
        for thread in threads:
            thread.join()

    def _send_plan(self, sender: HttpSender, plan: RequestPlan) -> None:
        try:
            sender.send(plan)
        except _Stopped:
            pass  # The error of another sender is raised.
        except Exception as error:  # noqa: BLE001 - raised by the thread that writes
            self._errors.append(error)

    def _check(self) -> None:
        if self._errors:
            raise _Stopped
        if self._abandoned.is_set():
            raise RetryableError(f"{self._options.where}: asked to end before a batch was through")
        if self._claim is not None:
            self._claim.hold()

    def _rest(self) -> None:
        """Leave the endpoint alone for as long as it asked for."""
        until = max(sender.rest_until for sender in self._senders)
        rest_s = until - time.monotonic()
        if rest_s <= 0:
            return
        self._abandoned.wait(min(rest_s, self._options.timeout_s))
        self._check()
        rest_s = until - time.monotonic()
        if rest_s > 0:
            raise RetryableError(
                f"{self._options.where}: the endpoint asks for {rest_s:.0f} s more of rest"
            )


class _Stopped(Exception):  # noqa: N818 - no error: another sender met one
    """Sending on is of no use."""


def _options(sink: HttpSink, pipeline: str) -> RequestOptions:
    headers = {name: each.get_secret_value() for name, each in sink.headers.items()}
    secret = sink.signing_secret
    content_type = sink.content_type(in_arrays=sink.batch_mode).encode()
    bare_type = (sink.encoding.media_type or "application/json").encode()
    is_named = bare_type == content_type or any(name.lower() == "content-type" for name in headers)
    return RequestOptions(
        where=f"http sink {sink.id}",
        about={"pipeline": pipeline, "sink": sink.id},
        addresses=Addresses(sink.url, sink.allowed_origins),
        method=sink.method.encode(),
        headers={
            b"content-type": content_type,
            b"user-agent": f"deltaforge/{__version__}".encode(),
            **configured(headers),
        },
        signing_key=None if secret is None else signing_key(secret.get_secret_value()),
        in_arrays=sink.batch_mode,
        timeout_s=float(sink.batch_timeout_secs if sink.batch_mode else sink.send_timeout_secs),
        bare_type=None if is_named else bare_type,
    )


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
