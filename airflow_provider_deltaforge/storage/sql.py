"""The ``Store`` contract in SQL that SQLite and PostgreSQL both speak."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from airflow_provider_deltaforge.errors import RetryableError
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
from airflow_provider_deltaforge.storage.memory import fenced

T = TypeVar("T")

# ``?`` marks a value and ``now_ms()`` the database's clock; each dialect puts its own there.
# Not ``expires_at IS NULL``: SQLite 3.40 answers that wrongly in the RETURNING of a DELETE.
_ALIVE = "coalesce(expires_at, 9223372036854775807) > now_ms()"
IDENTITY = "SELECT val FROM df_meta WHERE name = 'identity'"
PUT = """INSERT INTO df_kv (ns, key, val, updated_at, expires_at)
    VALUES (?, ?, ?, now_ms(), now_ms() + ?)
    ON CONFLICT (ns, key) DO UPDATE SET val = excluded.val,
    updated_at = excluded.updated_at, expires_at = excluded.expires_at"""
DELETE = f"DELETE FROM df_kv WHERE ns = ? AND key = ? RETURNING {_ALIVE}"
_SWEEP = "DELETE FROM df_kv WHERE expires_at <= now_ms()"
_APPEND = "INSERT INTO df_log (ns, key, val, ts) VALUES (?, ?, ?, now_ms()) RETURNING seq"
_PUSH = "INSERT INTO df_queue (ns, key, val, ts) VALUES (?, ?, ?, now_ms()) RETURNING id"
_CREATE_SLOT = """INSERT INTO df_slot (ns, key, version, state, updated_at)
    VALUES (?, ?, 1, ?, now_ms()) ON CONFLICT (ns, key) DO NOTHING RETURNING version"""
_SWAP_SLOT = """UPDATE df_slot SET version = version + 1, state = ?, updated_at = now_ms()
    WHERE ns = ? AND key = ? AND version = ? RETURNING version"""
_AMEND = "UPDATE df_queue SET val = ? WHERE ns = ? AND key = ? AND id = ?"
_TAKE = "DELETE FROM df_queue WHERE ns = ? AND key = ? AND id = ?"
_DROP = """DELETE FROM df_queue WHERE id IN
    (SELECT id FROM df_queue WHERE ns = ? AND key = ? ORDER BY id LIMIT ?)"""


class SqlResult(Protocol):
    """What a driver returns for a statement."""

    @property
    def rowcount(self) -> int:
        """Return how many rows the statement changed."""

    def fetchall(self) -> list[Any]:
        """Return the rows."""


Execute = Callable[[str, Sequence[Any]], SqlResult]
Query = Callable[[str], Iterator[Sequence[Any]]]
"""Yields the rows of a statement, a few at a time."""


class SqlStore(ABC):
    """A ``Store`` over a database; see the contract for what each method promises."""

    _lock_version = "SELECT version FROM df_slot WHERE ns = ? AND key = ?"
    """Reads a slot's version and holds it until the transaction ends."""

    sweep_every_s = 60.0
    """Expired values are removed this often, as long as writers of such values come."""

    _where: str
    """Names the store in errors, without its secrets."""

    _expected: int | None = None
    """The store that must be there, once that is known."""

    def __init__(self) -> None:
        self._swept_at = time.monotonic()

    @property
    def identity(self) -> int | None:
        """Return the number that identifies this store."""
        return self._expected

    @abstractmethod
    def _read(self, statement: str, values: Sequence[Any]) -> list[Any]:
        """Return the rows of one query."""

    @abstractmethod
    def _write(self, work: Callable[[Execute], T]) -> T:
        """Run ``work`` in one transaction, durable on return.

        ``work`` may run again when the database undid it, so it changes nothing else.
        """

    @property
    @abstractmethod
    def name(self) -> str:
        """Return what people call this store: its file's or database's name."""

    @abstractmethod
    def view(self) -> AbstractContextManager[Query]:
        """Yield a query whose answers all show the store at one moment, while others write."""

    @abstractmethod
    def counter(self, query: Query, table: str, column: str) -> int:
        """Return the last number that was drawn for a table; 0 before the first."""

    @abstractmethod
    def raise_counter(self, execute: Execute, table: str, column: str, number: int) -> None:
        """Let the numbers of a table go on behind ``number``."""

    @abstractmethod
    def rewrite(self, work: Callable[[Execute], T]) -> T:
        """Run ``work`` in one transaction that no other writer is beside; it may run again."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""

    @abstractmethod
    def _keep_order(self, execute: Execute) -> None:
        """Make entries visible in the order of their numbers: one appender at a time."""

    def put(self, namespace: str, key: str, value: bytes, ttl_s: float | None = None) -> None:
        """Write a value."""
        self.transact([Put(namespace, key, value, ttl_s)])

    def get(self, namespace: str, key: str) -> bytes | None:
        """Return a value, or None."""
        names.check(namespace, key)
        query = f"SELECT val FROM df_kv WHERE ns = ? AND key = ? AND {_ALIVE}"
        return next((row[0] for row in self._read(query, (namespace, key))), None)

    def delete(self, namespace: str, key: str) -> bool:
        """Remove a value; return whether there was one."""
        names.check(namespace, key)
        rows = self._write(lambda execute: execute(DELETE, (namespace, key)).fetchall())
        return any(row[0] for row in rows)

    def items(self, namespace: str, prefix: str = "") -> list[tuple[str, bytes]]:
        """Return the pairs whose key starts with ``prefix``, in key order."""
        names.check(namespace, prefix)
        query = f"SELECT key, val FROM df_kv WHERE ns = ? AND key >= ? AND {_ALIVE}"
        values = [namespace, prefix]
        end = names.after(prefix)
        if end is not None:
            query += " AND key < ?"
            values.append(end)
        return [(row[0], row[1]) for row in self._read(f"{query} ORDER BY key", values)]

    def append(self, namespace: str, key: str, value: bytes) -> int:
        """Append to the log and return the sequence number."""
        return self._number(_APPEND, namespace, key, value)

    def read(
        self, namespace: str, key: str | None = None, after: int = 0, limit: int = 1000
    ) -> list[StoredEntry]:
        """Return log entries with a sequence above ``after``, oldest first."""
        names.check(namespace, key or "")
        query = "SELECT seq, key, val, ts FROM df_log WHERE ns = ? AND seq > ?"
        values: list[Any] = [namespace, after]
        if key is not None:
            query += " AND key = ?"
            values.append(key)
        rows = self._read(f"{query} ORDER BY seq LIMIT ?", [*values, limit])
        return [StoredEntry(*row) for row in rows]

    def slot(self, namespace: str, key: str) -> StoredSlot | None:
        """Return a slot, or None."""
        names.check(namespace, key)
        query = "SELECT version, state FROM df_slot WHERE ns = ? AND key = ?"
        rows = self._read(query, (namespace, key))
        if not rows:  # Epochs and control records are slots: their lack ends drivers.
            self._same(self._expected, self._read(IDENTITY, ()))
        return next((StoredSlot(*row) for row in rows), None)

    def swap(self, namespace: str, key: str, expected_version: int, state: bytes) -> int | None:
        """Write a slot if it still has ``expected_version``."""
        names.check(namespace, key)
        statement, values = _SWAP_SLOT, (state, namespace, key, expected_version)
        if expected_version == 0:
            statement, values = _CREATE_SLOT, (namespace, key, state)  # type: ignore[assignment]
        rows = self._write(lambda execute: execute(statement, values).fetchall())
        return int(rows[0][0]) if rows else None

    def push(self, namespace: str, key: str, value: bytes) -> int:
        """Push onto a queue and return the entry's number."""
        return self._number(_PUSH, namespace, key, value)

    def peek(self, namespace: str, key: str, limit: int = 50, after: int = 0) -> list[StoredEntry]:
        """Return the oldest entries of a queue, without taking them."""
        names.check(namespace, key)
        query = """SELECT id, key, val, ts FROM df_queue
            WHERE ns = ? AND key = ? AND id > ? ORDER BY id LIMIT ?"""
        return [StoredEntry(*row) for row in self._read(query, (namespace, key, after, limit))]

    def ack(self, namespace: str, key: str, upto: int) -> int:
        """Remove entries up to and including ``upto``; return how many."""
        names.check(namespace, key)
        statement = "DELETE FROM df_queue WHERE ns = ? AND key = ? AND id <= ?"
        return self._write(lambda execute: execute(statement, (namespace, key, upto)).rowcount)

    def drop_oldest(self, namespace: str, key: str, count: int = 1) -> int:
        """Remove the oldest entries; return how many."""
        names.check(namespace, key)

        def drop(execute: Execute) -> int:
            self._keep_order(execute)
            return execute(_DROP, (namespace, key, max(count, 0))).rowcount

        return self._write(drop)

    def length(self, namespace: str, key: str) -> int:
        """Return the number of entries in a queue."""
        names.check(namespace, key)
        query = "SELECT count(*) FROM df_queue WHERE ns = ? AND key = ?"
        return int(self._read(query, (namespace, key))[0][0])

    def transact(self, writes: Sequence[Write], fence: Fence | None = None) -> None:
        """Apply all writes or none."""
        for write in writes:
            names.check(write.namespace, write.key)
        self._sweep(writes)

        def apply(execute: Execute) -> None:
            if fence is not None:
                rows = execute(self._lock_version, (fence.namespace, fence.key)).fetchall()
                present = int(rows[0][0]) if rows else None
                if present is None:
                    self._same(self._expected, execute(IDENTITY, ()).fetchall())
                if present != fence.version:
                    raise fenced(fence, present)
            if any(isinstance(write, Append | Push) for write in writes):
                self._keep_order(execute)
            for write in writes:
                _apply(write, execute)

        self._write(apply)

    def _same(self, expected: int | None, rows: list[Any]) -> int | None:
        """Return the identity of the store, once it is sure that it is the expected one.

        Raises:
            RetryableError: another one lies in its place.
        """
        found = int(rows[0][0]) if rows else None
        if expected is not None and found != expected:
            raise RetryableError(
                f"another state store lies in {self._where} than the one that was open: put that "
                "one back, and what waits for it goes on"
            )
        return found

    def _number(self, statement: str, namespace: str, key: str, value: bytes) -> int:
        names.check(namespace, key)

        def insert(execute: Execute) -> int:
            self._keep_order(execute)
            return int(execute(statement, (namespace, key, value)).fetchall()[0][0])

        return self._write(insert)

    def _sweep(self, writes: Sequence[Write]) -> None:
        """Remove expired values now and then; only writers of expiring values pay for it."""
        now = time.monotonic()
        expiring = any(isinstance(write, Put) and write.ttl_s is not None for write in writes)
        if expiring and now - self._swept_at > self.sweep_every_s:
            self._swept_at = now
            self._write(lambda execute: execute(_SWEEP, ()).rowcount)


def _apply(write: Write, execute: Execute) -> None:
    if isinstance(write, Put):
        ttl_ms = None if write.ttl_s is None else int(write.ttl_s * 1000)
        execute(PUT, (write.namespace, write.key, write.value, ttl_ms))
    elif isinstance(write, Delete):
        execute(DELETE, (write.namespace, write.key)).fetchall()
    elif isinstance(write, Amend):
        execute(_AMEND, (write.value, write.namespace, write.key, write.seq))
    elif isinstance(write, Take):
        execute(_TAKE, (write.namespace, write.key, write.seq))
    else:
        statement = _APPEND if isinstance(write, Append) else _PUSH
        execute(statement, (write.namespace, write.key, write.value)).fetchall()
