"""What to do after an endpoint's answer."""

import math
import time
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from http import HTTPStatus

_REST_MAX_S = 3600.0


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


def reaction_to(status: int) -> Reaction:
    """Return what to do after an answer with this status."""
    if 200 <= status < 300:
        return Reaction.TAKEN
    if status in _FORBIDDEN:
        return Reaction.FORBIDDEN
    if status in _WRONG or status < 400:
        return Reaction.WRONG
    return Reaction.LATER if status in _LATER or status >= 500 else Reaction.REFUSED


def words(status: int) -> str:
    """Return a status as people know it; the endpoint's own words are not repeated."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def what_is_wrong(status: int, content: str) -> str:
    """Return what to change where the reaction is WRONG."""
    if status in _WRONG:
        return _WRONG[status].format(content=content)
    return "redirects are not followed; write the address it leads to in 'url'"


def what_to_check(status: int) -> str:
    """Return what to look at where the reaction is LATER; empty for most answers."""
    if status == HTTPStatus.NOT_FOUND:
        return "; make the endpoint, or correct 'url'"
    return ""


def kind(status: int) -> str:
    """Return the kind of rejection that a refused event becomes."""
    return _KINDS.get(status, "refused")


def rest_s(retry_after: str | None) -> float:
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
