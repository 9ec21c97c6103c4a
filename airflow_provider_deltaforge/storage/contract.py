"""What every state store promises.

Four primitives: a key-value map with optional expiry, a log with one global sequence, slots with
compare-and-swap, and queues with cumulative acknowledgement. ``transact`` applies several writes
at once, and only while a slot still has the version the writer took: that is the fence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredSlot:
    """A slot's state and its version; the first write makes version 1."""

    version: int
    state: bytes


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry of a log or a queue."""

    seq: int
    key: str
    value: bytes
    ts_ms: int


@dataclass(frozen=True, slots=True)
class Put:
    """Write ``value`` under ``(namespace, key)`` of the key-value map."""

    namespace: str
    key: str
    value: bytes
    ttl_s: float | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove ``(namespace, key)`` from the key-value map."""

    namespace: str
    key: str


@dataclass(frozen=True, slots=True)
class Append:
    """Append to the log."""

    namespace: str
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Push:
    """Push onto a queue."""

    namespace: str
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Amend:
    """Give an entry of a queue another value, in its place; nothing happens if it is gone."""

    namespace: str
    key: str
    seq: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Take:
    """Take one entry out of a queue, from wherever it stands; one that is gone stays gone."""

    namespace: str
    key: str
    seq: int


Write = Put | Delete | Append | Push | Amend | Take


@dataclass(frozen=True, slots=True)
class Fence:
    """Writes hold only while this slot has this version."""

    namespace: str
    key: str
    version: int


class Store(Protocol):
    """A state store. Safe to use from several threads; every write is durable on return.

    Every method raises RetryableError when the store is away, AccessError when it refuses us.
    A store may have an ``identity``, a number that no other store has: then one that lies in
    its place is away as well.

    The class of an installed store is called with its whole address, ``create`` (whether to make
    the store where there is none; otherwise one that is not there is away) and ``identity`` (of the
    store that must be there; None: whichever is).
    """

    def put(self, namespace: str, key: str, value: bytes, ttl_s: float | None = None) -> None:
        """Write a value; with ``ttl_s`` it is invisible after that many seconds."""

    def get(self, namespace: str, key: str) -> bytes | None:
        """Return a value, or None."""

    def delete(self, namespace: str, key: str) -> bool:
        """Remove a value; return whether there was one."""

    def items(self, namespace: str, prefix: str = "") -> list[tuple[str, bytes]]:
        """Return the pairs whose key starts with ``prefix``, in key order."""

    def append(self, namespace: str, key: str, value: bytes) -> int:
        """Append to the log and return the sequence number, which grows across all logs."""

    def read(
        self, namespace: str, key: str | None = None, after: int = 0, limit: int = 1000
    ) -> list[StoredEntry]:
        """Return log entries with a sequence above ``after``, oldest first."""

    def slot(self, namespace: str, key: str) -> StoredSlot | None:
        """Return a slot, or None."""

    def swap(self, namespace: str, key: str, expected_version: int, state: bytes) -> int | None:
        """Write a slot if it still has ``expected_version`` (0: absent).

        Returns:
            The new version, or None if somebody else was first.
        """

    def push(self, namespace: str, key: str, value: bytes) -> int:
        """Push onto a queue and return the entry's number."""

    def peek(self, namespace: str, key: str, limit: int = 50, after: int = 0) -> list[StoredEntry]:
        """Return the oldest entries of a queue, without taking them."""

    def ack(self, namespace: str, key: str, upto: int) -> int:
        """Remove entries up to and including ``upto``; return how many."""

    def drop_oldest(self, namespace: str, key: str, count: int = 1) -> int:
        """Remove the oldest entries; return how many."""

    def length(self, namespace: str, key: str) -> int:
        """Return the number of entries in a queue."""

    def transact(self, writes: Sequence[Write], fence: Fence | None = None) -> None:
        """Apply all writes or none.

        Raises:
            FencedError: the fence's slot no longer has its version; nothing was written.
        """

    def close(self) -> None:
        """Close the connection. Safe to call twice."""


def shown_identity(store: Store) -> str | None:
    """Return a store's identity as people and sinks see it; None of a store that has none."""
    identity = getattr(store, "identity", None)
    return f"{identity:x}" if isinstance(identity, int) else identity
