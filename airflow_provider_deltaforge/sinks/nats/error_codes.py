"""What the errors of a NATS server mean for a batch."""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    FatalError,
    RetryableError,
)
from airflow_provider_deltaforge.telemetry.redaction import redacted

NO_RESPONDERS = "503"


class JetStreamCode(IntEnum):
    """JetStream's own codes, in the field ``err_code`` of an answer."""

    ACCOUNT_RESOURCES = 10002
    INSUFFICIENT_RESOURCES = 10023
    MESSAGE_NOT_FOUND = 10037
    NOT_ENABLED_FOR_ACCOUNT = 10039
    HEADER_TOO_LARGE = 10097
    MESSAGE_TOO_LARGE = 10054
    STREAM_NOT_FOUND = 10059
    STREAM_MISMATCH = 10060
    WRONG_LAST_MESSAGE = 10070
    WRONG_LAST_SEQUENCE = 10071
    NOT_ENABLED = 10076
    STORE_FAILED = 10077
    SEALED = 10109


REJECTED = frozenset({JetStreamCode.MESSAGE_TOO_LARGE, JetStreamCode.HEADER_TOO_LARGE})
"""The fault of one message."""

MOVED = frozenset({JetStreamCode.WRONG_LAST_MESSAGE, JetStreamCode.WRONG_LAST_SEQUENCE})
"""The stream does not end where this writer left it."""

WITHOUT_JETSTREAM = frozenset({JetStreamCode.NOT_ENABLED, JetStreamCode.NOT_ENABLED_FOR_ACCOUNT})

_NEVER = frozenset(
    {JetStreamCode.STREAM_NOT_FOUND, JetStreamCode.STREAM_MISMATCH, JetStreamCode.SEALED}
)
_ADVICE = {
    JetStreamCode.STORE_FAILED: "; raise the stream's limits, or let it discard old messages",
    JetStreamCode.INSUFFICIENT_RESOURCES: "; give the server more storage",
    JetStreamCode.ACCOUNT_RESOURCES: "; raise the account's limits",
    JetStreamCode.STREAM_NOT_FOUND: "; create the stream",
    JetStreamCode.SEALED: "; name a stream that takes messages",
}
_ACCESS = (
    "authorization violation",
    "authorization failed",
    "authentication expired",
    "authentication revoked",
    "permissions violation",
    "invalid credentials",
    "invalid user credentials",
    "not authorized",
    "permission denied",
)


class JetStreamRefusal(Exception):  # noqa: N818 - an answer, which may be expected
    """An answer of JetStream that says no."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


def refusal_in(error: Mapping[str, Any]) -> JetStreamRefusal:
    """Read the field ``error`` of an answer."""
    return JetStreamRefusal(error.get("err_code", error["code"]), error.get("description", ""))


def to_error(refusal: JetStreamRefusal, where: str) -> DeltaForgeError:
    """Turn an answer into the error the engine acts on."""
    text = f"{where}: {refusal.text} ({refusal.code})"
    if refusal.code in WITHOUT_JETSTREAM:
        return FatalError(f"{text}; enable JetStream on the server and for this account")
    advice = (
        _ADVICE.get(JetStreamCode(refusal.code), "") if refusal.code in set(JetStreamCode) else ""
    )
    error = FatalError if refusal.code in _NEVER else RetryableError
    return error(f"{text}{advice}")


def broken(causes: Sequence[BaseException | None], where: str, server: str) -> DeltaForgeError:
    """Turn what broke a connection, or prevented it, into the error the engine acts on.

    Args:
        causes: as the client raised them, the best known first.
        where: names the sink.
        server: the address, without a secret.
    """
    reasons = [(error, _words(error)) for error in causes if error is not None]
    for error, text in reasons:
        if any(word in text.lower() for word in _ACCESS):
            return AccessError(
                f"{where}: {server} refuses us: {text}; check the user's credentials and "
                "permissions"
            )
        if isinstance(error, ssl.SSLError):
            return AccessError(
                f"{where}: no TLS connection to {server}: {text}; check ca_file, cert_file and "
                "the server's certificate"
            )
    text = reasons[0][1] if reasons else "the connection is closed"
    return RetryableError(f"{where}: {server}: {text}; check that it is up and reachable")


def _words(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return "no answer in time"
    return redacted(str(error).removeprefix("nats: ").strip("'")) or type(error).__name__
