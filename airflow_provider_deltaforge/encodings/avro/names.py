"""Names that Avro allows, out of names that databases allow."""

import re
from collections.abc import Iterable

_LEGAL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ILLEGAL = re.compile(r"[^A-Za-z0-9_]")


def is_legal(name: str) -> bool:
    """Return whether Avro takes a name as it is."""
    return _LEGAL.fullmatch(name) is not None


def legal(name: str) -> str:
    """Return a name with each letter that Avro forbids written as ``_u`` and its code point."""
    safe = _ILLEGAL.sub(lambda found: f"_u{ord(found.group()):04x}", name)
    return safe if safe and not safe[0].isdigit() else f"_{safe}"


def dotted(parts: Iterable[str]) -> str:
    """Return a namespace."""
    return ".".join(map(legal, parts))


def apart(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Return a legal name for each; where two would be the same, the later one gets a number."""
    used = set(taken)
    found = []
    for name in names:
        base = candidate = legal(name)
        count = 2
        while candidate in used:
            candidate, count = f"{base}_{count}", count + 1
        used.add(candidate)
        found.append(candidate)
    return found
