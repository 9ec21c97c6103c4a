"""Who may write to a sink: the epoch of the state store, as far as it reaches into sinks.

A process that was frozen asks for its fence before it writes, is frozen, and writes when it wakes
up. So a sink that can compare refuses it there, by the claim's token. For a sink that cannot, the
claim is a lease: it is renewed by asking the store, each side measures it by its own clock, and who
takes over waits until that of every former writer has ended, and what those had begun with it.
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.deliver.held_positions import PositionOwner
from airflow_provider_deltaforge.errors import DeltaForgeError, FencedError, RetryableError
from airflow_provider_deltaforge.sinks.contract import (
    FencedWriter,
    FormerWriter,
    Sink,
    SinkWriter,
    take_lease,
)
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Delete, Put
from airflow_provider_deltaforge.storage.records.record import Record
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots

_ATTEMPTS = 3
_DRIFT = 1.1
_POLL_S = 0.1
_AT_ONCE_S = 2.0
_KNOWN_MAX = 64
_known: dict[str, float] = {}
"""Since when this process knows an epoch to be taken, by its token."""


class WriterRecord(Record):
    """A writer that has begun, as the store keeps it until it is closed."""

    v: Literal[1] = 1
    sink: str
    name: str
    token: str
    lives_s: float
    host: str
    machine: str
    pid: int
    started: str


@dataclass(frozen=True, slots=True)
class _FormerWriter(FormerWriter):
    """With the key of its record."""

    key: str
    host: str


class SinkFences:
    """The claims of one worker. Safe to use from several threads.

    Args:
        context: the opened job; made just before, so that its epoch was the newest by now.
    """

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._until = 0.0
        self.token = f"{context.job.driver}.{context.fence.version}"
        self.since = _since(f"{context.pipeline.name}/{self.token}")
        self.owner = PositionOwner.of(context)
        self.source = context.pipeline.spec.source
        """Whose log the sinks are given."""

    def of(self, sink_id: str, over: Callable[[], bool]) -> "SinkFence":
        """Return the claim of one connection.

        Args:
            sink_id: the sink.
            over: asked while waiting; True ends that with a RetryableError.
        """
        return SinkFence(self._context, self, sink_id, over)

    def confirm(self) -> None:
        """Ask for the epoch, and renew the lease; see ``WriterClaim``."""
        began = now_s()
        if self._context.control.held_epoch(self._context.job.driver) != self._context.fence:
            raise FencedError("a newer worker of this driver has started; this one ends")
        with self._lock:
            self._until = max(self._until, began + self._context.job.tuning.lease_s)

    def left_s(self) -> float:
        """Return what is left of the lease."""
        return self._until - now_s()


class SinkFence:
    """A ``WriterClaim``. Used by its connection's thread, but for ``left_s`` and ``hold``."""

    def __init__(
        self, context: TaskContext, claims: SinkFences, sink_id: str, over: Callable[[], bool]
    ) -> None:
        self._context, self._claims, self._sink, self._over = context, claims, sink_id, over
        self._prefix = f"{context.pipeline.name}/{sink_id}/"
        self._notes = Snapshots(context.store, context.pipeline.name)
        self._number = secrets.token_hex(6)
        self._entered: set[str] = set()
        self.token = claims.token

    def confirm(self) -> None:
        """Ask whether the epoch is still the newest; see ``WriterClaim``."""
        self._claims.confirm()

    def hold(self) -> None:
        """Renew the lease if it is no longer new; see ``WriterClaim``.

        The clock is read last: a process that was frozen behind the answer asks again.
        """
        tuning = self._context.job.tuning
        if self.left_s() >= tuning.lease_s - tuning.lease_renewed_s:
            return
        for _ in range(_ATTEMPTS):
            try:
                self._claims.confirm()
            except RetryableError:
                if self.left_s() < tuning.lease_least_s:
                    raise  # Away for a moment, the store costs nothing yet.
            if self.left_s() >= tuning.lease_least_s:
                return
        raise RetryableError(
            f"sink {self._sink}: the state store takes longer to answer than the "
            f"{tuning.lease_s:.0f} s for which an answer lets us write; check its load, and the "
            "network between"
        )

    def left_s(self) -> float:
        """Return what is left of the lease."""
        return self._claims.left_s()

    def former(self) -> Sequence[FormerWriter]:
        """Return who has begun in earlier epochs and is not closed; see ``WriterClaim``."""
        return [
            _FormerWriter(record.name, record.lives_s, not _is_gone(record), key, record.host)
            for key, record in self._records()
            if record.token != self.token
        ]

    def outlive(self, writers: Sequence[FormerWriter]) -> None:
        """Wait until the leases of former writers have ended; see ``WriterClaim``.

        None of them can renew its lease since this worker's epoch was taken.
        """
        began, lease_s = now_s(), self._context.job.tuning.lease_s
        while waited := [writer for writer in self._present(writers) if writer.may_write]:
            longest_s = max(lease_s * _DRIFT + writer.lives_s for writer in waited)
            left_s = self._claims.since + longest_s - now_s()
            if left_s <= 0:
                return
            if self._over() or now_s() - began > _AT_ONCE_S:
                raise RetryableError(
                    f"sink {self._sink}: waiting {left_s:.0f} s more, until nothing that a former "
                    f"driver{_on(waited)} has begun to write there can be under way any more"
                )
            time.sleep(min(_POLL_S, left_s))

    def _present(self, writers: Sequence[FormerWriter]) -> list[FormerWriter]:
        """Return how writers are by now, without those that are closed."""
        wanted = {writer.name for writer in writers}
        return [writer for writer in self.former() if writer.name in wanted]

    def forget(self, writers: Sequence[FormerWriter]) -> None:
        """Forget writers that are shut out; see ``WriterClaim``."""
        keys = [writer.key for writer in writers if isinstance(writer, _FormerWriter)]
        if keys:
            gone = [Delete(names.WRITERS, key) for key in keys]
            self._context.store.transact(gone, self._context.fence)

    def enter(self, name: str, lives_s: float = 0.0) -> None:
        """Store that a writer begins; see ``WriterClaim``."""
        machine, pid, started = _this_process()
        record = WriterRecord(
            sink=self._sink,
            name=name,
            token=self.token,
            lives_s=lives_s,
            host=socket.gethostname(),
            machine=machine,
            pid=pid,
            started=started,
        )
        # Of its own: when another writer of the epoch says that it is closed, this one stays known.
        key = f"{self._prefix}{name}/{self.token}/{self._number}"
        put = Put(names.WRITERS, key, record.model_dump_json().encode())
        self._context.store.transact([put], self._context.fence)
        self._entered.add(key)

    def leave(self) -> None:
        """Record that everything that entered is closed, unless the store is away."""
        for key in list(self._entered):
            with suppress(DeltaForgeError):
                self._context.store.delete(names.WRITERS, key)
            self._entered.discard(key)

    def keep(self, run: str, notes: Mapping[str, bytes | None]) -> None:
        """Store notes of a copy; see ``RunNotes``."""
        writes: list[Put | Delete] = []
        for name, text in notes.items():
            key = self._notes.notes_key(run, self._sink, name)
            gone, there = Delete(names.SNAPSHOTS, key), Put(names.SNAPSHOTS, key, text or b"")
            writes.append(gone if text is None else there)
        self._context.store.transact(writes, self._context.fence)

    def kept(self, run: str, prefix: str) -> dict[str, bytes]:
        """Return notes of a copy; see ``RunNotes``."""
        begin = self._notes.notes_key(run, self._sink, "")
        stored = self._context.store.items(names.SNAPSHOTS, begin + prefix)
        return {key.removeprefix(begin): text for key, text in stored}

    def _records(self) -> list[tuple[str, WriterRecord]]:
        stored = self._context.store.items(names.WRITERS, self._prefix)
        records = [(key, WriterRecord.from_stored(text, f"writer {key}")) for key, text in stored]
        return [(key, record) for key, record in records if record.sink == self._sink]


def claim(sink: Sink, writer: SinkWriter, right: SinkFence) -> None:
    """See to it that no writer of an earlier epoch follows this one.

    Args:
        sink: the description.
        writer: its connection, not used yet.
        right: to write there.

    Raises:
        FencedError: a newer epoch has begun.
        RetryableError: former writers may write for a while still, or somebody is away.
    """
    if isinstance(writer, FencedWriter):
        writer.fence(right)
    elif not sink.is_private:
        take_lease(right)


def now_s() -> float:
    """Return this machine's own clock, which also counts while it sleeps and is never set."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _since(epoch: str) -> float:
    """Return since when this process knows that an epoch is taken.

    Asked again, at another attempt or by another thread, the wait does not begin anew.
    """
    if len(_known) > _KNOWN_MAX:
        _known.clear()  # Those that are still in use wait longer.
    return _known.setdefault(epoch, now_s())


def _on(writers: Sequence[FormerWriter]) -> str:
    hosts = {writer.host for writer in writers if isinstance(writer, _FormerWriter)}
    return f" on {', '.join(sorted(hosts))}" if hosts else ""


def _is_gone(writer: WriterRecord) -> bool:
    """Return whether the process of a writer is known to have ended."""
    machine = _machine()
    if not machine or writer.machine != machine:
        return False
    began = _started(writer.pid)
    if began is None:
        return not _is_there(writer.pid)  # Where others' processes are hidden, it may live.
    return began != writer.started


def _this_process() -> tuple[str, int, str]:
    """Return the machine with its space of process ids, the process and when that began."""
    pid = os.getpid()
    return _machine(), pid, _started(pid) or ""


@cache
def _machine() -> str:
    """Return what no other machine or container has; nothing where that cannot be known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """Return when a process began, in the kernel's own ticks; None if none is seen.

    Nothing of one that is dead and not yet waited for: it writes nothing any more.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if fields[0] in "ZX" else fields[19]


def _is_there(pid: int) -> bool:
    """Return whether a process is there, also where ``/proc`` does not show it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # Somebody else's.
    return True
