"""Credentials as ``nsc`` makes them: an operator, its accounts, and users that may expire."""

import base64
import json
import time

import nkeys

_UNLIMITED = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
_JETSTREAM = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)


class Issuer:
    """An operator with one account for data, and the system's."""

    def __init__(self):
        self._operator = _seed(1, nkeys.PREFIX_BYTE_OPERATOR)
        self._account = _seed(2, nkeys.PREFIX_BYTE_ACCOUNT)
        self._system = _seed(3, nkeys.PREFIX_BYTE_ACCOUNT)

    def settings(self):
        """Return what a server's configuration says."""
        operator = _signed(self._operator, self._operator, {"type": "operator"})
        limits = {"wildcards": True, **_UNLIMITED}
        accounts = {
            public(seed): _signed(self._operator, seed, {"type": "account", "limits": given})
            for seed, given in (
                (self._account, {**limits, **_JETSTREAM}),
                (self._system, limits),
            )
        }
        preload = "\n".join(f"{name}: {token}" for name, token in accounts.items())
        return (
            f"operator: {operator}\nsystem_account: {public(self._system)}\n"
            f"resolver: MEMORY\nresolver_preload {{\n{preload}\n}}"
        )

    def write(self, path, expires_s=None):
        """Write the file of a user that expires in so many seconds."""
        seed = _seed(4, nkeys.PREFIX_BYTE_USER)
        user = {"type": "user", "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
        token = _signed(self._account, seed, user, expires_s)
        path.write_text(
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{seed.decode()}\n------END USER NKEY SEED------\n"
        )
        return str(path)


def public(seed):
    return nkeys.from_seed(bytearray(seed)).public_key.decode()


def _seed(number, kind):
    return nkeys.encode_seed(bytes([number]) * 32, kind)


def _signed(issuer, subject, what, expires_s=None):
    now = int(time.time())
    claims = {"jti": "test", "iat": now, "iss": public(issuer), "name": "test"}
    claims |= {"sub": public(subject), "nats": {**what, "version": 2}}
    if expires_s is not None:
        claims["exp"] = now + expires_s
    head = {"typ": "JWT", "alg": "ed25519-nkey"}
    text = ".".join(_encoded(json.dumps(part).encode()) for part in (head, claims))
    return f"{text}.{_encoded(nkeys.from_seed(bytearray(issuer)).sign(text.encode()))}"


def _encoded(data):
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
