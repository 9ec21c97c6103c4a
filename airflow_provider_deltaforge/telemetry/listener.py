"""What kind of server listens at an address, for errors where it is not the one that should be."""

import re
import socket
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["HTTP", "Redis", "NATS", "Kafka", "MySQL", "SSH"]

_CONNECT_S = 1.0
_GREETING_S = 0.3
"""Servers that speak first do so at once; the others are asked."""
_ANSWER_S = 2.0
_LIMIT_S = 6.0
"""For all places together; one that hangs takes its share of it."""
_BYTES_MAX = 2048
_PLACES_MAX = 3
_NAME_MAX = 40

_NAMES: dict[Kind, str] = {
    "HTTP": "an HTTP server",
    "Redis": "a Redis server",
    "NATS": "a NATS server",
    "Kafka": "a Kafka broker",
    "MySQL": "a MySQL or MariaDB server",
    "SSH": "an SSH server",
}
_REDIS = re.compile(rb"\+PONG|-(?:ERR|NOAUTH|DENIED|LOADING|NOPERM|MASTERDOWN)\b")
_SERVER = re.compile(rb"^server:[ \t]*([!-~][ -~]*)", re.IGNORECASE | re.MULTILINE)

# An HTTP request is a line to Redis as well, which it refuses in its own way. Without "Host:",
# which Redis takes for an attack.
_GET = b"GET / HTTP/1.0\r\n\r\n"
_CORRELATION = 0x64666C74
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, _CORRELATION, -1)
_KAFKA_MARK = struct.pack(">i", _CORRELATION)
_FIRST_PACKET = b"\x00\x0a"
"""Its number, and the version of the protocol."""

_ANSWERS: dict[Kind, Callable[[bytes], bool]] = {
    "NATS": lambda answer: answer.startswith(b"INFO {"),
    "SSH": lambda answer: answer.startswith(b"SSH-"),
    "Redis": lambda answer: _REDIS.match(answer) is not None,
    "Kafka": lambda answer: answer[4:8] == _KAFKA_MARK,
    "MySQL": lambda answer: answer[3:5] == _FIRST_PACKET,
}


def other_server(
    expected: Kind, places: Iterable[tuple[str, int]], limit_s: float = _LIMIT_S
) -> str | None:
    """Return words about a place where another kind of server answers; None if there is none.

    Takes about six seconds at most, lookups of names aside, and none where nobody listens.

    Args:
        expected: what should listen there.
        places: hosts and ports.
        limit_s: seconds for all places together.
    """
    until = time.monotonic() + limit_s
    for host, port in list(places)[:_PLACES_MAX]:
        found = _kind_at(host, port, expected, until)
        if found is not None and found[0] != expected:
            kind, name = found
            shown = f" ({name})" if name else ""
            return f"{_NAMES[kind]}{shown} answers at {host}:{port}, where {expected} should be"
    return None


def place_in(address: str, default_port: int) -> tuple[str, int] | None:
    """Return host and port of ``host:port``, perhaps with a scheme or a path; None if unreadable.

    Args:
        address: of one server, without a login.
        default_port: where it names none.
    """
    found = re.fullmatch(
        r"(?:[A-Za-z_+-]+://)?(?:\[([0-9A-Fa-f:.]+)\]|([^:/@?#\[\]]+))(?::(\d{1,5}))?(?:[/?].*)?",
        address.strip(),
    )
    if found is None:
        return None
    return found[1] or found[2], int(found[3] or default_port)


def _kind_at(host: str, port: int, expected: Kind, until: float) -> tuple[Kind, str] | None:
    """Return the kind of a server, and its name where it sends one."""
    # Kafka hangs up on a request that is none of its own, and so do others on Kafka's.
    questions = (_API_VERSIONS, _GET) if expected == "Kafka" else (_GET, _API_VERSIONS)
    for question in questions:
        if time.monotonic() >= until:
            break
        with suppress(OSError, ValueError, OverflowError):
            with socket.create_connection((host, port), _CONNECT_S) as connected:
                answer = _received(connected, _GREETING_S)
                if not answer:
                    connected.sendall(question)
                    answer = _received(connected, min(_ANSWER_S, until - time.monotonic()))
            found = _recognised(answer)
            if found is not None:
                return found
            continue
        return None  # Nobody listens, or it went away.
    return None


def _received(connected: socket.socket, wait_s: float) -> bytes:
    """Return the first bytes that come, up to the end of a head of HTTP."""
    found = b""
    until = time.monotonic() + wait_s
    while len(found) < _BYTES_MAX and (left := until - time.monotonic()) > 0:
        connected.settimeout(left)
        try:
            more = connected.recv(_BYTES_MAX)
        except OSError:
            break
        found += more
        if not more or not found.startswith(b"HTTP/") or b"\r\n\r\n" in found:
            break
    return found


def _recognised(answer: bytes) -> tuple[Kind, str] | None:
    if answer.startswith(b"HTTP/"):
        server = _SERVER.search(answer)
        return "HTTP", server[1][:_NAME_MAX].decode("ascii").strip() if server else ""
    kind = next((kind for kind, is_like in _ANSWERS.items() if is_like(answer)), None)
    return None if kind is None else (kind, "")
