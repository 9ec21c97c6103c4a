"""Paths to the places of a JSON structure."""

from collections.abc import Sequence

DYNAMIC_KEY = "<*>"
ELEMENT_KEY = "[]"

Path = tuple[str, ...]
"""Keys from the whole to a place: ``DYNAMIC_KEY`` for a map's, ``ELEMENT_KEY`` for an array's."""


def shown(path: Sequence[str]) -> str:
    """Return ``a.b``, ``a[]`` for the elements of ``a``, ``a.<*>`` for the values of a map."""
    text = ""
    for key in path:
        text += key if key == ELEMENT_KEY or not text else f".{key}"
    return text
