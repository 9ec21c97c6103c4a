"""What Redis's errors mean for a batch, and for one message."""

import re
import ssl
from collections.abc import Iterator
from typing import Any

from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    FatalError,
    RetryableError,
)
from airflow_provider_deltaforge.telemetry.redaction import redacted

_CODE = re.compile(r"[A-Z]{2,}")

_ACCESS = {
    "NOAUTH": "give user and password in the uri, or as 'username' and 'password'",
    "WRONGPASS": "correct user and password",
    "NOPERM": "grant it to this user: it needs the streams' keys and +@connection, +multi, +exec "
    "and +xadd; docs/sinks_redis.md has the whole rule",
    "DENIED": "set a password on the server, or let it listen for us",
}
_WAIT = {
    "ASK": "a slot of the cluster is being moved; we try again",
    "BUSY": "a script of somebody keeps the server busy; end it with SCRIPT KILL",
    "CLUSTERDOWN": "part of the cluster has no master; look at CLUSTER INFO",
    "LOADING": "the server still loads its data; we try again",
    "MASTERDOWN": "the replica has lost its master; we try again",
    "MISCONF": "the server cannot save to its disk; look at its log",
    "MOVED": "the cluster has changed; we try again",
    "NOREPLICAS": "too few replicas are connected (min-replicas-to-write); bring them back",
    "OOM": "give the server more memory (maxmemory), or trim streams with 'max_len'",
    "READONLY": "this server is a replica; name its master, or the sentinels that know it",
    "TRYAGAIN": "a slot of the cluster is being moved; we try again",
    "UNKILLABLE": "a script of somebody keeps the server busy; look at its log",
}
_NEVER = {
    "unknown command": "streams need Redis 5 or later",
    "DB index is out of range": "choose a lower 'database'",
    "SELECT is not allowed in cluster mode": "leave 'database' out, and write redis+cluster://",
    "cluster support disabled": "this is no cluster: write the uri as redis://",
    "Cluster mode is not enabled": "this is no cluster: write the uri as redis://",
}
_MESSAGE = {
    "WRONGTYPE": ("routing", "this key holds something else; rename it, or the stream"),
    "Elements are too large": ("message_too_large", "an entry may hold 1 GiB"),
    "exhausted the last possible ID": ("routing", "delete the stream, or route to another"),
}
_REACH = (
    "check that it is up, reachable, and speaks TLS only if we do; one that asks for a certificate "
    "needs 'cert_file'"
)
# Drivers of sentinels and clusters put the errors of their connections into words.
_REFUSED_LOGINS = {"AuthenticationError", "AuthorizationError", "NoPermissionError"}
_CUT_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


def code_of(error: BaseException) -> str:
    """Return Redis's own word for an error, such as ``OOM``; empty if it has none."""
    status = getattr(error, "status_code", None)
    if status is not None and status != "ERR":
        return str(status)
    word = _CODE.match(str(error))
    return word.group() if word else ""


def refusal_of(error: BaseException | str) -> tuple[str, str] | None:
    """Return the kind of a message's rejection and what to do, if it is the message's fault."""
    text = str(error)
    return next((meant for words, meant in _MESSAGE.items() if words in text), None)


def eviction(info: Any) -> str | None:
    """Return the policy by which a server throws away keys without an expiry, if it may.

    Args:
        info: its answer to ``INFO memory``; anything else says nothing.
    """
    if not isinstance(info, bytes):
        return None
    facts = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    policy = facts.get("maxmemory_policy", "")
    return policy if policy.startswith("allkeys") and facts.get("maxmemory") != "0" else None


def to_error(
    error: BaseException, where: str, secrets: tuple[str, ...], *, is_cluster: bool = True
) -> DeltaForgeError:
    """Return the error the engine acts on.

    Args:
        error: what the driver raised or the server answered.
        where: names the sink and the server.
        secrets: taken out of the text.
        is_cluster: whether we took the server for a cluster.
    """
    code, text = code_of(error), scrub(str(error) or type(error).__name__, secrets)
    answer = text if text.startswith(code) else f"{code} {text}"
    if code == "MOVED" and not is_cluster:
        kind: type[DeltaForgeError] = FatalError
        advice = "this server belongs to a cluster: write redis+cluster://"
    else:
        kind, advice = _reaction(error, code, text)
    return kind(f"{where}: {answer}; {advice}")


def _reaction(error: BaseException, code: str, text: str) -> tuple[type[DeltaForgeError], str]:
    if code in _ACCESS or code in _WAIT:
        return (AccessError, _ACCESS[code]) if code in _ACCESS else (RetryableError, _WAIT[code])
    causes = list(_causes(error))
    if any(isinstance(cause, ssl.SSLError) and not isinstance(cause, _CUT_OFF) for cause in causes):
        return AccessError, "check ca_file, cert_file, and that the server speaks TLS"
    names = {type(cause).__name__ for cause in causes}
    if names & _REFUSED_LOGINS or any(name in text for name in _REFUSED_LOGINS):
        return AccessError, "correct user and password"
    for words, advice in _NEVER.items():
        if words in text:
            return FatalError, advice
    return RetryableError, _REACH


def scrub(text: str, secrets: tuple[str, ...]) -> str:
    """Return ``text`` without secrets."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return redacted(text)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
