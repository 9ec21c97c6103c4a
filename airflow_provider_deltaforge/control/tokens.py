"""Tokens of the REST API: who may do what, kept as hashes.

A token is shown once, when it is made. The store keeps its SHA-256, which is enough: a token is
256 random bits, so nobody finds it from its hash by trying.
"""

import hashlib
import re
import secrets
from collections.abc import Sequence
from typing import Literal

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.record import Record, now_ms

Scope = Literal["read", "operate", "admin"]

SCOPES: tuple[Scope, ...] = ("read", "operate", "admin")
"""Each allows what those before it allow."""

_PREFIX = "dft_"
_TOKEN_MAX = 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class ApiToken(Record):
    """What is kept of a token."""

    v: Literal[1] = 1
    name: str
    scope: Scope
    created_at_ms: int

    def allows(self, scope: Scope) -> bool:
        """Return whether it may be used for what ``scope`` covers."""
        return SCOPES.index(scope) <= SCOPES.index(self.scope)


def check_name(name: str) -> None:
    """Refuse what cannot be a token's name.

    Raises:
        SpecError: it has other letters, or too many.
    """
    if not _NAME.fullmatch(name):
        raise SpecError(
            "a token's name has up to 63 letters, digits, dots, dashes and underscores, not "
            f"{name!r}"
        )


def create(store: Store, name: str, scope: Scope) -> str:
    """Make a token and return it; it cannot be shown again.

    Raises:
        SpecError: the name is taken, or cannot be one.
    """
    check_name(name)
    if any(token.name == name for token in tokens(store)):
        raise SpecError(f"there is a token {name!r} already; revoke it, or take another name")
    token = _PREFIX + secrets.token_urlsafe(32)
    kept = ApiToken(name=name, scope=scope, created_at_ms=now_ms())
    store.put(names.TOKENS, _hash(token), kept.model_dump_json().encode())
    return token


def tokens(store: Store) -> Sequence[ApiToken]:
    """Return every token, by name."""
    stored = [_read(text) for _, text in store.items(names.TOKENS)]
    return sorted(stored, key=lambda token: token.name)


def find(store: Store, token: str) -> ApiToken | None:
    """Return what is kept of a token that somebody shows; None if it is none of ours."""
    if not token.isascii() or len(token) > _TOKEN_MAX:
        return None
    text = store.get(names.TOKENS, _hash(token))
    return _read(text) if text is not None else None


def revoke(store: Store, name: str) -> None:
    """Forget a token: it opens nothing from now on.

    Raises:
        SpecError: there is none of that name.
    """
    found = [key for key, text in store.items(names.TOKENS) if _read(text).name == name]
    if not found:
        known = ", ".join(token.name for token in tokens(store)) or "none yet"
        raise SpecError(f"there is no token {name!r} in this state store (known: {known})")
    for key in found:
        store.delete(names.TOKENS, key)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _read(text: bytes) -> ApiToken:
    return ApiToken.from_stored(text, "a token of the REST API")
