"""How to connect to one server: address, login and TLS."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from airflow_provider_deltaforge.errors import AccessError, SpecError
from airflow_provider_deltaforge.sinks.nats.sink import NatsSink

_PING_S = 30


def connect_options(sink: NatsSink, address: str, speaks_tls: Callable[[], bool]) -> dict[str, Any]:
    """Return what the client's ``connect`` is called with.

    Args:
        sink: the description.
        address: of one server; a login in it wins over the document's.
        speaks_tls: asked when the server has introduced itself, before it gets a secret.

    Raises:
        SpecError: a file cannot be read, or a seed is none.
    """
    options: dict[str, Any] = {
        "servers": [without_login(address)],
        "allow_reconnect": False,
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0,
        "connect_timeout": sink.connect_timeout_secs,
        "ping_interval": _PING_S,
    }

    def only_encrypted(secret: str) -> Callable[[], str]:
        def tell() -> str:
            insist_on_tls(sink, address, speaks_tls)
            return secret

        return tell

    options |= {
        name: only_encrypted(secret) if name in ("user", "password", "token") else secret
        for name, secret in _login(sink, address).items()
    }
    context = _tls(sink)
    if context is not None:
        options["tls"] = context
    return options


def without_login(address: str) -> str:
    """Return an address as people may see it."""
    parts = _parts(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def with_login(server: str, address: str) -> str:
    """Return the address of a server with the login, if any, in that of another."""
    login, at, _ = _parts(address).netloc.rpartition("@")
    parts = _parts(server)
    return f"{parts.scheme}://{login}{at}{parts.netloc}"


def insist_on_tls(sink: NatsSink, address: str, speaks_tls: Callable[[], bool]) -> None:
    """Refuse a server that does not encrypt, where the document asks for it.

    Raises:
        AccessError: it offers no TLS.
    """
    if sink.encrypted and not speaks_tls():
        raise AccessError(
            f"nats sink {sink.id}: {without_login(address)} offers no TLS, which the document asks "
            "for; enable it there, or use nats:// and no certificate"
        )


def _parts(address: str) -> SplitResult:
    return urlsplit(address if "://" in address else f"nats://{address}")


def _login(sink: NatsSink, address: str) -> dict[str, str]:
    parts = _parts(address)
    if parts.username and parts.password is not None:
        return {"user": unquote(parts.username), "password": unquote(parts.password)}
    if parts.username:
        return {"token": unquote(parts.username)}
    login: dict[str, str] = {}
    if sink.username is not None and sink.password is not None:
        login = {"user": sink.username, "password": sink.password.get_secret_value()}
    if sink.token is not None:
        login["token"] = sink.token.get_secret_value()
    if sink.nkey_seed is not None:
        login["nkeys_seed_str"] = _seed(sink.id, sink.nkey_seed.get_secret_value())
    if sink.credentials_file is not None:
        login["user_credentials"] = _credentials(sink.id, sink.credentials_file)
    return login


def _seed(sink_id: str, seed: str) -> str:
    import nkeys

    try:
        nkeys.from_seed(bytearray(seed.strip().encode())).wipe()
    except Exception as error:
        raise SpecError(
            f"sink {sink_id}: nkey_seed is not the seed of a user; nsc and nk make one"
        ) from error
    return seed


def _credentials(sink_id: str, path: str) -> str:
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"sink {sink_id}: credentials_file: {error}") from error
    if "BEGIN NATS USER JWT" not in text or "BEGIN USER NKEY SEED" not in text:
        raise SpecError(
            f"sink {sink_id}: credentials_file: {path} holds no JWT and seed; nsc generate creds "
            "makes such a file"
        )
    return path


def _tls(sink: NatsSink) -> ssl.SSLContext | None:
    if not sink.encrypted:
        return None
    try:
        context = ssl.create_default_context(cafile=sink.ca_file)
    except OSError as error:
        raise SpecError(f"sink {sink.id}: ca_file: {error}") from error
    if sink.cert_file is not None:
        try:
            context.load_cert_chain(sink.cert_file, sink.key_file)
        except OSError as error:
            raise SpecError(f"sink {sink.id}: cert_file or key_file: {error}") from error
    return context
