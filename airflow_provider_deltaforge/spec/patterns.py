"""Table patterns; they mean the same in the stream, the snapshot and the preflight.

``qualifier.name``: ``*`` and ``%`` stand for any text anywhere in a component, ``_`` is itself.
Either may hold dots: ``a.b.t`` is the table ``t`` of ``a.b``, and ``b.t`` of ``a``.
In double quotes a component is itself: ``"a.b".t`` is the former alone, ``"a.b".*`` all of ``a.b``.
A bare name belongs to the default qualifier (the DSN's database) if there is one, else to any.
No pattern at all means every table that is not the system's.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from airflow_provider_deltaforge.events.table_names import quoted_parts

_PARTS_MAX = 2  # A qualifier, and a table's name.


@dataclass(frozen=True)
class TableMatcher:
    """Decides which tables are captured.

    Attributes:
        patterns: as written in the document.
        default: qualifier of bare names; None lets them match in any.
        system: qualifiers that are never captured, in lower case.
    """

    patterns: tuple[str, ...]
    default: str | None = None
    system: frozenset[str] = frozenset()

    def matches(self, qualifier: str, name: str) -> bool:
        """Return whether a table is captured."""
        if qualifier.lower() in self.system:
            return False
        if not self.patterns:
            return True
        return any(q.fullmatch(qualifier) and n.fullmatch(name) for q, n in self._compiled)

    def matches_full(self, name: str) -> bool:
        """Return whether a table of this full name is captured; see ``table_names``."""
        return any(self.matches(*parts) for parts in splits(name))

    def touches(self, qualifier: str) -> bool:
        """Return whether any table of this qualifier could be captured."""
        if qualifier.lower() in self.system:
            return False
        return not self.patterns or any(q.fullmatch(qualifier) for q, _ in self._compiled)

    @cached_property
    def _compiled(self) -> list[tuple[re.Pattern[str], re.Pattern[str]]]:
        anywhere = _component(self.default) if self.default else re.compile(r".*", re.DOTALL)
        compiled = []
        for pattern in self.patterns:
            quoted = quoted_parts(pattern)
            if quoted is not None and len(quoted) <= _PARTS_MAX:
                parts = [re.compile(re.escape(t)) if q else _component(t) for t, q in quoted]
                compiled.append((parts[0] if len(parts) == _PARTS_MAX else anywhere, parts[-1]))
                continue
            if "." not in pattern:
                compiled.append((anywhere, _component(pattern)))
            compiled += [(_component(q), _component(name)) for q, name in splits(pattern)]
        return compiled


def splits(text: str) -> list[tuple[str, str]]:
    """Return what a full name or a pattern may stand for: both components may hold dots."""
    quoted = quoted_parts(text)
    if quoted is not None and len(quoted) == _PARTS_MAX:
        return [(quoted[0][0], quoted[1][0])]
    dots = [at for at, char in enumerate(text) if char == "."]
    return [(text[:at], text[at + 1 :]) for at in dots]


def check_patterns(patterns: Sequence[str], key: str) -> None:
    """Refuse patterns that could never match.

    Raises:
        ValueError: names ``key`` and the pattern; what a validator of settings may raise.
    """
    for pattern in patterns:
        if not all(pattern.split(".", 1)):
            raise ValueError(f"{key}: {pattern!r} has an empty part; write 'db.table' or 'table'")


def _component(text: str) -> re.Pattern[str]:
    """Return one component as a regular expression."""
    parts = (
        ".*" if part in "*%" else re.escape(part) for part in re.split(r"([*%])", text) if part
    )
    return re.compile("".join(parts), re.DOTALL)
