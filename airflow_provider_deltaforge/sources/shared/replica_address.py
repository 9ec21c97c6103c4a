"""How a document names a replica: by its place alone, or by a whole address."""

import re

from airflow_provider_deltaforge.errors import SpecError

_PLACE = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*))(?::(?P<port>[0-9]{1,5}))?"
)
_PORT_MAX = 65535


def place_of(text: str) -> tuple[str, int | None] | None:
    """Return host and port of ``HOST`` or ``HOST:PORT``; None: the text is something else."""
    place = _PLACE.fullmatch(text)
    if place is None:
        return None
    port = None if place["port"] is None else int(place["port"])
    if port is not None and not 0 < port <= _PORT_MAX:
        return None
    return place["six"] or place["name"], port


def named_once(key: str, known: str | None, replica: str) -> str:
    """Return the replica that a connection policy names.

    Args:
        key: of the source's own setting.
        known: what stands there.
        replica: what the policy says.

    Raises:
        SpecError: the two differ.
    """
    if known not in (None, replica):
        raise SpecError(f"{key} of the source names another one; write one of the two keys")
    return replica
