"""Which sinks must hold a batch before a lane goes on: the document's commit policy."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.contract import Source
from airflow_provider_deltaforge.spec.document import Spec


@dataclass(frozen=True, slots=True)
class RequiredSinks:
    """The sinks that are waited for.

    Attributes:
        required: each of these.
        count: and so many in all.
    """

    required: frozenset[str]
    count: int

    @classmethod
    def of(cls, spec: Spec) -> "RequiredSinks":
        """Return what a document says.

        Where no sink is required, one of them is waited for: a log that nobody takes is not read.
        """
        policy = spec.commit_policy
        if policy.mode == "quorum":
            return cls(frozenset(), policy.quorum or 1)
        every = policy.mode == "all"
        required = frozenset(sink.id for sink in spec.sinks if every or sink.required)
        return cls(required, max(1, len(required)))

    def without(self, absent: Collection[str], left: int) -> "RequiredSinks":
        """Return which sinks are waited for while some get the log again.

        Args:
            absent: those; nobody waits for them meanwhile.
            left: how many others go with the lane. Without any, nobody is waited for.
        """
        if not absent:
            return self
        count = max(1, self.count - len(self.required.intersection(absent)))
        return RequiredSinks(self.required.difference(absent), min(count, left))

    def holds(self, taken: Collection[str]) -> bool:
        """Return whether it is enough that these sinks hold a batch."""
        names = set(taken)
        return self.required <= names and len(names) >= self.count

    def may_lag(self, sink_id: str, sinks: int) -> bool:
        """Return whether a pipeline of so many sinks can go on without this one."""
        return sink_id not in self.required and sinks > self.count

    def lacks(self, sinks: Collection[str], given_up: Collection[str]) -> list[str]:
        """Return the sinks that were given up although it is never enough without them."""
        if self.holds([name for name in sinks if name not in given_up]):
            return []
        return sorted(self.required.intersection(given_up) or given_up)

    def start(self, source: Source, stands: Mapping[str, Position]) -> Position | None:
        """Return where a lane begins to read: the furthest place that enough sinks have reached.

        Args:
            source: compares positions.
            stands: where each sink stands.
        """
        furthest: Position | None = None
        for position in stands.values():
            there = [name for name, at in stands.items() if source.covers(at, position)]
            further = furthest is None or not source.covers(furthest, position)
            if further and self.holds(there):
                furthest = position
        return source.earliest(list(stands.values())) if furthest is None else furthest
