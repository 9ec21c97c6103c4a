"""Runs verifications, repairs what they find, and returns their results.

A verification runs in a thread of the process that asks for it: a command, a task or a server. Its
result is kept in the state store. One runs per pipeline at a time.
"""

import logging
import os
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.control.snapshots import (
    CopySelection,
    RequestState,
    cancel,
    request,
    request_state,
)
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.engine.verify.options import (
    VerifyOptions,
    VerifyProgress,
    VerifyResult,
)
from airflow_provider_deltaforge.errors import (
    DeltaForgeError,
    FatalError,
    RetryableError,
    SpecError,
)
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.record import now_ms
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from airflow_provider_deltaforge.storage.records.verifications import (
    KINDS,
    DifferingKeys,
    Verification,
    Verifications,
)
from airflow_provider_deltaforge.telemetry.logs import SeveralLines
from airflow_provider_deltaforge.telemetry.redaction import redacted

_ALIVE_EVERY_S = 2.0
_LOOK_S = 0.2
_NOT_RUNNING_WAIT_S = 3.0
_SNAPSHOT = (
    "the snapshot of {name!r} is not finished; verify when 'deltaforge status {name}' shows it done"
)

_log = logging.getLogger(__name__)


class VerificationRunningError(RetryableError):
    """Another verification of the pipeline is running."""


class VerificationRun:
    """One verification in this process, from its begin to its result.

    Args:
        store: the state store, for as long as it runs.
        name: the pipeline's.
        options: how to verify.
        by: names the one who asks.
        environment: the values of the document's variables; None: this process's.

    Raises:
        SpecError: there is no such pipeline or sink, or its snapshot is not finished.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        options: VerifyOptions,
        by: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._store, self._name, self._options = store, name, options
        self._pipeline = _pipeline(store, name, os.environ if environment is None else environment)
        known = [sink.id for sink in self._pipeline.spec.sinks]
        for sink_id in options.sinks:
            if sink_id not in known:
                raise SpecError(
                    f"sinks: no sink has the id {sink_id!r} (known: {', '.join(known)})"
                )
        self._records = Verifications(store, name)
        self._progress = VerifyProgress()
        self._over, self._cancelled = threading.Event(), threading.Event()
        self._lost: DeltaForgeError | None = None
        self._verification = Verification(
            id=uuid.uuid4().hex[:12], by=by, tables=list(options.tables), started_at_ms=now_ms()
        )

    def begin(self) -> Verification:
        """Take the one place of the pipeline's verifications.

        Raises:
            VerificationRunningError: another one is running.
        """
        if not self._records.begin(self._verification):
            running = self._records.running()
            who = f" by {running.by}, {running.phase or 'beginning'}" if running is not None else ""
            raise VerificationRunningError(
                f"a verification of {self._name!r} is running{who}; wait for its result, or half a "
                "minute if it was killed"
            )
        return self.current()

    def current(self) -> Verification:
        """Return it with its progress. Called by any thread."""
        progress = self._progress
        return self._verification.model_copy(
            update={
                "phase": progress.phase,
                "done": progress.done,
                "total": progress.total,
                "rows": progress.rows,
                "rounds": progress.rounds,
            }
        )

    def cancel(self) -> None:
        """Ask it to end. Called by any thread."""
        self._cancelled.set()

    def run(self) -> Verification:
        """Verify, after ``begin``, and keep the result.

        Returns:
            The result, also of one that failed: see its ``state`` and ``reason``.

        Raises:
            RetryableError: the state store is away, so that nothing was kept.
        """
        keeper = threading.Thread(target=self._keep_alive, daemon=True, name="verify")
        keeper.start()
        keys: dict[str, Any] = {}
        changes: dict[str, Any] = {}
        try:
            found = self._verified()
            keys = found.keys
            changes = {"state": "finished", "verdict": found.verdict, "sinks": found.sinks}
        except _CancelledError:
            changes = {"state": "cancelled", "reason": "cancelled by the one who asked for it"}
        except DeltaForgeError as error:
            failed = {"state": "failed", "error_class": error.error_class}
            changes = {**failed, "reason": redacted(str(error))}
        except Exception as error:  # noqa: BLE001 - its text may quote a row
            frames = SeveralLines("\n" + "".join(traceback.format_tb(error.__traceback__)))
            _log.error("verification of %s: %s at:%s", self._name, type(error).__name__, frames)
            changes = {"state": "failed", "reason": f"{type(error).__name__}; see the log"}
        finally:
            self._over.set()
            keeper.join()
        result = self.current().model_copy(
            update={**changes, "finished_at_ms": now_ms(), "phase": ""}
        )
        self._records.finish(result, DifferingKeys(id=result.id, keys=keys))
        _log.info("verification of %s: %s", self._name, in_words(result))
        return result

    def _verified(self) -> VerifyResult:
        # Compiled checksums: a process that only reads a DAG file must not load them.
        from airflow_provider_deltaforge.engine.verify.verification import verify

        options = self._options
        if not status(self._store, self._name).alive:
            # No driver moves its checkpoints: if they are not at the log's end, waiting is no use.
            waits = min(options.wait_s, _NOT_RUNNING_WAIT_S)
            options = replace(options, wait_s=waits)
        return verify(self._pipeline, self._store, options, self._progress, self._check)

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise _CancelledError
        if self._lost is not None:
            raise self._lost

    def _keep_alive(self) -> None:
        """Store progress every few seconds: without it the verification counts as killed."""
        while not self._over.wait(_ALIVE_EVERY_S):
            try:
                self._records.alive(self.current())
                if not self._records.is_mine(self._verification.id):
                    self._lost = FatalError("another verification of the pipeline has begun")
            except RetryableError as error:
                _log.warning("verification of %s: %s", self._name, redacted(str(error)))


class _CancelledError(DeltaForgeError):
    """It was asked to end."""


def start(
    open_store: Callable[[], AbstractContextManager[Store]],
    name: str,
    options: VerifyOptions,
    by: str,
) -> Verification:
    """Begin a verification in a thread of this process; return it as it begins.

    Args:
        open_store: opens the state store for as long as it runs.
        name: the pipeline's.
        options: how to verify.
        by: names the one who asks.

    Raises:
        VerificationRunningError: another one is running.
        SpecError: there is no such pipeline, or it cannot be verified.
    """
    begun: list[Verification | DeltaForgeError] = []
    ready = threading.Event()

    def work() -> None:
        try:
            with open_store() as store:
                run = VerificationRun(store, name, options, by)
                begun.append(run.begin())
                ready.set()
                run.run()
        except DeltaForgeError as error:
            if ready.is_set():
                _log.warning("verification of %s: %s", name, redacted(str(error)))
            begun.append(error)
        finally:
            ready.set()

    threading.Thread(target=work, daemon=True, name=f"verify {name}").start()
    ready.wait()
    if isinstance(begun[0], DeltaForgeError):
        raise begun[0]
    return begun[0]


def request_repair(store: Store, name: str, verification_id: str, by: str) -> RequestState:
    """Have the rows that a verification found to differ sent again.

    The running stream sends them to all sinks, at their place in its log: rows that are there as in
    a copy, others as deletes.

    Args:
        store: the state store.
        name: the pipeline's.
        verification_id: the last one of the pipeline.
        by: names the one who asks.

    Raises:
        SpecError: the pipeline is not running, or its differing rows are not known by their keys.
    """
    kept = Verifications(store, name).keys()
    if kept is None or kept.id != verification_id or not kept.keys:
        raise SpecError(
            "the keys of the rows that differ are not kept: a processor changes them, or another "
            "verification has begun since; verify again, or copy the tables (deltaforge snapshot)"
        )
    if not status(store, name).alive:
        raise SpecError(f"a repair joins the log of a running stream; start {name!r} first")
    selection = CopySelection(repairs=verification_id)
    return request(store, name, selection, f"repair:{verification_id}", by)


def repair(
    store: Store, name: str, found: Verification, by: str, is_over: Callable[[], bool]
) -> RequestState:
    """Repair what a verification found, as ``request_repair`` does, and wait for that.

    Args:
        store: the state store.
        name: the pipeline's.
        found: the verification, the last one of the pipeline.
        by: names the one who asks.
        is_over: called while waiting; True withdraws the request.

    Returns:
        How the request was done.

    Raises:
        RetryableError: it was withdrawn.
        FatalError: it failed.
        SpecError: as of ``request_repair``.
    """
    asked = request_repair(store, name, found.id, by)
    while not asked.settled:
        if is_over():
            cancel(store, name, asked.id, "withdrawn by the one who asked for it", by)
        time.sleep(_LOOK_S)
        asked = request_state(store, name, asked.id) or asked
    if asked.state == "cancelled":
        raise RetryableError(f"the repair was withdrawn: {asked.reason}")
    if asked.state == "failed":
        raise FatalError(f"the repair failed: {asked.reason}")
    return asked


def results(store: Store, name: str) -> dict[str, Any]:
    """Return the running verification of a pipeline, and the last results, newest first.

    Raises:
        SpecError: there is no such pipeline.
    """
    existing(store, name)
    records = Verifications(store, name)
    running = records.running()
    return {
        "running": None if running is None else answer(running),
        "results": [answer(result) for result in records.results()],
    }


def result(store: Store, name: str, verification_id: str) -> Verification | None:
    """Return one verification, running or kept; None if it is not known."""
    records = Verifications(store, name)
    running = records.running()
    found = [*([] if running is None else [running]), *records.results()]
    return next((each for each in found if each.id == verification_id), None)


def last_finished(store: Store, name: str) -> Verification | None:
    """Return the last verification that came to a result."""
    kept = Verifications(store, name).results()
    return next((each for each in kept if each.state == "finished"), None)


def answer(found: Verification) -> dict[str, Any]:
    """Return a verification in the shape of the REST API."""
    return {**found.model_dump(exclude={"v"}), "differences": found.differences}


def in_words(found: Verification) -> str:
    """Return what a verification found, in one line without keys."""
    if found.state != "finished":
        return found.state + (f": {found.reason}" if found.reason else "")
    counts: dict[str, int] = {}
    for sink in found.sinks:
        for table in sink.tables:
            for kind in KINDS:
                counts[kind] = counts.get(kind, 0) + getattr(table, kind)
    left_out = [sink.sink for sink in found.sinks if sink.reason is not None]
    tables = sum(table.reason is not None for sink in found.sinks for table in sink.tables)
    words = [f"{count} {kind}" for kind, count in counts.items() if count]
    words += [f"not compared: {', '.join(left_out)}"] if left_out else []
    words += [f"{tables} tables not compared"] if tables else []
    return f"{found.verdict}, {found.rows} rows read" + "".join(f", {word}" for word in words)


def _pipeline(store: Store, name: str, environment: Mapping[str, str]) -> Pipeline:
    """Return the applied document, expanded.

    Raises:
        SpecError: there is none, or its snapshot is not finished.
    """
    text = existing(store, name).document()
    if text is None:
        raise SpecError(f"pipeline {name!r} has no document in this state store; apply it")
    pipeline = load(text, environment)
    if pipeline.spec.source.snapshot.mode != "never" and not Snapshots(store, name).finished():
        raise SpecError(_SNAPSHOT.format(name=name))
    return pipeline
