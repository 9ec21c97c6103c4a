"""What the client of a sink counts by itself, for metrics."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class ClientCounts:
    """What a writer's client did and holds, for metrics.

    Attributes:
        counts: by names that ``control.metrics`` knows, such as ``txn_commits``; since the last
            call.
        gauges: how it is now, such as ``queue_messages``.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    gauges: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def total(cls, parts: Sequence["ClientCounts"]) -> "ClientCounts":
        """Return what several clients of one sink did and hold."""
        if len(parts) == 1:
            return parts[0]
        counts: Counter[str] = Counter()
        gauges: Counter[str] = Counter()
        for part in parts:
            counts.update(part.counts)
            gauges.update(part.gauges)
        return cls(counts, gauges)


@runtime_checkable
class CountsWork(Protocol):
    """A writer that counts what its client does beside writing."""

    def take_counts(self) -> ClientCounts:
        """Return what was counted since the last call. Called behind each write, by its thread."""
