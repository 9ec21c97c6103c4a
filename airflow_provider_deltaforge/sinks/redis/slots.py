"""Hash tags: what lies in one slot of a cluster can be written in one step."""

import re
from collections.abc import Callable

_FIELD = re.compile(r"\$\{[^}]*\}")
_TAG = re.compile(r"\{([^{}]+)\}")


def tag_of(template: str) -> str | None:
    """Return what decides the slot of every stream a template can name; None if fields do.

    Args:
        template: of the stream's name; a name without fields and without a tag is its own tag.
    """
    named = _FIELD.search(template)
    fixed = template if named is None else template[: named.start()]
    if "{" in fixed or "}" in fixed:
        # Redis takes what stands between the first brace and the next closing one.
        tag = _TAG.search(fixed)
        first = fixed.find("{")
        return tag.group(1) if tag is not None and tag.start() == first else None
    return fixed if named is None else None


def cursor_key(pipeline: str, sink: str, tag: str | None) -> str:
    """Return the key that holds how far a sink is.

    Args:
        pipeline: the pipeline's name.
        sink: the sink's id.
        tag: what keeps it in the slot of the streams; None outside clusters.
    """
    place = "" if tag is None else f"{{{tag}}}:"
    return f"_deltaforge:{place}{pipeline}:{sink}"


def tag_in(slot: int, slot_of: Callable[[str], int]) -> str:
    """Return a hash tag that lies in a slot: always the same one."""
    number = 0
    while slot_of(str(number)) != slot:
        number += 1
    return str(number)


class FenceKeys:
    """The keys that say whose writers may write to a sink; on a cluster one in each slot.

    Args:
        pipeline: the pipeline's name.
        sink: the sink's id.
        slot_of: returns the slot of a stream; None outside clusters.
    """

    def __init__(self, pipeline: str, sink: str, slot_of: Callable[[str], int] | None) -> None:
        self._name = f"{pipeline}:{sink}"
        self._slot_of = slot_of
        self._tags: dict[int, str] = {}

    def of(self, stream: str) -> str:
        """Return the key that guards a stream, in its slot of a cluster."""
        if self._slot_of is None:
            return f"_deltaforge:fence:{self._name}"
        slot = self._slot_of(stream)
        if slot not in self._tags:
            self._tags[slot] = tag_in(slot, self._slot_of)
        return f"_deltaforge:fence:{{{self._tags[slot]}}}:{self._name}"
