"""Who may use the REST API: whoever mounts it hands in how callers are recognised."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from airflow_provider_deltaforge.api.errors import ApiError
from airflow_provider_deltaforge.control import tokens
from airflow_provider_deltaforge.control.tokens import Scope
from airflow_provider_deltaforge.storage.contract import Store

Right = Literal["read", "read_document", "read_rows", "read_log", "operate", "admin"]
"""What a route asks for. ``operate`` steers what runs, copies and replays; ``admin`` changes what
a pipeline is, or what it remembers; ``read_rows`` shows rows of the source."""

RIGHTS: tuple[Right, ...] = get_args(Right)

_SCOPES: Mapping[Right, Scope] = {
    "read": "read",
    "read_document": "read",
    "read_rows": "read",
    "read_log": "operate",
    "operate": "operate",
    "admin": "admin",
}
"""The scope that a token needs."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever sent a request.

    Attributes:
        name: for records of who asked for something.
        may: whether a right is theirs, for the pipeline of an owner (``ControlRecord.owner``).
    """

    name: str
    may: Callable[[Right, str | None], bool]

    def __str__(self) -> str:
        return self.name

    def rights(self, owner: str | None) -> list[Right]:
        """Return every right for the pipeline of an owner."""
        return [right for right in RIGHTS if self.may(right, owner)]


Authority = Callable[[Any, Right], Caller]
"""Returns who sent a request, once it is sure that they have a right.

It is for the pipeline ``name`` of the request's path, if there is one.

Raises:
    ApiError: they do not.
"""

_BEARER = "bearer "
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def on_this_machine(origins: Sequence[str] = ()) -> Authority:
    """Return an authority that allows everything, for an address that only this machine reaches.

    A browser of this machine runs pages of other sites, too, and sends their requests here: these
    are refused, also those of a site whose name was made to mean this machine.

    Args:
        origins: of pages elsewhere that may.
    """

    def authorize(request: Any, right: Right) -> Caller:
        del right
        headers = request.headers
        origin = headers.get("origin")
        is_own = origin is None or _is_of(origin, headers.get("host"))
        if request.url.hostname not in _LOOPBACK or not (is_own or origin in origins):
            message = "a page of another site asks for this; name it with --cors-origin if it may"
            raise ApiError(403, "FORBIDDEN", message)
        return Caller("anonymous", lambda right, owner: True)

    return authorize


def _is_of(origin: str, host: str | None) -> bool:
    """Return whether an origin has this host and port; what is no address has none."""
    try:
        return urlsplit(origin).netloc == host
    except ValueError:  # As of ``http://[``.
        return False


def by_token(open_store: Callable[[], AbstractContextManager[Store]]) -> Authority:
    """Return an authority that asks for a token of ``deltaforge token create``."""

    def authorize(request: Any, right: Right) -> Caller:
        shown = request.headers.get("authorization", "")
        if not shown.lower().startswith(_BEARER):
            raise ApiError(
                401,
                "NO_TOKEN",
                "send a token of `deltaforge token create` as `Authorization: Bearer TOKEN`",
            )
        with open_store() as store:
            token = tokens.find(store, shown[len(_BEARER) :].strip())
        if token is None:
            raise ApiError(401, "UNKNOWN_TOKEN", "this token is not known here, or was revoked")
        if not token.allows(_SCOPES[right]):
            needed = _SCOPES[right]
            message = f"token {token.name!r} has the scope {token.scope}; this needs {needed}"
            raise ApiError(403, "FORBIDDEN", message)
        known = token
        return Caller(f"token {known.name}", lambda right, _: known.allows(_SCOPES[right]))

    return authorize
