"""Pipelines as things one can apply, pause, resume, stop and reset.

Everything goes through the state store: the caller may sit on another machine than the driver.
The record says what is wanted; what *is* comes from the driver's own progress and its heartbeat.
"""

import logging
import os
import time
from dataclasses import dataclass
from typing import Any

from airflow_provider_deltaforge.control.launching.contract import (
    Backend,
    Handle,
    JobState,
    happens,
)
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.spec.inline_secrets import withhold
from airflow_provider_deltaforge.spec.load import load, spec_hash
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Delete, Store
from airflow_provider_deltaforge.storage.records.checkpoints import (
    Checkpoints,
    begins_anew,
    why_source_is_refused,
)
from airflow_provider_deltaforge.storage.records.control import ALIVE_S, Control, ControlRecord
from airflow_provider_deltaforge.storage.records.fleets import fleet_name

STOP_GRACE_S = 30.0
_POLL_S = 0.2
_OF_POSITIONS = (
    names.CHECKPOINTS,
    names.CURSORS,
    names.GAPS,
    names.SNAPSHOTS,
    names.TABLES,
    names.VERIFICATIONS,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Applied:
    """A document that was checked and kept, and its pipeline's record."""

    name: str
    record: ControlRecord
    warnings: tuple[str, ...] = ()
    """Where it holds secrets itself, which are not kept; and why its driver would not start."""


def apply(store: Store, text: str) -> Applied:
    """Check a document, and keep it, unexpanded, as what its pipeline is to be.

    A running driver goes on with the document it was started with until the next ``start``. Secrets
    that the document holds itself are not kept; drivers find them in this process's environment.

    Raises:
        SpecError: the document is wrong, asks for what this release does not do, or names a
            source id that another pipeline holds.
    """
    pipeline = load(text, expand=False)
    pipeline.refuse_unbuilt()
    name = pipeline.metadata.name
    withheld = withhold(text, pipeline)
    refusal = why_source_is_refused(store, name, pipeline.spec.source.id)
    warnings = [*map(str, withheld.warnings), *([refusal] if refusal else [])]
    for warning in warnings:
        _log.warning("%s", warning)
    os.environ.update(withheld.values)  # For this process and the drivers that it starts.
    control = Control(store, name)
    stored = withheld.text
    tenant = pipeline.metadata.tenant
    record = control.apply(stored, spec_hash(stored), pipeline.spec.source.id, tenant)
    return Applied(name, record, tuple(warnings))


def awaits_start(store: Store, text: str) -> bool:
    """Return whether this very document is kept, and nothing has started it yet.

    Raises:
        SpecError: the document is wrong.
    """
    pipeline = load(text, expand=False)
    record = Control(store, pipeline.metadata.name).read()
    if record is None or record.generation:
        return False
    return record.spec_hash == spec_hash(withhold(text, pipeline).text)


def pause(store: Store, name: str) -> ControlRecord:
    """Ask the driver to deliver what it holds and then wait.

    Raises:
        SpecError: there is no such pipeline, or it is stopped.
    """
    return _want(store, name, "paused")


def resume(store: Store, name: str) -> ControlRecord:
    """Ask a paused driver to go on.

    Raises:
        SpecError: there is no such pipeline, or it is stopped: only ``start`` makes a driver.
    """
    return _want(store, name, "running")


def ask_to_stop(store: Store, name: str) -> ControlRecord:
    """Ask the driver to deliver what it holds and end; return without waiting.

    Raises:
        SpecError: there is no such pipeline.
    """
    return existing(store, name).update(lambda record: changed(record, desired="stopped"))


def stop(store: Store, name: str, backend: Backend, grace_s: float = STOP_GRACE_S) -> ControlRecord:
    """Ask the driver to end, wait ``grace_s``, then end it; return when it is gone.

    Raises:
        SpecError: there is no such pipeline.
        RetryableError: its driver runs where this process cannot end it, and did not end by
            itself.
    """
    return _await_end(store, ask_to_stop(store, name), name, backend, grace_s)


def ask_to_stop_if_owner(store: Store, name: str, owner: str) -> ControlRecord | None:
    """Ask the driver to end if ``owner`` still supervises it; return the record if it did.

    In one swap: a newer supervisor that adopted the driver wrote its own token, and its stream
    goes on.
    """
    if Control(store, name).read() is None:
        return None

    def change(record: ControlRecord) -> ControlRecord:
        return changed(record, desired="stopped") if record.owner == owner else record

    record = Control(store, name).update(change)
    return record if record.owner == owner else None


def stop_if_owner(store: Store, name: str, backend: Backend, owner: str) -> bool:
    """Stop the pipeline if ``owner`` still supervises it; return whether it did."""
    record = ask_to_stop_if_owner(store, name, owner)
    if record is None:
        return False
    _await_end(store, record, name, backend, STOP_GRACE_S)
    return True


def reset_checkpoint(
    store: Store, name: str, *, confirm: str, backend: Backend | None = None
) -> None:
    """Forget every position and snapshot of a stopped pipeline, so that it starts as if new.

    Args:
        store: the state store.
        name: the pipeline.
        confirm: must repeat the pipeline's name.
        backend: asked whether a driver that spoke a moment ago was ended since.

    Raises:
        SpecError: it is not stopped, or the confirmation differs.
        RetryableError: it was asked to stop, and its driver may still be there.
    """
    control = existing(store, name)
    if confirm != name:
        raise SpecError(f"to reset the checkpoints of {name!r}, confirm with its name")
    record = control.read()
    if record is None or record.desired != "stopped":
        raise SpecError(f"pipeline {name!r} is not stopped; stop it before resetting checkpoints")
    if not _has_ended(record, backend) and still_speaks(control):
        raise RetryableError(
            f"pipeline {name!r} was asked to stop, and its driver spoke a moment ago; wait until "
            "its status is stopped or lost, then reset again"
        )
    # All at once: a finished snapshot without its positions would let the stream begin at the head
    # of the log. Fenced before it is looked at, so that a driver nobody saw can add nothing.
    fence = control.take_epoch("reset")
    owned = [
        Delete(namespace, key)
        for namespace in _OF_POSITIONS
        for key, _ in store.items(namespace, f"{name}/")
    ]
    store.transact([*owned, begins_anew(name)], fence)


def checkpoints(store: Store, name: str) -> list[dict[str, Any]]:
    """Return the position of each sink, and how long ago it was stored, in seconds.

    Raises:
        SpecError: there is no such pipeline.
    """
    record = existing(store, name).read()
    source_id = record.source_id if record is not None else ""
    found = Checkpoints(store, name, source_id).records()
    return [
        {
            "sink_id": sink,
            "position": checkpoint.position,
            "age_seconds": max(0.0, (now_ms() - checkpoint.updated_at_ms) / 1000),
        }
        for sink, checkpoint in sorted(found.items())
    ]


def delete(store: Store, name: str, backend: Backend, grace_s: float = STOP_GRACE_S) -> None:
    """Stop a pipeline, wait until its driver is gone, and forget everything about it.

    Killed in between, it is stopped, and a second call forgets it.

    Raises:
        SpecError: there is no such pipeline.
        RetryableError: its driver runs where this process cannot end it, and did not end by
            itself; the pipeline is stopped then.
    """
    control = Control(store, name)
    if control.read() is not None or control.document() is None:
        stop(store, name, backend, grace_s)
    control.delete()  # Also what is left of one whose first `apply` was killed.


def existing(store: Store, name: str) -> Control:
    """Return the control of a pipeline that was applied.

    Raises:
        SpecError: there is none of that name.
    """
    control = Control(store, name)
    if control.read() is None:
        known = ", ".join(Control.list_pipelines(store)) or "none yet"
        raise SpecError(f"there is no pipeline {name!r} in this state store (known: {known})")
    return control


def still_speaks(control: Control) -> bool:
    """Return whether a driver is heard; on another machine's, after listening for a while."""
    until = time.monotonic() + ALIVE_S + 1
    while (is_heard := _is_heard(control)) is None and time.monotonic() < until:
        time.sleep(_POLL_S)
    return is_heard is not False


def with_drivers(store: Store) -> list[str]:
    """Return the pipelines whose drivers are heard, after listening for a while where need be."""
    controls = [Control(store, name) for name in Control.list_pipelines(store)]
    until = time.monotonic() + ALIVE_S + 1
    while True:
        heard = {control.pipeline: _is_heard(control) for control in controls}
        loud = [name for name, is_heard in heard.items() if is_heard]
        unclear = [name for name, is_heard in heard.items() if is_heard is None]
        if loud or not unclear or time.monotonic() >= until:
            return loud or unclear
        time.sleep(_POLL_S)


def _is_heard(control: Control) -> bool | None:
    """Return whether a driver is heard; None while nobody knows yet."""
    progress, heard = control.listen()
    if progress is None or progress.status in ("stopped", "failed"):
        return False
    if heard.silence_s >= ALIVE_S:
        return False
    return True if heard.is_sure else None


def now_ms() -> int:
    """Return milliseconds since the epoch."""
    return int(time.time() * 1000)


def changed(record: ControlRecord, **changes: Any) -> ControlRecord:
    """Return the record with some fields changed."""
    return record.model_copy(update=changes)


def end_driver(store: Store, name: str, backend: Backend, handle: Handle, grace_s: float) -> None:
    """Wait for a driver that was asked to end; end it where we can.

    Raises:
        RetryableError: it runs elsewhere and did not end by itself.
    """
    if backend.status(handle).state is not JobState.UNKNOWN:
        backend.stop(handle, grace_s)
        return
    _wait_for_silence(Control(store, name), grace_s, f"on {handle.get('host')}")


def _want(store: Store, name: str, desired: str) -> ControlRecord:
    if fleet_name(name) is not None:
        raise SpecError(f"{name!r} is a fleet: pause and resume its pipelines, each by its name")

    def change(record: ControlRecord) -> ControlRecord:
        if record.desired == "stopped":
            raise SpecError(f"pipeline {name!r} is stopped; start it with `deltaforge run`")
        counter = "pauses" if desired == "paused" else "resumes"
        more = {counter: getattr(record, counter) + 1} if record.desired != desired else {}
        return changed(record, desired=desired, **more)

    return existing(store, name).update(change)


def _await_end(
    store: Store, record: ControlRecord, name: str, backend: Backend, grace_s: float
) -> ControlRecord:
    if record.handle is not None:
        end_driver(store, name, backend, record.handle, grace_s)
    else:
        _wait_for_silence(Control(store, name), grace_s, "inside another process")
    return record


def _has_ended(record: ControlRecord, backend: Backend | None) -> bool:
    """Return whether the driver of the record's generation is known to be gone."""
    handle = record.handle
    if backend is None or handle is None or handle.get("generation") != record.generation:
        return False
    return backend.status(handle).state is JobState.ENDED


def _wait_for_silence(control: Control, grace_s: float, place: str) -> None:
    if not happens(lambda: not control.alive(), grace_s, _POLL_S):
        raise RetryableError(
            f"the driver of {control.pipeline!r} runs {place} and has not ended within "
            f"{grace_s:.0f} s; stop it there"
        )
