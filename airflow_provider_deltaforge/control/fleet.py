"""Many pipelines of one state store, kept running: each driver is watched by a thread.

Where a driver runs, its backend decides. One that is a process of its own outlives this one when
that is killed, and the next fleet on the same store adopts it; one that is a thread ends with it,
and is started again. What is wanted of each pipeline lies in the store, so that a fleet that ends
in order, and begins again, goes on with what ran before.
"""

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from traceback import format_exc

from airflow_provider_deltaforge.control import starting
from airflow_provider_deltaforge.control.attend import Attendance, attend
from airflow_provider_deltaforge.control.launching.contract import Backend, LaunchSpec
from airflow_provider_deltaforge.control.pipelines import changed, existing, stop
from airflow_provider_deltaforge.control.starting import Started
from airflow_provider_deltaforge.control.status import PipelineStatus
from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    RetryableError,
    SpecError,
)
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control, ControlRecord
from airflow_provider_deltaforge.telemetry.redaction import redacted

SERVE = "serve"
"""What the owner tokens of ``deltaforge serve`` begin with."""
FLEET = "fleet"
"""What those of ``deltaforge fleet`` begin with."""

REMOVED = f"{FLEET}:removed"
"""The owner of a pipeline that was stopped because its document was taken away."""

_JOIN_S = 5.0
_AGAIN_S = 2.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Watch:
    generation: int
    thread: threading.Thread


class Fleet:
    """Starts drivers and stays with them. Every method may be called from any thread.

    Args:
        location: the state store.
        backend: where drivers run.
        job: what is started for each pipeline; its name and generation are set here.
        changed: hears of a pipeline's new status.
        kind: what its owner tokens begin with.
        admit: called with a name before a driver is started; it raises where there is no room.
    """

    def __init__(
        self,
        location: StoreLocation,
        backend: Backend,
        job: LaunchSpec,
        changed: Callable[[PipelineStatus], None] = lambda _: None,
        *,
        kind: str = SERVE,
        admit: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._location = location
        self._backend = backend
        self._job = job
        self._changed = changed
        self._kind = f"{kind}:"
        self._admit = admit
        place = f"{socket.gethostname()}:{os.getpid()}"
        self.owner = f"{self._kind}{place}:{uuid.uuid4().hex[:8]}"
        """The token that this fleet writes into the records of its pipelines."""
        self._leaving = threading.Event()
        self._watches: dict[str, _Watch] = {}
        self._starting: set[str] = set()
        self._given_up: dict[str, int] = {}
        self._lock = threading.Lock()

    def start(self, store: Store, name: str, *, resume: bool = False) -> Started:
        """Start a pipeline's driver, or adopt the one that runs its present document.

        Args:
            store: opened by the calling thread.
            name: the pipeline, which was applied.
            resume: it is to work also if it was paused.

        Raises:
            SpecError: there is no such pipeline, or it cannot be run as asked.
            RetryableError: somebody else started or stopped it at this moment, this process is
                about to end, or the driver cannot be started yet: then it is tried on.
        """
        if self._leaving.is_set():
            raise RetryableError("this server is about to end; ask again when it is back")
        self._admit(name)
        job = replace(self._job, pipeline=name)
        try:
            started = starting.start(store, job, self._backend, self.owner, resume=resume)
        except RetryableError:
            self._start_later(name)
            raise
        self._keep(replace(job, generation=started.generation))
        return started

    def start_wanted(self, store: Store) -> list[str]:
        """Start, or adopt, every pipeline that a former fleet kept and nobody stopped."""
        begun = []
        for name in Control.list_pipelines(store):
            record = Control(store, name).read()
            ours = record is not None and (record.owner or "").startswith(self._kind)
            if record is None or not ours or record.desired == "stopped":
                continue
            try:
                self.start(store, name)
            except (SpecError, RetryableError) as error:
                _log.warning("%s is not started: %s", name, redacted(str(error)))
                continue
            begun.append(name)
        return begun

    def watches(self, name: str) -> bool:
        """Return whether a pipeline is watched, or about to be started again."""
        with self._lock:
            watch = self._watches.get(name)
            return name in self._starting or (watch is not None and watch.thread.is_alive())

    def is_starting(self, name: str) -> bool:
        """Return whether a pipeline was claimed, and its driver is tried to be started on."""
        with self._lock:
            return name in self._starting

    def has_given_up(self, name: str, generation: int) -> bool:
        """Return whether the driver of this generation ended for good, as far as is known here."""
        return self._given_up.get(name) == generation

    def given_up(self) -> list[str]:
        """Return the pipelines whose present driver ended for good."""
        with self._lock:
            watched = {name: watch.generation for name, watch in self._watches.items()}
        return sorted(name for name, number in watched.items() if self.has_given_up(name, number))

    def remove(self, store: Store, name: str) -> bool:
        """Stop a pipeline whose document was taken away, if this fleet keeps it.

        Returns:
            Whether it was this fleet's. Its positions stay: with its document it goes on.

        Raises:
            RetryableError: its driver does not end.
        """
        control = Control(store, name)
        if control.read() is None:
            return False

        def let_go(record: ControlRecord) -> ControlRecord:
            if record.owner != self.owner:
                return record
            # One that a person has stopped stays stopped, also once its document is back.
            owner = REMOVED if record.desired != "stopped" else record.owner
            return changed(record, desired="stopped", owner=owner)

        if control.update(let_go).owner not in (REMOVED, self.owner):
            return False
        stop(store, name, self._backend)
        return True

    def close(self, grace_s: float) -> Sequence[str]:
        """End every driver that this fleet keeps, all at once; what is wanted of them stays.

        Args:
            grace_s: how long each may take to deliver what it holds.

        Returns:
            The pipelines whose driver did not end; none of them loses anything when it is killed.
        """
        self._leaving.set()
        with self._lock:
            kept = dict(self._watches)
        failed: list[str] = []
        ending = {
            name: threading.Thread(target=self._end, args=(name, failed), daemon=True)
            for name in kept
        }
        for thread in ending.values():
            thread.start()
        until = time.monotonic() + grace_s + _JOIN_S
        for thread in ending.values():
            thread.join(max(0.0, until - time.monotonic()))
        return [*failed, *(name for name, thread in ending.items() if thread.is_alive())]

    def _start_later(self, name: str) -> None:
        """Start a pipeline whose generation we have claimed, and whose driver is not there yet."""
        later = threading.Thread(
            target=self._start_until_done, args=(name,), name=f"start {name}", daemon=True
        )
        with self._lock:
            self._starting.add(name)
        later.start()

    def _start_until_done(self, name: str) -> None:
        try:
            self._try_on(name)
        finally:
            with self._lock:
                self._starting.discard(name)

    def _try_on(self, name: str) -> None:
        while not self._leaving.wait(_AGAIN_S):
            try:
                store = self._location.open()
                try:
                    record = Control(store, name).read()
                    if record is None or record.owner != self.owner or record.desired == "stopped":
                        return  # Not claimed, or not wanted any more.
                    job = replace(self._job, pipeline=name)
                    started = starting.start(store, job, self._backend, self.owner)
                finally:
                    store.close()
            except (RetryableError, AccessError) as error:
                _log.warning("%s is not started yet: %s", name, redacted(str(error)))
                continue
            except DeltaForgeError as error:
                _log.warning("%s is not started: %s", name, redacted(str(error)))
                return
            self._keep(replace(job, generation=started.generation))
            return

    def _keep(self, job: LaunchSpec) -> None:
        """Watch what was started. If this fleet was closed meanwhile, nobody has ended it yet."""
        self._watch(job)
        if self._leaving.is_set():
            self._end(job.pipeline, [])

    def _watch(self, job: LaunchSpec) -> None:
        with self._lock:
            known = self._watches.get(job.pipeline)
            if known and known.generation == job.generation and known.thread.is_alive():
                return
            thread = threading.Thread(
                target=self._attend, args=(job,), name=f"attend {job.pipeline}", daemon=True
            )
            self._watches[job.pipeline] = _Watch(job.generation, thread)
            thread.start()

    def _attend(self, job: LaunchSpec) -> None:
        """Stay with one generation of a pipeline until it is over."""
        shown: list[tuple[str, str | None]] = []

        def changed(present: PipelineStatus) -> None:
            if shown != [(present.status, present.error_class)]:
                shown[:] = [(present.status, present.error_class)]
                self._changed(present)

        while not self._leaving.is_set():
            try:
                store = self._location.open()
            except DeltaForgeError as error:  # Its driver goes on, whatever is wrong here.
                _log.warning("%s is not watched for a moment: %s", job.name, redacted(str(error)))
                self._leaving.wait(1.0)
                continue
            try:
                task = Attendance(store, self._backend, job, self.owner)
                verdict = attend(
                    task, stopping=self._leaving.is_set, changed=changed, sleep=self._rest
                )
                _log.info("%s: %s: %s", job.name, verdict.action, redacted(verdict.reason))
                if verdict.action == "give_up":
                    self._given_up[job.pipeline] = job.generation
            except SpecError as error:  # Deleted, perhaps.
                _log.info("%s is not watched any more: %s", job.name, redacted(str(error)))
            except Exception as error:  # noqa: BLE001 - its driver goes on, and so do the others
                words = str(error) if isinstance(error, DeltaForgeError) else format_exc()
                _log.error("%s is not watched for a moment: %s", job.name, redacted(words))
                self._leaving.wait(_AGAIN_S)
                continue
            finally:
                store.close()
            return

    def _rest(self, seconds: float) -> None:
        self._leaving.wait(seconds)

    def _end(self, name: str, failed: list[str]) -> None:
        try:
            store = self._location.open()
            try:
                record = existing(store, name).read()
            finally:
                store.close()
            if record is None or record.owner != self.owner or record.handle is None:
                return  # Somebody else has adopted it, and it goes on.
            self._backend.stop(record.handle, 0.0)
        except DeltaForgeError as error:
            _log.warning("%s was not ended: %s", name, redacted(str(error)))
            failed.append(name)
