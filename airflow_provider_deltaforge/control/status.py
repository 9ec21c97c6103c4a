"""What is true about a pipeline: what was asked, what its driver says, whether it still speaks."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from airflow_provider_deltaforge.control.launch import Backend, JobState, JobStatus
from airflow_provider_deltaforge.control.pipelines import existing, now_ms
from airflow_provider_deltaforge.control.supervise import DRAINED
from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.control import Control, ControlRecord, Progress
from airflow_provider_deltaforge.storage.dead_letters import DeadLetters
from airflow_provider_deltaforge.storage.tables import StoppedTable, Tables

LOST_AFTER_S = 15.0
"""A driver that has not renewed its heartbeat for this long is not called running any more."""

START_PATIENCE_S = 120.0
"""How long a submitted driver may take to its first heartbeat."""

UNKNOWN_JOB = JobStatus(JobState.UNKNOWN)

ENDED = frozenset({"stopped", "failed", "lost"})


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """One pipeline as people and machines see it.

    ``status`` is one of ``pending`` (applied, never started), ``starting``, ``snapshotting``,
    ``running``, ``blocked``, ``paused``, ``stopped``, ``failed`` and ``lost`` (the driver went
    silent). ``desired`` is what was asked for; the two differ while a driver catches up.
    """

    name: str
    status: str
    desired: str
    generation: int
    since_ms: int | None = None
    reason: str | None = None
    error_class: str | None = None
    heartbeat_age_s: float | None = None
    lag_ms: int | None = None
    position: Mapping[str, Any] | None = None
    events: int = 0
    bytes: int = 0
    restarts: int = 0
    sinks: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, Any] = field(default_factory=dict)
    handle: Mapping[str, Any] | None = None
    stopped_tables: Mapping[str, Any] = field(default_factory=dict)
    """Tables whose rows are passed over, by full name: ``since_ms`` and ``reason``."""
    processors: Mapping[str, Any] = field(default_factory=dict)
    """By processor id: ``events_in``, ``events_out``, ``errors``, ``counts`` and ``latency``."""
    dlq: Mapping[str, Any] = field(default_factory=dict)
    """The dead-letter queue, if there is one: ``entries``, ``max_entries``, and counters."""

    @property
    def alive(self) -> bool:
        """Say whether a driver works for this pipeline now."""
        return self.status not in ENDED and self.status != "pending"

    @property
    def words(self) -> str:
        """Return the status with its reason."""
        return f"{self.status}, {self.reason}" if self.reason else self.status

    def as_dict(self) -> dict[str, Any]:
        """Return the status as JSON-able data."""
        return asdict(self)


def status(store: Store, name: str, backend: Backend | None = None) -> PipelineStatus:
    """Return the truth about one pipeline.

    Args:
        store: the state store.
        name: the pipeline.
        backend: asked whether the driver's process lives, where it can tell.

    Raises:
        SpecError: there is no such pipeline.
    """
    control = existing(store, name)
    record = control.read()
    if record is None:  # Deleted between the two reads.
        return PipelineStatus(name, "stopped", "stopped", 0, reason="deleted")
    progress = control.progress()
    judged = judge_status(name, record, progress, now_ms(), _job_status(record, backend))
    judged = _with_sinks(judged, len(record.requests))
    judged = _with_letters(judged, progress, DeadLetters(store, name).count())
    return _with_tables(judged, Tables(store, name).stopped())


def statuses(store: Store, backend: Backend | None = None) -> list[PipelineStatus]:
    """Return every pipeline of the store, by name."""
    return [status(store, name, backend) for name in Control.list_pipelines(store)]


def _with_sinks(judged: PipelineStatus, waiting: int) -> PipelineStatus:
    """Say which sinks the pipeline goes on without, and what waits for them."""
    words = {"behind": "behind", "catching_up": "catching up", "given_up": "given up"}
    found = [
        f"sink {name} {words[told['status']]}" + (f" ({told['reason']})" if told["reason"] else "")
        for name, told in judged.sinks.items()
        if told["status"] in words
    ]
    if not found or not judged.alive or judged.reason:
        return judged
    late = any(told["status"] in {"behind", "catching_up"} for told in judged.sinks.values())
    waits = "; a snapshot waits until it has caught up" if waiting and late else ""
    return replace(judged, reason=f"degraded, {'; '.join(found)}{waits}")


def _with_tables(judged: PipelineStatus, stopped: Mapping[str, StoppedTable]) -> PipelineStatus:
    """Say which tables are passed over; a pipeline that is well otherwise is degraded by them."""
    if not stopped:
        return judged
    names = ", ".join(sorted(stopped))
    count = f"{len(stopped)} table{'s' * (len(stopped) > 1)} stopped: {names}"
    degraded = f"degraded, {count}" if judged.alive else None
    return replace(
        judged,
        reason=judged.reason or degraded,
        stopped_tables={
            name: {"since_ms": told.since_ms, "reason": told.reason}
            for name, told in stopped.items()
        },
    )


def _with_letters(
    judged: PipelineStatus, progress: Progress | None, entries: int
) -> PipelineStatus:
    """Say how many events are set aside; who empties the queue is not the driver."""
    told = progress.extra.get("dlq") or {} if progress is not None else {}
    if not entries and "max_entries" not in told:
        return judged
    return replace(judged, dlq={"entries": entries, **told})


def judge_status(
    name: str,
    record: ControlRecord,
    progress: Progress | None,
    now: int,
    job: JobStatus = UNKNOWN_JOB,
) -> PipelineStatus:
    """Join the record and the driver's progress into one status.

    Args:
        name: the pipeline.
        record: what is wanted.
        progress: what the driver last wrote, of this or an earlier generation.
        now: milliseconds since the epoch.
        job: what the launch backend knows of the driver's process.
    """
    submitted_at_ms = int((_own_handle(record) or {}).get("submitted_at_ms", 0))
    spoke = progress is not None and progress.generation >= record.generation
    # The last words of a driver that was started again since are not the new one's.
    if progress is None or not spoke or progress.heartbeat_at_ms < submitted_at_ms:
        word, reason = _before_first_words(record, now, submitted_at_ms, job)
        return PipelineStatus(
            name,
            word,
            record.desired,
            record.generation,
            reason=reason,
            since_ms=record.updated_at_ms,
            restarts=len(record.restarts),
            handle=record.handle,
        )
    age_s = max(0.0, (now - progress.heartbeat_at_ms) / 1000)
    word, reason = _judge_word(progress, age_s, job)
    return PipelineStatus(
        name=name,
        status=word,
        desired=record.desired,
        generation=record.generation,
        since_ms=progress.since_ms,
        reason=reason,
        error_class=progress.error_class,
        heartbeat_age_s=age_s,
        lag_ms=progress.lag_ms,
        position=progress.position,
        events=progress.events,
        bytes=progress.bytes,
        restarts=len(record.restarts),
        sinks=_sinks(progress, word),
        tables=_plain(progress.tables),
        processors=progress.extra.get("processors") or {},
        handle=record.handle,
    )


def _before_first_words(
    record: ControlRecord, now: int, submitted_at_ms: int, job: JobStatus
) -> tuple[str, str | None]:
    if record.generation == 0:
        return "pending", "applied, never started"
    if record.desired == "stopped":
        return "stopped", None
    if job.state is JobState.ENDED and submitted_at_ms:
        return "lost", "the driver ended before its first heartbeat; read its log"
    waited_s = (now - (submitted_at_ms or record.updated_at_ms)) / 1000
    if waited_s > START_PATIENCE_S:
        return "lost", f"no heartbeat within {waited_s:.0f} s of the start; read the driver's log"
    return "starting", None


def _judge_word(progress: Progress, age_s: float, job: JobStatus) -> tuple[str, str | None]:
    if progress.status in ENDED:
        return progress.status, progress.reason
    if job.state is JobState.ENDED and job.exit_code == DRAINED:
        return "stopped", f"its driver is done; it was last {progress.status}"
    if job.state is JobState.ENDED:
        return "lost", f"the driver is gone; it was last {progress.status}"
    if progress.status == "paused" and job.state is JobState.RUNNING:
        return "paused", progress.reason  # A paused driver has no lane, so nobody beats.
    # A driver speaks once when it starts; then Spark places its lane, which is the one that beats.
    patience_s = START_PATIENCE_S if progress.status == "starting" else LOST_AFTER_S
    if age_s > patience_s:
        return "lost", f"no heartbeat for {age_s:.0f} s; it was last {progress.status}"
    return progress.status, progress.reason


def _job_status(record: ControlRecord, backend: Backend | None) -> JobStatus:
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


def _sinks(progress: Progress, word: str) -> dict[str, Any]:
    """Return the sinks' words; one that was well does not run on after its pipeline."""
    sinks = _plain(progress.sinks)
    if word in ENDED or word in {"starting", "paused"}:
        ended_as = "stopped" if word in ENDED else word
        for sink in sinks.values():
            if sink["status"] == "running" or word == "stopped":
                sink["status"] = ended_as
    return sinks


def _plain(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.model_dump() if hasattr(value, "model_dump") else value
        for key, value in entries.items()
    }
