"""The fingerprint of a sensed schema: the same for the same fields and types, however they came.

It is over a canonical text: ``null``, ``bool``, ``int``, ``float``, ``string``, ``bytes``,
``seq[…]``, ``struct{name:flags:…}`` with names in order, ``map{…}``, and ``union(…|…)``. The flags
of a field are 1 if it may be null plus 2 if it may be missing.
"""

import hashlib
import json

from airflow_provider_deltaforge.storage.records.sensing import SensedValue

_DIGITS = 16
_WORDS = {
    "null": "null",
    "boolean": "bool",
    "integer": "int",
    "number": "float",
    "string": "string",
    "bytes": "bytes",
}


def fingerprint(root: SensedValue) -> str:
    """Return 16 hex digits."""
    return hashlib.sha256(canonical(root).encode(errors="surrogatepass")).hexdigest()[:_DIGITS]


def canonical(value: SensedValue, *, flagged: bool = False) -> str:
    """Return the canonical text.

    Args:
        value: what was sensed.
        flagged: another part of the text holds whether it may be null.
    """
    words = [
        _WORDS.get(name) or _nested(value, name)
        for name in value.types
        if not flagged or name != "null" or value.types == ["null"]
    ]
    return words[0] if len(words) == 1 else f"union({'|'.join(sorted(words))})"


def _nested(value: SensedValue, name: str) -> str:
    if name == "array":
        return f"seq[{'' if value.elements is None else canonical(value.elements)}]"
    fields = [
        f"{json.dumps(key)}:{_flags(inner)}:{canonical(inner, flagged=True)}"
        for key, inner in sorted(value.fields.items())
        if not inner.pending
    ]
    text = f"struct{{{','.join(fields)}}}"
    return text if value.dynamic is None else f"map{{{canonical(value.dynamic)},{text}}}"


def _flags(field: SensedValue) -> int:
    return ("null" in field.types) + 2 * field.optional
