"""What is true about a pipeline: what was asked, what its driver says, whether it still speaks.

Whether a driver lives is decided where it can be known at once: by the lock of its process, or by
the clock of the machine that it shares with us. Elsewhere only heartbeats show it, and only by the
time that passes here without one; see ``storage.records.heartbeats``.
"""

import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ConfigDict, Field

from airflow_provider_deltaforge.control.largest_tables import with_largest_tables
from airflow_provider_deltaforge.control.launching.contract import Backend, JobState, JobStatus
from airflow_provider_deltaforge.control.pipelines import existing, now_ms
from airflow_provider_deltaforge.control.supervise import DRAINED
from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError
from airflow_provider_deltaforge.storage import moments
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.control import (
    ALIVE_S,
    Control,
    ControlRecord,
    Progress,
)
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from airflow_provider_deltaforge.storage.records.heartbeats import HEARTBEATS, LastHeard
from airflow_provider_deltaforge.storage.records.stats import SinkProgress, Stats
from airflow_provider_deltaforge.storage.records.tables import StoppedTable, TableRecords

LOST_AFTER_S = ALIVE_S
"""A driver that was not heard for this long is not called running any more."""

START_PATIENCE_S = 120.0
"""How long a submitted driver may take to its first heartbeat."""

LISTEN_S = 5.0
"""How long to listen to a driver elsewhere whose last heartbeat bears a time of long ago, or one
that is still to come, before it is called lost at the first look."""

_RETRYABLE = RetryableError.error_class
_AHEAD_S = 2.0
_LISTEN_POLL_S = 0.1

UNKNOWN_JOB = JobStatus(JobState.UNKNOWN)

ENDED = frozenset({"stopped", "failed", "lost"})

_NOT_SHOWN = {
    *("batches", "transaction_splits", "source_reconnects", "last_commit_ms", "latency"),
    *("checkpoints", "batch_events", "batch_bytes", "data_drift", "has_ended", "count_gaps"),
    *("restarts_total", "pauses", "resumes", "heartbeat_at_ms", "host", "owner"),
}
"""What lanes count for each other, and metrics and benchmarks read."""


class PipelineStatus(Stats):
    """One pipeline as people and machines see it: what its driver counted, and how it is.

    ``status`` is one of ``pending`` (applied, never started), ``starting``, ``snapshotting``,
    ``running``, ``blocked``, ``paused``, ``stopped``, ``failed`` and ``lost`` (the driver went
    silent). ``desired`` is what was asked for; the two differ while a driver catches up. A sink
    that was well does not run on after its pipeline.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    tenant: str = ""
    source_id: str = ""
    status: str
    desired: str
    generation: int
    since_ms: int | None = None
    reason: str | None = None
    error_class: str | None = None
    heartbeat_age_s: float | None = None
    restarts: int = 0
    owner: str | None = None
    """Who supervises it; ``control.supervise.Supervisor`` reads what Airflow's tasks write."""
    restarts_total: int = 0
    """Of every generation; ``restarts`` are those of the present one."""
    pauses: int = 0
    resumes: int = 0
    heartbeat_at_ms: int = 0
    """By the driver's clock."""
    host: str = ""
    """The driver's."""
    handle: dict[str, Any] | None = None
    stopped_tables: dict[str, Any] = Field(default_factory=dict)
    """Tables whose rows are passed over, by full name: ``since_ms`` and ``reason``."""

    @property
    def is_ready(self) -> bool:
        """Return whether it does its work, or rests as asked; one that blocks later stays ready."""
        if self.status == "blocked":
            return self.has_run
        return self.status not in {"failed", "lost", "starting", "pending"}

    @property
    def alive(self) -> bool:
        """Return whether a driver works for this pipeline now."""
        return self.status not in ENDED and self.status != "pending"

    @property
    def words(self) -> str:
        """Return the status with its reason."""
        return f"{self.status}, {self.reason}" if self.reason else self.status

    def as_dict(self) -> dict[str, Any]:
        """Return the status as JSON-able data; ``dlq`` is empty where there is no queue."""
        shown = self.model_dump(exclude=_NOT_SHOWN)
        return shown if self.dlq.entries is not None else {**shown, "dlq": {}}

    def as_short_dict(self) -> dict[str, Any]:
        """Return the same with the tables of most events only, for Airflow's database."""
        return with_largest_tables(self.as_dict(), lambda table: sum(table["events"].values()))


def status(store: Store, name: str, backend: Backend | None = None) -> PipelineStatus:
    """Return the truth about one pipeline.

    Args:
        store: the state store.
        name: the pipeline.
        backend: asked whether the driver's process lives, where it can tell.

    Raises:
        SpecError: there is no such pipeline.
    """
    existing(store, name)
    _listen_to_doubtful(store, [name], backend)
    deleted = PipelineStatus(
        name=name, status="stopped", desired="stopped", generation=0, reason="deleted"
    )
    return _status(store, name, backend) or deleted


def statuses(store: Store, backend: Backend | None = None) -> list[PipelineStatus]:
    """Return every pipeline of the store, by name, but for those that are just made or deleted."""
    pipelines = Control.list_pipelines(store)
    _listen_to_doubtful(store, pipelines, backend)
    found = (_status(store, name, backend) for name in pipelines)
    return [present for present in found if present is not None]


def _status(store: Store, name: str, backend: Backend | None) -> PipelineStatus | None:
    control = Control(store, name)
    record = control.read()
    if record is None:
        return None
    progress, heard = control.listen()
    job = job_status(record, backend)
    waited_s = _waited_s(control, record)
    judged = judge_status(name, record, progress, now_ms(), job, heard, waited_s)
    judged = _with_sinks(judged, len(record.requests))
    judged = _with_dead_letters(judged, DeadLetterRecords(store, name).count())
    return _with_tables(judged, TableRecords(store, name).stopped())


def _listen_to_doubtful(store: Store, pipelines: Sequence[str], backend: Backend | None) -> None:
    """Wait for another heartbeat of drivers whose only one so far is doubtful."""
    until = HEARTBEATS.now() + LISTEN_S
    doubtful = [name for name in pipelines if _is_doubtful(store, name, backend)]
    while doubtful and HEARTBEATS.now() < until:
        time.sleep(_LISTEN_POLL_S)
        doubtful = [name for name in doubtful if _is_doubtful(store, name, backend)]


def _is_doubtful(store: Store, name: str, backend: Backend | None) -> bool:
    control = Control(store, name)
    progress, heard = control.listen()
    if progress is None or progress.status in {*ENDED, "starting"}:
        return False
    if heard.is_sure or heard.silence_s >= LISTEN_S or _is_plausible(progress, now_ms()):
        return False
    record = control.read()
    if record is None or progress.generation < record.generation:
        return False
    return job_status(record, backend).state is not JobState.ENDED


def _is_plausible(progress: Progress, now: int) -> bool:
    """Return whether a heartbeat bears a time of a moment ago; only a hint, of two clocks."""
    return -_AHEAD_S <= (now - progress.heartbeat_at_ms) / 1000 <= LOST_AFTER_S


def _waited_s(control: Control, record: ControlRecord) -> float:
    """Return for how long this process knows that the driver was started."""
    handle = _own_handle(record) or {}
    since_s = moments.since(str(handle.get("boot", "")), float(handle.get("submitted_s", 0)))
    if since_s is not None:
        return since_s
    if handle.get("host") == socket.gethostname() and handle.get("submitted_at_ms"):
        return max(0.0, (now_ms() - int(handle["submitted_at_ms"])) / 1000)
    start = (record.generation, handle.get("submitted_at_ms"), len(record.restarts))
    return HEARTBEATS.hear(control.address, "start", start, HEARTBEATS.now()).silence_s


def _with_sinks(judged: PipelineStatus, waiting: int) -> PipelineStatus:
    """Return which sinks the pipeline goes on without, and what waits for them."""
    words = {"behind": "behind", "catching_up": "catching up", "given_up": "given up"}
    found = [
        f"sink {name} {words[sink.status]}" + (f" ({sink.reason})" if sink.reason else "")
        for name, sink in judged.sinks.items()
        if sink.status in words
    ]
    if not found or not judged.alive or judged.reason:
        return judged
    late = any(sink.status in {"behind", "catching_up"} for sink in judged.sinks.values())
    waits = "; a snapshot waits until it has caught up" if waiting and late else ""
    return judged.model_copy(update={"reason": f"degraded, {'; '.join(found)}{waits}"})


def _with_tables(judged: PipelineStatus, stopped: Mapping[str, StoppedTable]) -> PipelineStatus:
    """Return which tables are left out; a pipeline that is well otherwise is degraded by them."""
    if not stopped:
        return judged
    names = ", ".join(sorted(stopped))
    count = f"{len(stopped)} table{'s' * (len(stopped) > 1)} stopped: {names}"
    degraded = f"degraded, {count}" if judged.alive else None
    tables = {
        name: {"since_ms": table.since_ms, "reason": table.reason}
        for name, table in stopped.items()
    }
    return judged.model_copy(update={"reason": judged.reason or degraded, "stopped_tables": tables})


def _with_dead_letters(judged: PipelineStatus, entries: int) -> PipelineStatus:
    """Return how many events are set aside; who empties the queue is not the driver."""
    if not entries and judged.dlq.max_entries is None:
        return judged
    dlq = judged.dlq.model_copy(update={"entries": entries})
    return judged.model_copy(update={"dlq": dlq})


def judge_status(
    name: str,
    record: ControlRecord,
    progress: Progress | None,
    now: int,
    job: JobStatus = UNKNOWN_JOB,
    heard: LastHeard = LastHeard(),  # noqa: B008 - frozen
    waited_s: float = 0.0,
) -> PipelineStatus:
    """Join the record and the driver's progress into one status.

    Args:
        name: the pipeline.
        record: what is wanted.
        progress: what the driver last wrote, of this or an earlier generation.
        now: milliseconds since the epoch, for words about times; nothing is decided by it alone.
        job: what the launch backend knows of the driver's process.
        heard: what this process knows of the driver's silence.
        waited_s: for how long a first heartbeat was waited for.
    """
    # The last words of a driver that was started again since are not the new one's.
    if progress is None or not has_spoken(record, progress):
        word, reason = _before_first_words(record, waited_s, job)
        return PipelineStatus(
            name=name,
            status=word,
            reason=reason,
            since_ms=record.updated_at_ms,
            **_recorded(record),
        )
    stamped_s = (now - progress.heartbeat_at_ms) / 1000
    word, reason = _judge_word(progress, heard, now, job)
    # What it says beside its store counts while it cannot write to it.
    lives = job.state is JobState.RUNNING and word not in {"stopped", "failed"}
    distress = job.distress if lives else None
    return PipelineStatus(
        **{**progress.fields(), "sinks": _sinks(progress, word)},
        **_recorded(record),
        name=name,
        status="blocked" if distress is not None else word,
        since_ms=distress.since_ms if distress is not None else progress.since_ms,
        reason=distress.reason if distress is not None else reason,
        error_class=_RETRYABLE if distress is not None else progress.error_class,
        heartbeat_age_s=heard.silence_s if heard.is_sure else max(heard.silence_s, stamped_s),
        heartbeat_at_ms=progress.heartbeat_at_ms,
        host=progress.host,
    )


_RECORDED = (
    "tenant", "source_id", "desired", "generation", "owner", "handle", "restarts_total", "pauses",
    "resumes",
)  # fmt: skip


def _recorded(record: ControlRecord) -> dict[str, Any]:
    """Return what a status says from the control record."""
    own = {name: getattr(record, name) for name in _RECORDED}
    return {**own, "restarts": len(record.restarts)}


def has_spoken(record: ControlRecord, progress: Progress) -> bool:
    """Return whether progress is of the driver that was started last."""
    if progress.generation < record.generation:
        return False
    after = (_own_handle(record) or {}).get("after")
    return after is None or [progress.epoch, progress.beat] > list(after)


def _before_first_words(
    record: ControlRecord, waited_s: float, job: JobStatus
) -> tuple[str, str | None]:
    if record.generation == 0:
        return "pending", "applied, never started"
    if record.desired == "stopped":
        return "stopped", None
    if job.state is JobState.ENDED and _own_handle(record):
        hint = job.detail or "read its log"
        return "lost", f"the driver ended before its first heartbeat; {hint}"
    if waited_s > START_PATIENCE_S:
        hint = job.detail or "read the driver's log"
        return "lost", f"no heartbeat within {waited_s:.0f} s of the start; {hint}"
    return "starting", job.detail


def _judge_word(
    progress: Progress, heard: LastHeard, now: int, job: JobStatus
) -> tuple[str, str | None]:
    if progress.status in ENDED:
        return progress.status, progress.reason
    if job.state is JobState.ENDED and job.exit_code == DRAINED:
        return "stopped", f"its driver is done; it was last {progress.status}"
    if job.state is JobState.ENDED:
        return "lost", f"the driver is gone; it was last {progress.status}"
    if progress.status == "paused" and job.state is JobState.RUNNING:
        return "paused", progress.reason  # A paused driver has no lane, so nobody beats.
    return _heard_word(progress, heard, now)


def _heard_word(progress: Progress, heard: LastHeard, now: int) -> tuple[str, str | None]:
    """Judge a driver by its heartbeats alone."""
    # A driver speaks once when it starts; then Spark places its lane, which is the one that beats.
    patience_s = START_PATIENCE_S if progress.status == "starting" else LOST_AFTER_S
    was = f"it was last {progress.status}"
    if heard.silence_s > patience_s:
        return "lost", f"no heartbeat for {heard.silence_s:.0f} s; {was}"
    if heard.is_sure or _is_plausible(progress, now):
        return progress.status, progress.reason
    stamped = (
        f"its last heartbeat bears a time {_ago(now - progress.heartbeat_at_ms)} by its own "
        f"clock, on {progress.host or 'another host'}"
    )
    if progress.status == "starting":
        return "starting", f"{stamped}; nothing was heard of it here yet"
    if heard.silence_s < 0.8 * LISTEN_S:
        return progress.status, progress.reason
    listened = f"no heartbeat in {heard.silence_s:.0f} s of listening"
    return "lost", f"{listened}, and {stamped}; {was}"


def _ago(ms: int) -> str:
    seconds = abs(ms) / 1000
    return f"{seconds:.0f} s ago" if ms >= 0 else f"{seconds:.0f} s ahead of ours"


def job_status(record: ControlRecord, backend: Backend | None) -> JobStatus:
    """Return what the backend knows of the driver's process."""
    handle = _own_handle(record)
    if backend is None or handle is None:
        return UNKNOWN_JOB
    try:
        return backend.status(handle)
    except (DeltaForgeError, OSError):
        return UNKNOWN_JOB


def _own_handle(record: ControlRecord) -> Mapping[str, Any] | None:
    """Return the handle; that of an earlier generation says nothing of the driver that starts."""
    handle = record.handle
    return handle if handle and handle.get("generation") == record.generation else None


def _sinks(progress: Progress, word: str) -> dict[str, SinkProgress]:
    """Return the sinks' words; one that was well does not run on after its pipeline."""
    if word not in ENDED and word not in {"starting", "paused"}:
        return progress.sinks
    ended_as = "stopped" if word in ENDED else word
    return {
        name: sink.model_copy(update={"status": ended_as})
        if sink.status == "running" or word == "stopped"
        else sink
        for name, sink in progress.sinks.items()
    }
