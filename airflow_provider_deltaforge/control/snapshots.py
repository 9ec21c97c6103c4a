"""Snapshots as things one can ask for, look at and withdraw.

The pipeline's own snapshot is a job, or the first thing its stream's driver does. Every other copy
is a *request* in the control record: the driver that runs serves it, and goes on streaming; without
a driver a snapshot job is started, which serves every request and ends.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from airflow_provider_deltaforge.control import starting
from airflow_provider_deltaforge.control.largest_tables import with_largest_tables
from airflow_provider_deltaforge.control.launching.contract import Backend, LaunchSpec
from airflow_provider_deltaforge.control.pipelines import changed, existing, now_ms
from airflow_provider_deltaforge.control.starting import REQUESTS_ONLY, SNAPSHOT_SCRIPT
from airflow_provider_deltaforge.control.status import START_PATIENCE_S, PipelineStatus, status
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.table_names import split_names
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import ControlRecord
from airflow_provider_deltaforge.storage.records.heartbeats import HEARTBEATS
from airflow_provider_deltaforge.storage.records.requests import (
    SnapshotRequest,
    SnapshotResult,
    SnapshotResults,
    withdrawn,
)
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots

SCRIPT = SNAPSHOT_SCRIPT

_POLL_S, _SPARE_S = 0.5, 5.0

NOT_DUE = (
    "pipeline {name!r} is streaming, so its initial snapshot is over or was never wanted; ask for "
    "a copy beside the stream: `deltaforge snapshot FILE --again` or `--tables`, or the operator's "
    "mode 'always' or its `tables`"
)


@dataclass(frozen=True, slots=True)
class CopySelection:
    """What to copy: everything captured, or some tables, or some rows of one table.

    Or the rows that a verification (``repairs``) found to differ.
    """

    tables: tuple[str, ...] = ()
    where: str | None = None
    repairs: str | None = None

    def __post_init__(self) -> None:
        if self.where is not None and len(self.tables) != 1:
            raise SpecError(
                "where: a snapshot with a condition needs exactly one table in `tables`, got "
                f"{', '.join(self.tables) or 'none'}"
            )

    @classmethod
    def of(cls, tables: Any, where: str | None) -> "CopySelection":
        """Return what a person wrote: a list or comma-separated names, and perhaps a condition.

        Raises:
            SpecError: something else was written, or a condition without exactly one table.
        """
        parts = tables.split(",") if isinstance(tables, str) else list(tables or ())
        if not all(isinstance(part, str) for part in parts):
            raise SpecError(f"tables: names of tables are needed, got {tables!r}")
        names = split_names(parts)
        if parts and not names and not isinstance(tables, str):
            raise SpecError("tables: holds no name; leave the list empty to copy everything")
        return cls(names, (where or "").strip() or None)


@dataclass(frozen=True, slots=True)
class RequestState:
    """One request as people and machines see it.

    ``state`` is ``pending``, ``snapshotting``, ``done``, ``failed`` or ``cancelled``.
    """

    id: str
    state: str
    tables: tuple[str, ...]
    where: str | None
    by: str
    requested_at_ms: int
    started_at_ms: int | None = None
    finished_at_ms: int | None = None
    reason: str | None = None
    error_class: str | None = None
    copied: Mapping[str, Any] = field(default_factory=dict)
    """By table: ``chunks`` and ``rows`` copied; while it runs also those planned."""
    ticket: str | None = None
    """Ours, never used twice, while ``id`` may be asked again."""
    repairs: str | None = None
    """The verification whose differing rows are copied, and no others."""

    @property
    def settled(self) -> bool:
        """Return whether nothing more will happen to it."""
        return self.state in ("done", "failed", "cancelled")

    @property
    def rows(self) -> int:
        """Return the rows copied in all tables."""
        return sum(table["rows"] for table in self.copied.values())

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON-able data."""
        return {**asdict(self), "tables": list(self.tables), "rows": self.rows}

    def as_short_dict(self) -> dict[str, Any]:
        """Return the same with the tables of most rows only, for Airflow's database."""
        return with_largest_tables(self.as_dict(), _rows_of, "copied")


def request(store: Store, name: str, wish: CopySelection, request_id: str, by: str) -> RequestState:
    """Ask for a copy. An id that is pending with the same wish is adopted, not asked twice.

    A finished id that is asked again is a new copy. One that is pending with another wish is
    withdrawn and asked for anew, at the end of the line.

    Args:
        store: the state store.
        name: the pipeline.
        wish: what to copy.
        request_id: the asker's name for it, the same when the asker tries again.
        by: the asker's token, which ``cancel`` compares.

    Raises:
        SpecError: there is no such pipeline.
    """
    results = SnapshotResults(store, name)
    new = SnapshotRequest(
        id=request_id,
        tables=list(wish.tables),
        where=wish.where,
        repairs=wish.repairs,
        requested_at_ms=now_ms(),
        by=by,
    )

    def place(record: ControlRecord) -> ControlRecord:
        kept = []
        adopted = False
        for known in record.requests:
            if not _open(known, request_id, results):
                kept.append(known)
            elif known.wish == new.wish:
                adopted = True
                kept.append(known.model_copy(update={"by": by}))
            else:
                reason = "asked again with another wish"
                kept.append(known.model_copy(update={"cancelled": reason}))
        return changed(record, requests=kept if adopted else [*kept, new])

    record = existing(store, name).update(place)
    placed = next(known for known in reversed(record.requests) if known.id == request_id)
    return _state(store, name, placed)


def request_state(store: Store, name: str, request_id: str) -> RequestState | None:
    """Return how a request stands, or None when it is unknown or long forgotten."""
    pending = [known for known in _pending(store, name) if known.id == request_id]
    if pending:
        return _state(store, name, pending[-1])
    result = SnapshotResults(store, name).latest(request_id)
    return _settled(result) if result is not None else None


def requests(store: Store, name: str) -> list[RequestState]:
    """Return the latest requests that ended, oldest first, and then the pending ones in order."""
    pending = _pending(store, name)
    tickets = {known.ticket for known in pending}
    ended = [
        result for result in SnapshotResults(store, name).all() if result.ticket not in tickets
    ]
    return [*map(_settled, ended), *(_state(store, name, known) for known in pending)]


def cancel(store: Store, name: str, request_id: str, reason: str, by: str | None = None) -> bool:
    """Withdraw a pending request; one that is being served ends at the next chunk.

    Args:
        store: the state store.
        name: the pipeline.
        request_id: which one.
        reason: why, for its result.
        by: withdraw it only while this asker holds it.

    Returns:
        Whether there was something to withdraw.
    """
    results = SnapshotResults(store, name)
    found = False

    def withdraw(record: ControlRecord) -> ControlRecord:
        nonlocal found
        kept = withdrawn(
            record.requests,
            reason,
            lambda known: _open(known, request_id, results) and by in (None, known.by),
        )
        found = kept != record.requests
        return changed(record, requests=kept)

    existing(store, name).update(withdraw)
    return found


def serve(
    store: Store, job: LaunchSpec, backend: Backend, owner: str, *, force: bool = False
) -> starting.Started | None:
    """Start a snapshot job for the pending requests, unless a driver is there to serve them.

    The job serves every request and ends; it never streams. ``force`` replaces a dead stream also
    when its own supervisor may be about to start it again.

    Returns:
        The job; None when a driver is there, or is its own supervisor's to restart, or when the
        pipeline is paused: then its requests wait, too.

    Raises:
        RetryableError: somebody else started a driver at the same moment.
    """
    present = _outlasted(store, job, backend) if force else status(store, job.pipeline, backend)
    if present.alive or present.desired == "paused" or (starting.comes_back(present) and not force):
        return None
    job = replace(job, script=SCRIPT, arguments=(REQUESTS_ONLY,))
    return starting.start(store, job, backend, owner)


def start(
    store: Store, job: LaunchSpec, backend: Backend, owner: str, *, force: bool = False
) -> starting.Started | None:
    """Start the job of the pipeline's own snapshot, or adopt the one that runs.

    Returns:
        The job; None when a stream's driver is there that may still be about to take it, or,
        without ``force``, when it is its own supervisor's to restart.

    Raises:
        SpecError: the pipeline streams already, so its own snapshot is over or was never wanted.
        RetryableError: somebody else started a driver at the same moment.
    """
    present = _outlasted(store, job, backend) if force else status(store, job.pipeline, backend)
    ours = (present.handle or {}).get("script") == SCRIPT
    if ours or not (present.alive or (starting.comes_back(present) and not force)):
        return starting.start(store, job, backend, owner)
    if present.status == "running":
        raise SpecError(NOT_DUE.format(name=job.pipeline))
    return None


def _outlasted(store: Store, job: LaunchSpec, backend: Backend) -> PipelineStatus:
    """Return the status once a driver that starts has spoken, or had the time to.

    Whoever waited for it was another process: what that has heard, or not, this one has not.
    """
    until = HEARTBEATS.now() + START_PATIENCE_S + _SPARE_S
    while (present := status(store, job.pipeline, backend)).status == "starting":
        if HEARTBEATS.now() >= until:
            break
        time.sleep(_POLL_S)
    return present


def is_done(store: Store, name: str) -> bool:
    """Return whether the pipeline's own snapshot was finished at any time."""
    return Snapshots(store, name).finished()


def progress(store: Store, name: str) -> Mapping[str, Any] | None:
    """Return chunks and rows done by table of the pipeline's own snapshot; None before it."""
    records = Snapshots(store, name)
    run = records.current()
    return records.progress(run) if run is not None else None


def short(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts of a copy with the tables of most rows only, for Airflow's database."""
    return with_largest_tables(counts, _rows_of) if counts else {}


def running_copy(store: Store, name: str) -> Mapping[str, Any] | None:
    """Return how far the copy is that was begun last, its own or one on request; None: none is."""
    progress = Snapshots(store, name).progress()
    if progress is None or progress["finished"] or progress["cancelled"]:
        return None
    return progress


def _rows_of(table: Mapping[str, Any]) -> int:
    return int(table["rows"])


def _open(known: SnapshotRequest, request_id: str, results: SnapshotResults) -> bool:
    """Return whether a request of the record has this id and is still to be served."""
    mine = known.id == request_id and known.cancelled is None
    return mine and results.of(known.ticket) is None


def _pending(store: Store, name: str) -> list[SnapshotRequest]:
    record = existing(store, name).read()
    return record.requests if record is not None else []


def _state(store: Store, name: str, known: SnapshotRequest) -> RequestState:
    result = SnapshotResults(store, name).of(known.ticket)
    if result is not None:
        return _settled(result)
    base = RequestState(
        known.id,
        "pending",
        tuple(known.tables),
        known.where,
        known.by,
        known.requested_at_ms,
        ticket=known.ticket,
        repairs=known.repairs,
    )
    if known.cancelled is not None:
        return replace(base, state="cancelled", reason=known.cancelled)
    records = Snapshots(store, name)
    run = records.requested()
    if run is None or run.ticket != known.ticket:
        return base
    counts = records.progress(run) or {"tables": {}}
    return replace(
        base, state="snapshotting", started_at_ms=run.started_at_ms, copied=counts["tables"]
    )


def _settled(result: SnapshotResult) -> RequestState:
    return RequestState(
        result.id,
        result.state,
        tuple(result.wish["tables"]),
        result.wish["where"],
        result.by,
        result.requested_at_ms,
        result.started_at_ms,
        result.finished_at_ms,
        result.reason,
        result.error_class,
        result.tables,
        result.ticket,
        result.wish.get("repairs"),
    )


def why_not_due(store: Store, name: str, *, expand: bool = False) -> str | None:
    """Return why the applied document has no snapshot to take; None when its driver must decide.

    Args:
        store: the state store.
        name: the pipeline.
        expand: this process has its driver's environment. Without it the document is read
            unexpanded, so a mode that comes from a variable counts with its default.

    Raises:
        SpecError: there is no such pipeline, or its document cannot be expanded here.
    """
    source = load(existing(store, name).document() or "", expand=expand).spec.source
    if source.snapshot.mode == "never":
        return "its snapshot mode is never, or there is no `snapshot` block"
    if source.snapshot.mode == "initial" and Checkpoints(store, name, source.id).load():
        return "its stream has begun before, and its sinks have checkpoints"
    return None


def found_nothing(store: Store, name: str, generation: int) -> bool:
    """Return whether the job of a generation has ended by itself without anything to take."""
    run = Snapshots(store, name).current()
    progress = existing(store, name).progress()
    stopped = (generation, "stopped")
    ended = progress is not None and (progress.generation, progress.status) == stopped
    return ended and (run is None or run.finished_at_ms is not None)
