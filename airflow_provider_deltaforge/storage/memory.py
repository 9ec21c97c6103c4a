"""State in this process, for tests and for runs whose state may be lost."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_deltaforge.errors import FencedError
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import (
    Amend,
    Append,
    Delete,
    Fence,
    Push,
    Put,
    StoredEntry,
    StoredSlot,
    Take,
    Write,
)

_Name = tuple[str, str]


@dataclass(slots=True)
class _State:
    lock: threading.RLock = field(default_factory=threading.RLock)
    values: dict[_Name, tuple[bytes, float | None]] = field(default_factory=dict)
    log: list[tuple[str, StoredEntry]] = field(default_factory=list)
    slots: dict[_Name, StoredSlot] = field(default_factory=dict)
    queues: dict[_Name, list[StoredEntry]] = field(default_factory=dict)
    log_seq: int = 0
    queue_seq: int = 0


_named: dict[str, _State] = {}
_naming = threading.Lock()


class MemoryStore:
    """A ``Store`` without a file; see the contract for what each method promises.

    Args:
        name: stores of one name share their state within a process; without a name it is this
            object's own.
    """

    def __init__(self, name: str | None = None) -> None:
        if name is None:
            self._state = _State()
        else:
            with _naming:
                self._state = _named.setdefault(name, _State())

    def put(self, namespace: str, key: str, value: bytes, ttl_s: float | None = None) -> None:
        """Write a value."""
        self.transact([Put(namespace, key, value, ttl_s)])

    def get(self, namespace: str, key: str) -> bytes | None:
        """Return a value, or None."""
        names.check(namespace, key)
        with self._state.lock:
            return self._alive((namespace, key))

    def delete(self, namespace: str, key: str) -> bool:
        """Remove a value; return whether there was one."""
        names.check(namespace, key)
        with self._state.lock:
            was = self._alive((namespace, key)) is not None
            self._state.values.pop((namespace, key), None)
            return was

    def items(self, namespace: str, prefix: str = "") -> list[tuple[str, bytes]]:
        """Return the pairs whose key starts with ``prefix``, in key order."""
        names.check(namespace, prefix)
        with self._state.lock:
            found = [
                (name[1], self._alive(name))
                for name in list(self._state.values)
                if name[0] == namespace and name[1].startswith(prefix)
            ]
        return sorted((key, value) for key, value in found if value is not None)

    def append(self, namespace: str, key: str, value: bytes) -> int:
        """Append to the log and return the sequence number."""
        names.check(namespace, key)
        state = self._state
        with state.lock:
            state.log_seq += 1
            state.log.append((namespace, StoredEntry(state.log_seq, key, value, _now_ms())))
            return state.log_seq

    def read(
        self, namespace: str, key: str | None = None, after: int = 0, limit: int = 1000
    ) -> list[StoredEntry]:
        """Return log entries with a sequence above ``after``, oldest first."""
        with self._state.lock:
            found = [
                entry
                for owner, entry in self._state.log
                if owner == namespace and key in (None, entry.key) and entry.seq > after
            ]
        return found[:limit]

    def slot(self, namespace: str, key: str) -> StoredSlot | None:
        """Return a slot, or None."""
        names.check(namespace, key)
        with self._state.lock:
            return self._state.slots.get((namespace, key))

    def swap(self, namespace: str, key: str, expected_version: int, state: bytes) -> int | None:
        """Write a slot if it still has ``expected_version``."""
        names.check(namespace, key)
        with self._state.lock:
            present = self._state.slots.get((namespace, key))
            if expected_version != (present.version if present else 0):
                return None
            self._state.slots[namespace, key] = StoredSlot(expected_version + 1, bytes(state))
            return expected_version + 1

    def push(self, namespace: str, key: str, value: bytes) -> int:
        """Push onto a queue and return the entry's number."""
        names.check(namespace, key)
        state = self._state
        with state.lock:
            state.queue_seq += 1
            entry = StoredEntry(state.queue_seq, key, value, _now_ms())
            state.queues.setdefault((namespace, key), []).append(entry)
            return state.queue_seq

    def peek(self, namespace: str, key: str, limit: int = 50, after: int = 0) -> list[StoredEntry]:
        """Return the oldest entries of a queue, without taking them."""
        with self._state.lock:
            queue = self._state.queues.get((namespace, key), [])
            return [entry for entry in queue if entry.seq > after][:limit]

    def ack(self, namespace: str, key: str, upto: int) -> int:
        """Remove entries up to and including ``upto``; return how many."""
        with self._state.lock:
            queue = self._state.queues.get((namespace, key), [])
            return self._shorten(queue, sum(entry.seq <= upto for entry in queue))

    def drop_oldest(self, namespace: str, key: str, count: int = 1) -> int:
        """Remove the oldest entries; return how many."""
        with self._state.lock:
            return self._shorten(self._state.queues.get((namespace, key), []), count)

    def length(self, namespace: str, key: str) -> int:
        """Return the number of entries in a queue."""
        with self._state.lock:
            return len(self._state.queues.get((namespace, key), []))

    def transact(self, writes: Sequence[Write], fence: Fence | None = None) -> None:
        """Apply all writes or none."""
        for write in writes:
            names.check(write.namespace, write.key)
        with self._state.lock:
            if fence is not None:
                present = self._state.slots.get((fence.namespace, fence.key))
                if present is None or present.version != fence.version:
                    raise fenced(fence, present.version if present else None)
            # Names were checked above: from here on nothing can fail half-way.
            for write in writes:
                self._apply(write)

    def close(self) -> None:
        """Nothing to let go of."""

    def _apply(self, write: Write) -> None:
        if isinstance(write, Put):
            expires = None if write.ttl_s is None else time.monotonic() + write.ttl_s
            self._state.values[write.namespace, write.key] = (bytes(write.value), expires)
        elif isinstance(write, Delete):
            self._state.values.pop((write.namespace, write.key), None)
        elif isinstance(write, Append):
            self.append(write.namespace, write.key, write.value)
        elif isinstance(write, Push):
            self.push(write.namespace, write.key, write.value)
        else:
            self._change(write)

    def _change(self, write: Amend | Take) -> None:
        queue = self._state.queues.get((write.namespace, write.key), [])
        at = next((at for at, entry in enumerate(queue) if entry.seq == write.seq), None)
        if at is not None and isinstance(write, Amend):
            queue[at] = replace(queue[at], value=bytes(write.value))
        elif at is not None:
            del queue[at]

    def _alive(self, name: _Name) -> bytes | None:
        value, expires = self._state.values.get(name, (None, None))
        if expires is not None and expires <= time.monotonic():
            del self._state.values[name]
            return None
        return value

    @staticmethod
    def _shorten(queue: list[StoredEntry], count: int) -> int:
        gone = min(max(count, 0), len(queue))
        del queue[:gone]
        return gone


def fenced(fence: Fence, present: int | None) -> FencedError:
    """Return the error of a writer that lost its fence.

    Args:
        fence: what the writer took.
        present: the slot's version now; None: the slot is gone.
    """
    now = "is gone" if present is None else f"is {present}"
    return FencedError(
        f"{fence.namespace} of {fence.key} {now} and ours was {fence.version}: a newer driver owns "
        "the pipeline, or it was deleted; nothing was written, end this driver"
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
