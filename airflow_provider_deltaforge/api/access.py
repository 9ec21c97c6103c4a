"""Who may use the REST API: whoever mounts it hands in how callers are recognised.

``read`` looks; ``operate`` steers what runs, copies and replays; ``admin`` changes what a pipeline
is, or what it remembers.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from airflow_provider_deltaforge.api.errors import ApiError
from airflow_provider_deltaforge.control import tokens
from airflow_provider_deltaforge.control.tokens import Scope
from airflow_provider_deltaforge.storage.contract import Store

Authority = Callable[[Any, Scope], str]
"""Returns the name of whoever sent a request, if it may do what a scope covers.

Raises:
    ApiError: it may not.
"""

_BEARER = "bearer "


def anybody(request: Any, scope: Scope) -> str:
    """Allow every caller everything: for an address that only this machine reaches."""
    del request, scope
    return "anonymous"


def by_token(open_store: Callable[[], AbstractContextManager[Store]]) -> Authority:
    """Return an authority that asks for a token of ``deltaforge token create``."""

    def authorize(request: Any, scope: Scope) -> str:
        shown = request.headers.get("authorization", "")
        if not shown.lower().startswith(_BEARER):
            raise ApiError(
                401,
                "NO_TOKEN",
                "send a token of `deltaforge token create` as `Authorization: Bearer TOKEN`",
            )
        with open_store() as store:
            found = tokens.find(store, shown[len(_BEARER) :].strip())
        if found is None:
            raise ApiError(401, "UNKNOWN_TOKEN", "this token is not known here, or was revoked")
        if not found.allows(scope):
            message = f"token {found.name!r} has the scope {found.scope}; this needs {scope}"
            raise ApiError(403, "FORBIDDEN", message)
        return f"token {found.name}"

    return authorize
