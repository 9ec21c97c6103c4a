"""Where a source is in its log. Apart from `events.change`, so that naming it loads no Arrow."""

from collections.abc import Mapping
from typing import Any, Protocol

Position = Mapping[str, Any]
"""Where a source is, as JSON: only the source that made it can read or compare it."""


class Positions(Protocol):
    """The positions behind the transactions of one batch."""

    def after(self, tx: int) -> Position:
        """Return where reading may resume once transaction ``tx`` and all before it are durable."""
