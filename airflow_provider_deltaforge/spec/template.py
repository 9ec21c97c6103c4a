"""Routing templates: where a message goes, written with fields of the event.

``"${source.db}.${after.id}"`` is compiled once; filling it in, column by column, is the engine's
work. There is no escape: ``$`` before anything but ``{`` is itself.
"""

import re
from dataclasses import dataclass
from typing import NoReturn

from airflow_provider_deltaforge.errors import SpecError

SEGMENTS_MAX = 3

ROOTS = frozenset(
    {
        "after",
        "before",
        "ddl",
        "event_id",
        "op",
        "schema_sequence",
        "schema_version",
        "shard",
        "source",
        "synthetic",
        "tags",
        "tenant_id",
        "transaction",
        "ts_ms",
        "tx_end",
        "tx_id",
    }
)
"""Names an event has at its top, and the number of its shard; any other word is a variable."""

REFERENCE = re.compile(r"\$\{([^{}]*)\}")
VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
"""What stands between the braces of ``${NAME}`` and ``${NAME:-default}``."""


@dataclass(frozen=True, slots=True)
class Path:
    """A field of the event, one to three segments: ``("source", "table")``."""

    segments: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(self.segments)


@dataclass(frozen=True, slots=True)
class Template:
    """A template taken apart.

    Attributes:
        text: The template as the document writes it.
        parts: Literal text and paths, in order. Literals are never empty and never adjacent; an
            empty template has no parts.
    """

    text: str
    parts: tuple[str | Path, ...]

    @classmethod
    def parse(cls, text: str) -> "Template":
        """Compile a template.

        Raises:
            SpecError: a brace is not closed, a reference is empty or has more than three segments.
        """
        parts: list[str | Path] = []
        rest = 0
        for match in REFERENCE.finditer(text):
            _append_literal(parts, text, rest, match.start())
            parts.append(_path(match.group(1), text))
            rest = match.end()
        _append_literal(parts, text, rest, len(text))
        return cls(text, tuple(parts))

    @property
    def paths(self) -> tuple[Path, ...]:
        """The fields the template reads, in order."""
        return tuple(part for part in self.parts if isinstance(part, Path))

    def __str__(self) -> str:
        return self.text


def is_event_reference(inside: str) -> bool:
    """Return whether ``${inside}`` names a field of the event, and no environment variable."""
    return "." in inside.partition(":-")[0] or inside in ROOTS


def without_variables(text: str) -> str:
    """Return a template with its environment variables, not expanded yet, taken for plain text."""

    def plain(match: re.Match[str]) -> str:
        inside = match.group(1)
        variable = VARIABLE.fullmatch(inside) and not is_event_reference(inside)
        return inside if variable else match.group()

    return REFERENCE.sub(plain, text)


def _append_literal(parts: list[str | Path], text: str, start: int, stop: int) -> None:
    literal = text[start:stop]
    if "${" in literal:
        _refuse(text, "'${' is not closed by '}'")
    if literal:
        parts.append(literal)


def _path(inside: str, text: str) -> Path:
    if not inside.strip():
        _refuse(text, "'${}' names no field")
    segments = tuple(inside.strip().split("."))
    if "" in segments:
        _refuse(text, f"'${{{inside}}}' has an empty segment")
    if len(segments) > SEGMENTS_MAX:
        _refuse(
            text,
            f"'${{{inside}}}' has {len(segments)} segments, at most {SEGMENTS_MAX} are allowed",
        )
    return Path(segments)


def _refuse(text: str, reason: str) -> NoReturn:
    raise SpecError(f"template {text!r}: {reason}; write for example '${{source.table}}'")
