"""What a message looks like: declared by envelopes, read by encodings that write records."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class Kind(Enum):
    """What a field of a message holds."""

    TEXT = "text"
    INTEGER = "integer"
    """At most 64 bits, signed."""
    BOOLEAN = "boolean"
    TEXTS = "texts"
    """A list of texts."""
    JSON = "json"
    """Anything; what it is differs from message to message."""
    ROW = "row"
    """A row image of the event's table."""
    MEDIA_TYPE = "media type"
    """Names what the message is written in."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message, or of an object inside it."""

    name: str
    what: "Kind | Shape"
    required: bool = False
    """Every message has it, and never null."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An object: its name, and its fields in order."""

    name: str
    fields: "tuple[Field, ...]"
    inside: str | None = None
    """The member of the JSON text that holds the object; None: the text itself."""


What: TypeAlias = Kind | Shape
