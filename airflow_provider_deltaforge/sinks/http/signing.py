"""Signatures that receivers check with any library for Standard Webhooks."""

import base64
import binascii
import hashlib
import hmac

_PREFIX = "whsec_"
_LENGTHS = range(24, 65)


def signing_key(secret: str) -> bytes:
    """Return the key that a secret stands for.

    Raises:
        ValueError: it is not base64 of 24 to 64 bytes; the text does not show it.
    """
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if len(key) not in _LENGTHS:
        raise ValueError("write base64 of 24 to 64 random bytes, for example 'whsec_...'")
    return key


def signed(key: bytes, message_id: str, now: int, body: bytes) -> dict[bytes, bytes]:
    """Return the three headers: what was signed, when, and the signature."""
    content = f"{message_id}.{now}.".encode() + body
    signature = base64.b64encode(hmac.digest(key, content, hashlib.sha256))
    return {
        b"webhook-id": message_id.encode(),
        b"webhook-timestamp": str(now).encode(),
        b"webhook-signature": b"v1," + signature,
    }
