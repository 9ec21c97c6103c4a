"""Many pipelines of one state store, kept running: each driver is watched by a thread.

A driver is a process of its own. It outlives this one when that is killed, and the next fleet on
the same store adopts it. What is wanted of each pipeline lies in the store, so that a fleet that
ends in order, and begins again, goes on with what ran before.
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
from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.control.starting import Started
from airflow_provider_deltaforge.control.status import PipelineStatus
from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError, SpecError
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.telemetry.redaction import redacted

_OWNER = "serve:"
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
    """

    def __init__(
        self,
        location: StoreLocation,
        backend: Backend,
        job: LaunchSpec,
        changed: Callable[[PipelineStatus], None] = lambda _: None,
    ) -> None:
        self._location = location
        self._backend = backend
        self._job = job
        self._changed = changed
        self._owner = f"{_OWNER}{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._leaving = threading.Event()
        self._watches: dict[str, _Watch] = {}
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
        job = replace(self._job, pipeline=name)
        try:
            started = starting.start(store, job, self._backend, self._owner, resume=resume)
        except RetryableError:
            self._start_later(name)
            raise
        self._watch(replace(job, generation=started.generation))
        return started

    def start_wanted(self, store: Store) -> list[str]:
        """Start, or adopt, every pipeline that a former fleet kept and nobody stopped."""
        begun = []
        for name in Control.list_pipelines(store):
            record = Control(store, name).read()
            ours = record is not None and (record.owner or "").startswith(_OWNER)
            if record is None or not ours or record.desired == "stopped":
                continue
            try:
                self.start(store, name)
            except (SpecError, RetryableError) as error:
                _log.warning("%s is not started: %s", name, redacted(str(error)))
                continue
            begun.append(name)
        return begun

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
            target=self._try_on, args=(name,), name=f"start {name}", daemon=True
        )
        later.start()

    def _try_on(self, name: str) -> None:
        while not self._leaving.wait(_AGAIN_S):
            try:
                store = self._location.open()
                try:
                    record = Control(store, name).read()
                    if record is None or record.owner != self._owner or record.desired == "stopped":
                        return  # Not claimed, or not wanted any more.
                    job = replace(self._job, pipeline=name)
                    started = starting.start(store, job, self._backend, self._owner)
                finally:
                    store.close()
            except RetryableError as error:
                _log.warning("%s is not started yet: %s", name, redacted(str(error)))
                continue
            except DeltaForgeError as error:
                _log.warning("%s is not started: %s", name, redacted(str(error)))
                return
            self._watch(replace(job, generation=started.generation))
            return

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
            except RetryableError:
                self._leaving.wait(1.0)
                continue
            try:
                task = Attendance(store, self._backend, job, self._owner)
                verdict = attend(
                    task, stopping=self._leaving.is_set, changed=changed, sleep=self._rest
                )
                _log.info("%s: %s: %s", job.name, verdict.action, redacted(verdict.reason))
            except DeltaForgeError as error:  # Deleted, perhaps.
                _log.info("%s is not watched any more: %s", job.name, redacted(str(error)))
            except Exception:  # noqa: BLE001 - its driver goes on, and so do the other pipelines
                _log.error("%s is not watched any more: %s", job.name, redacted(format_exc()))
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
            if record is None or record.owner != self._owner or record.handle is None:
                return  # Somebody else has adopted it, and it goes on.
            self._backend.stop(record.handle, 0.0)
        except DeltaForgeError as error:
            _log.warning("%s was not ended: %s", name, redacted(str(error)))
            failed.append(name)
