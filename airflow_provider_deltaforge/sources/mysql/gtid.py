"""Sets of transactions: MySQL GTID sets and MariaDB GTID positions."""

import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from uuid import UUID

from airflow_provider_deltaforge.errors import SpecError

Intervals = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class GtidSet:
    """A MySQL GTID set: per server UUID (``uuid`` or ``uuid:tag``) closed intervals, in order."""

    members: Mapping[str, Intervals] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "GtidSet":
        """Read ``uuid:1-5:7,uuid:tag:1``; tags carry over to the intervals behind them.

        Raises:
            SpecError: the text is no GTID set.
        """
        members: dict[str, list[tuple[int, int]]] = {}
        for part in text.replace("\n", "").split(","):
            pieces = [piece.strip() for piece in part.strip().split(":")]
            if pieces == [""]:
                continue
            try:
                uuid = str(UUID(pieces[0]))
                name = uuid
                for piece in pieces[1:]:
                    if not piece[:1].isdigit():
                        name = f"{uuid}:{piece.lower()}"
                        continue
                    low, _, high = piece.partition("-")
                    members.setdefault(name, []).append((int(low), int(high or low)))
            except ValueError as error:
                raise SpecError(f"not a GTID set: {part.strip()!r}") from error
        return cls({name: _joined(spans) for name, spans in sorted(members.items())})

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        parts: list[str] = []
        last = ""
        for name in sorted(self.members):
            uuid, _, tag = name.partition(":")
            spans = ":".join(f"{a}-{b}" if a != b else f"{a}" for a, b in self.members[name])
            text = f"{tag}:{spans}" if tag else spans
            if uuid == last:
                parts[-1] += f":{text}"
            else:
                parts.append(f"{uuid}:{text}")
            last = uuid
        return ",".join(parts)

    def adding(self, name: str, low: int, high: int) -> "GtidSet":
        """Return the set with one more closed interval."""
        spans = self.members.get(name, ())
        if spans and spans[-1][1] == low - 1:
            joined: Intervals = (*spans[:-1], (spans[-1][0], high))
        else:
            joined = _joined([*spans, (low, high)])
        return GtidSet({**self.members, name: joined})

    def __bool__(self) -> bool:
        return bool(self.members)

    def __len__(self) -> int:
        return sum(high - low + 1 for spans in self.members.values() for low, high in spans)

    def __or__(self, other: "GtidSet") -> "GtidSet":
        names = sorted({*self.members, *other.members})
        return GtidSet(
            {n: _joined([*self.members.get(n, ()), *other.members.get(n, ())]) for n in names}
        )

    def __sub__(self, other: "GtidSet") -> "GtidSet":
        left = {
            name: _without(spans, other.members.get(name, ()))
            for name, spans in self.members.items()
        }
        return GtidSet({name: spans for name, spans in left.items() if spans})

    def __and__(self, other: "GtidSet") -> "GtidSet":
        return self - (self - other)

    def __le__(self, other: "GtidSet") -> bool:
        return all(
            _covers(other.members.get(name, ()), low, high)
            for name, spans in self.members.items()
            for low, high in spans
        )

    @property
    def has_tags(self) -> bool:
        """Whether any of the transactions has a tag."""
        return any(":" in name for name in self.members)

    def encoded(self) -> bytes:
        """Return the form of COM_BINLOG_DUMP_GTID; the tagged form only when a tag is there."""
        tagged = self.has_tags
        count = len(self.members)
        # With tags the first and the last byte name the format and the count lies between.
        out = [struct.pack("<Q", (1 << 56) | (count << 8) | 1 if tagged else count)]
        for name in sorted(self.members):
            uuid, _, tag = name.partition(":")
            out.append(UUID(uuid).bytes)
            if tagged:
                out.append(bytes([len(tag) << 1]) + tag.encode())
            out.append(struct.pack("<Q", len(self.members[name])))
            out += [struct.pack("<QQ", low, high + 1) for low, high in self.members[name]]
        return b"".join(out)


@dataclass(frozen=True)
class GtidPos:
    """A MariaDB GTID position: per replication domain the last (server id, sequence)."""

    domains: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "GtidPos":
        """Read ``0-1-100,1-2-7``.

        Raises:
            SpecError: the text is no GTID position.
        """
        domains = {}
        for part in text.split(","):
            if not part.strip():
                continue
            try:
                domain, server, sequence = (int(piece) for piece in part.split("-"))
            except ValueError as error:
                raise SpecError(f"not a MariaDB GTID position: {part!r}") from error
            domains[domain] = (server, sequence)
        return cls(domains)

    def __str__(self) -> str:
        return ",".join(f"{d}-{s}-{n}" for d, (s, n) in sorted(self.domains.items()))

    def __bool__(self) -> bool:
        return bool(self.domains)

    def at(self, domain: int, server: int, sequence: int) -> "GtidPos":
        """Return the position with one domain moved."""
        return GtidPos({**self.domains, domain: (server, sequence)})

    def __le__(self, other: "GtidPos") -> bool:
        return all(
            domain in other.domains and sequence <= other.domains[domain][1]
            for domain, (_, sequence) in self.domains.items()
        )


@dataclass(frozen=True)
class GtidState:
    """MariaDB's ``gtid_binlog_state``: per domain and server the last sequence it wrote."""

    last: Mapping[tuple[int, int], int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "GtidState":
        """Read ``0-1-100,0-2-104``.

        Raises:
            SpecError: the text is no such state.
        """
        last: dict[tuple[int, int], int] = {}
        for part in text.split(","):
            for domain, (server, sequence) in GtidPos.parse(part).domains.items():
                last[domain, server] = max(sequence, last.get((domain, server), 0))
        return cls(last)

    def without(self, position: GtidPos) -> GtidPos:
        """Return the parts of a position that the server whose state this is never wrote."""
        missing = {
            domain: (server, sequence)
            for domain, (server, sequence) in position.domains.items()
            if self.last.get((domain, server), 0) < sequence
        }
        return GtidPos(missing)


def _joined(spans: list[tuple[int, int]]) -> Intervals:
    """Return the intervals in order, with neighbours and overlaps made one."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if low < 1 or high < low:
            raise SpecError(f"not a GTID interval: {low}-{high}")
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return tuple(out)


def _without(spans: Intervals, taken: Intervals) -> Intervals:
    """Return what is left of ``spans``; both are in order and have no overlaps."""
    out: list[tuple[int, int]] = []
    index = 0
    for low, high in spans:
        while index and taken[index - 1][1] >= low:
            index -= 1
        while index < len(taken) and taken[index][0] <= high:
            first, last = taken[index]
            if last >= low:
                if first > low:
                    out.append((low, first - 1))
                low = last + 1  # noqa: PLW2901 - what is left of this interval
            index += 1
        if low <= high:
            out.append((low, high))
    return tuple(out)


def _covers(spans: Intervals, low: int, high: int) -> bool:
    index = bisect_right(spans, (low, 1 << 64)) - 1
    return index >= 0 and spans[index][1] >= high


def spans_of(numbers: Iterator[int]) -> list[tuple[int, int]]:
    """Return the closed intervals that hold exactly these numbers."""
    return list(_joined([(number, number) for number in numbers]))
