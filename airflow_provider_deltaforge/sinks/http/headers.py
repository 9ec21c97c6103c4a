"""The headers of a request."""

import re
from collections.abc import Iterable, Mapping

from airflow_provider_deltaforge.sinks.header_text import header_text
from airflow_provider_deltaforge.sinks.http.address import UnroutableError

NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
VALUE = re.compile(r"(?! )[\x20-\x7e]*(?<! )")
FRAMING = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""They say where a request ends and where it goes."""
OURS = frozenset(
    {
        "df-event-id",
        "df-key",
        "idempotency-key",
        "webhook-id",
        "webhook-signature",
        "webhook-timestamp",
    }
)
"""They say which event it is; nothing may overwrite them."""


def routed(headers: Iterable[tuple[str, str | None]]) -> dict[bytes, bytes]:
    """Return the headers that a processor chose; those that are ours are left out.

    Raises:
        UnroutableError: one of them cannot be sent.
    """
    chosen: dict[bytes, bytes] = {}
    for name, text in headers:
        if not NAME.fullmatch(name) or name.lower() in FRAMING:
            raise UnroutableError(f"routed with a header {name[:40]!r}, which cannot be sent")
        if name.lower() not in OURS:
            chosen[name.lower().encode()] = header_text((text or "").encode()).encode()
    return chosen


def configured(headers: Mapping[str, str]) -> dict[bytes, bytes]:
    """Return the headers of the document."""
    return {name.lower().encode(): text.encode() for name, text in headers.items()}
