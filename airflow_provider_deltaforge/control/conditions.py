"""Questions one can wait for, as plain data: is the snapshot finished, is the lag below a limit.

A condition is a mapping with a ``kind`` and its arguments, so that it travels between processes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_deltaforge.control import (
    data_drift,
    dead_letters,
    replays,
    snapshots,
    verification,
)
from airflow_provider_deltaforge.control.launching.contract import Backend, JobState
from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.control.retention import retention_left
from airflow_provider_deltaforge.control.status import PipelineStatus, status
from airflow_provider_deltaforge.errors import FatalError, RetryableError, SpecError
from airflow_provider_deltaforge.events.table_names import is_named
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterFilter
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from airflow_provider_deltaforge.storage.records.rewinds import Rewinds
from airflow_provider_deltaforge.telemetry.redaction import redacted

Condition = Mapping[str, Any]

_DRIFT_SHOWN = 10

STATUSES = frozenset(
    {
        *("pending", "starting", "snapshotting", "running", "blocked", "paused"),
        *("stopped", "failed", "lost"),
    }
)


@dataclass(frozen=True, slots=True)
class ConditionResult:
    """What one look found.

    ``met`` is True, False while it may still come, or None when it cannot come any more.
    """

    met: bool | None
    words: str
    value: Any = None

    @classmethod
    def yes(cls, words: str, value: Any = None) -> "ConditionResult":
        """It holds."""
        return cls(met=True, words=words, value=value)

    @classmethod
    def not_yet(cls, words: str) -> "ConditionResult":
        """It may still come."""
        return cls(met=False, words=words)

    @classmethod
    def never(cls, words: str) -> "ConditionResult":
        """It cannot come any more."""
        return cls(met=None, words=words)


@dataclass(frozen=True, slots=True)
class _Condition:
    store: Store
    pipeline: str
    backend: Backend | None
    condition: Condition
    environment: Callable[[], Mapping[str, str]]

    def status(self) -> PipelineStatus:
        return status(self.store, self.pipeline, self.backend)


def snapshot_finished(request: str | None = None) -> Condition:
    """Return the condition that the pipeline's own snapshot, or a requested copy, is finished."""
    return {"kind": "snapshot_finished", "request": request}


def lag_below(limit_ms: float) -> Condition:
    """Return the condition that the stream runs, and delivers events younger than ``limit_ms``."""
    return {"kind": "lag_below", "limit_ms": limit_ms}


def checkpoint_past(position: Mapping[str, Any], sink: str | None = None) -> Condition:
    """Return the condition that a sink (every one, when None) holds all up to a position."""
    return {"kind": "checkpoint_past", "position": dict(position), "sink": sink}


def head_of(store: Store, pipeline: str, environment: Mapping[str, str]) -> Mapping[str, Any]:
    """Return where the log of a pipeline's source ends now.

    Args:
        store: the state store, which holds the document.
        pipeline: its name.
        environment: the values of the document's variables.

    Raises:
        SpecError: there is no such pipeline, or a variable has no value.
        RetryableError: the source is away.
    """
    text = existing(store, pipeline).document() or ""
    position: Mapping[str, Any] = load(text, environment).spec.source.head()
    return position


def status_in(
    statuses: tuple[str, ...], failing: tuple[str, ...] = (), desired: str | None = None
) -> Condition:
    """Return the condition that the status is one of ``statuses``, and wanted is ``desired``.

    Args:
        statuses: see ``PipelineStatus.status``.
        failing: statuses from which it cannot come.
        desired: what the control record must still say; anything, when None.

    Raises:
        SpecError: there is no such status.
    """
    unknown = sorted({*statuses, *failing} - STATUSES)
    if unknown or not statuses:
        known = ", ".join(sorted(STATUSES))
        raise SpecError(f"no status is called {', '.join(unknown) or 'nothing'} (known: {known})")
    wanted = {"statuses": list(statuses), "failing": list(failing), "desired": desired}
    return {"kind": "status_in", **wanted}


def no_drift(tables: tuple[str, ...] = (), since_ms: int = 0) -> Condition:
    """Return the condition that no data drift was seen; once it was, it cannot hold any more.

    Args:
        tables: only of these, ``orders`` or ``shop.orders``; all when empty.
        since_ms: only what was seen since then, in ms since the epoch.
    """
    return {"kind": "no_drift", "tables": list(tables), "since_ms": since_ms}


def drift_seen(tables: tuple[str, ...] = (), since_ms: int = 0) -> Condition:
    """Return the condition that data drift was seen; see ``no_drift``."""
    return {"kind": "drift_seen", "tables": list(tables), "since_ms": since_ms}


def verified(since_ms: int = 0, *, incomplete: bool = False) -> Condition:
    """Return the condition that a verification found nothing that differs.

    Args:
        since_ms: only one that ended since then counts, in ms since the epoch.
        incomplete: one that could not compare everything counts, too.
    """
    return {"kind": "verified", "since_ms": since_ms, "incomplete": incomplete}


def rewound(sinks: Sequence[str], by: str) -> Condition:
    """Return the condition that sinks have caught up after a rewind.

    Args:
        sinks: their ids.
        by: who requested it; no other request has the same.
    """
    return {"kind": "rewound", "sinks": list(sinks), "by": by}


def dead_letters_within(
    at_most: int = 0, which: DeadLetterFilter = dead_letters.EVERY, *, awaits_more: bool = False
) -> Condition:
    """Return the condition that no more events than ``at_most`` are set aside.

    Args:
        at_most: the limit.
        which: only those that fit count.
        awaits_more: the opposite: wait until there are more.
    """
    found = {"at_most": at_most, "which": asdict(which), "awaits_more": awaits_more}
    return {"kind": "dead_letters", **found}


def replayed(ticket: str) -> Condition:
    """Return the condition that a replay of dead letters has ended, well or not."""
    return {"kind": "replayed", "ticket": ticket}


def retention_above(
    seconds: float | None, size: int | None, *, awaits_low: bool = False
) -> Condition:
    """Return the condition that the source keeps the undelivered log for long enough.

    Args:
        seconds: of a source that limits its log by time, as MySQL does.
        size: bytes, of a source that limits it by size, as PostgreSQL does.
        awaits_low: the opposite: wait until less is left.
    """
    limits = {"seconds": seconds, "size": size, "awaits_low": awaits_low}
    return {"kind": "retention", **limits}


def at_rest() -> Condition:
    """Return the condition that the pipeline is stopped and nothing of its driver lives."""
    return {"kind": "at_rest"}


def look(
    store: Store,
    pipeline: str,
    condition: Condition,
    backend: Backend | None = None,
    environment: Callable[[], Mapping[str, str]] = dict,
) -> ConditionResult:
    """Return whether a condition holds now.

    Args:
        store: the state store.
        pipeline: its name; one that was not applied yet may still come.
        condition: made by one of the functions above.
        backend: asked whether the driver's process lives, where it can tell.
        environment: returns the values of the document's variables, for conditions that ask the
            source.

    Raises:
        RetryableError: the store is away.
        SpecError: there is no such kind of condition.
    """
    kind = str(condition.get("kind"))
    if kind not in _KINDS:
        raise SpecError(f"there is no condition {kind!r} (known: {', '.join(_KINDS)})")
    if Control(store, pipeline).read() is None:
        known = ", ".join(Control.list_pipelines(store)) or "none yet"
        return ConditionResult.not_yet(f"there is no pipeline {pipeline!r} yet (known: {known})")
    try:
        return _KINDS[kind](_Condition(store, pipeline, backend, condition, environment))
    except (SpecError, FatalError) as error:
        return ConditionResult.never(str(error))


def _snapshot_finished(asked: _Condition) -> ConditionResult:
    if asked.condition["request"] is not None:
        return _request_finished(asked, asked.condition["request"])
    counts = snapshots.progress(asked.store, asked.pipeline)
    if snapshots.is_done(asked.store, asked.pipeline):
        return ConditionResult.yes("the snapshot is finished", counts and snapshots.short(counts))
    if counts is None:
        return ConditionResult.not_yet("no snapshot was begun yet")
    if counts["cancelled"]:
        return ConditionResult.not_yet(f"the last snapshot was cancelled: {counts['cancelled']}")
    return ConditionResult.not_yet(
        f"{counts['chunks_done']} of {counts['chunks']} chunks are copied"
    )


def _request_finished(asked: _Condition, request: str) -> ConditionResult:
    state = snapshots.request_state(asked.store, asked.pipeline, request)
    if state is None:
        return ConditionResult.not_yet(f"nobody asked for the copy {request!r} yet")
    if state.state == "done":
        return ConditionResult.yes(f"{state.rows} rows are copied", state.as_short_dict())
    if state.settled:
        return ConditionResult.never(f"the copy {request!r} was {state.state}: {state.reason}")
    return ConditionResult.not_yet(
        f"the copy {request!r} is {state.state}, {state.rows} rows so far"
    )


def _lag_below(asked: _Condition) -> ConditionResult:
    present, limit_ms = asked.status(), asked.condition["limit_ms"]
    if present.status != "running":
        return ConditionResult.not_yet(present.words)
    if present.lag_ms is None:
        return ConditionResult.not_yet("running, and nothing was delivered since its start")
    words = f"lag {present.lag_ms} ms, limit {limit_ms:.0f} ms"
    return (
        ConditionResult.yes(words, present.lag_ms)
        if present.lag_ms < limit_ms
        else ConditionResult.not_yet(words)
    )


def _checkpoint_past(asked: _Condition) -> ConditionResult:
    control = Control(asked.store, asked.pipeline)
    spec = load(control.document() or "", expand=False).spec
    target, sink = asked.condition["position"], asked.condition["sink"]
    sinks = [each.id for each in spec.sinks]
    if sink is not None and sink not in sinks:
        return ConditionResult.never(f"there is no sink {sink!r} (known: {', '.join(sinks)})")
    held = Checkpoints(asked.store, asked.pipeline, spec.source.id).load()
    behind = []
    for name in [sink] if sink is not None else sinks:
        try:
            if name not in held or not spec.source.covers(held[name], target):
                behind.append(name)
        except (KeyError, TypeError, ValueError) as error:
            return ConditionResult.never(f"{target} is not a position of this source: {error!r}")
    if behind:
        return ConditionResult.not_yet(f"behind the position: {', '.join(behind)}")
    return ConditionResult.yes("the position is durable", held)


def _status_in(asked: _Condition) -> ConditionResult:
    present, condition = asked.status(), asked.condition
    wanted = condition["desired"]
    if wanted is not None and present.desired != wanted:
        return ConditionResult.never(f"somebody asked for {present.desired!r} meanwhile")
    if present.status in condition["statuses"]:
        return ConditionResult.yes(present.words, present.as_short_dict())
    if present.status in condition["failing"]:
        return ConditionResult.never(present.words)
    return ConditionResult.not_yet(present.words)


def _at_rest(asked: _Condition) -> ConditionResult:
    present = asked.status()
    if present.desired != "stopped":
        return ConditionResult.never(f"somebody asked for {present.desired!r} meanwhile")
    runs = False
    if asked.backend is not None and present.handle is not None:
        runs = asked.backend.status(present.handle).state is JobState.RUNNING
    if present.alive or runs:
        return ConditionResult.not_yet(present.words)
    return ConditionResult.yes(present.words, present.as_short_dict())


def _no_drift(asked: _Condition) -> ConditionResult:
    drifted = _drifted(asked)
    if drifted:
        return ConditionResult.never(f"data drift: {_drift_words(drifted)}")
    return ConditionResult.yes("no data drift was seen", [])


def _drift_seen(asked: _Condition) -> ConditionResult:
    drifted = _drifted(asked)
    if drifted:
        return ConditionResult.yes(f"data drift: {_drift_words(drifted)}", drifted)
    return ConditionResult.not_yet("no data drift was seen")


def _drifted(asked: _Condition) -> list[dict[str, Any]]:
    """Return the tables that have drifted, of those that are asked for."""
    tables = data_drift.drift(asked.store, asked.pipeline, asked.condition["since_ms"])
    wanted = asked.condition["tables"]
    return [
        table
        for table in tables
        if table["has_drift"] and (not wanted or is_named(table["table"], wanted))
    ]


def _drift_words(drifted: Sequence[Mapping[str, Any]]) -> str:
    shown = "; ".join(data_drift.in_words(table) for table in drifted[:_DRIFT_SHOWN])
    more = len(drifted) - _DRIFT_SHOWN
    return shown + (f"; and {more} more tables" if more > 0 else "")


def _verified(asked: _Condition) -> ConditionResult:
    found = verification.last_finished(asked.store, asked.pipeline)
    if found is None or (found.finished_at_ms or 0) < asked.condition["since_ms"]:
        return ConditionResult.not_yet("no verification has ended since")
    words = f"verification {found.id}: {verification.in_words(found)}"
    passes = found.verdict == "equal" or (
        found.verdict == "incomplete" and asked.condition["incomplete"]
    )
    if not passes:
        return ConditionResult.never(words)
    return ConditionResult.yes(words, {"id": found.id, "verdict": found.verdict})


def _rewound(asked: _Condition) -> ConditionResult:
    by, left = asked.condition["by"], []
    # In this order: a request goes away with what begins the rewind.
    wishes = Gaps(asked.store, asked.pipeline).wishes()
    waiting = {wish.sink for wish in wishes if wish.wanted == "rewind" and wish.by == by}
    rewinds = Rewinds(asked.store, asked.pipeline).as_seen_by(by)
    present = asked.status()
    for sink in asked.condition["sinks"]:
        rewind = rewinds.get(sink)
        if sink in waiting:
            left.append(f"{sink} has not begun")
        elif rewind is None or rewind.by != by:
            whose = "" if rewind is None else f"; its last rewind is of {rewind.by}: {rewind.state}"
            return ConditionResult.never(
                f"sink {sink}: the request was withdrawn, or gave way to another{whose}"
            )
        elif rewind.state == "running":
            at = present.sinks[sink].position if sink in present.sinks else None
            left.append(f"{sink} is at {dict(at or rewind.to)}")
        elif rewind.state != "done":
            return ConditionResult.never(f"sink {sink}: {rewind.state}: {rewind.reason}")
    if left:
        state = "" if present.status == "running" else f"; the pipeline is {present.words}"
        return ConditionResult.not_yet(f"{', '.join(left)}{state}")
    done = {sink: rewinds[sink].model_dump() for sink in asked.condition["sinks"]}
    return ConditionResult.yes("the sinks have caught up", done)


def _dead_letters(asked: _Condition) -> ConditionResult:
    condition = asked.condition
    which = DeadLetterFilter(**condition["which"])
    count = dead_letters.count(asked.store, asked.pipeline, which)
    words = f"{count} events are set aside, limit {condition['at_most']}"
    if count <= condition["at_most"]:
        awaited = condition["awaits_more"]
        return ConditionResult.not_yet(words) if awaited else ConditionResult.yes(words, count)
    if condition["awaits_more"]:
        return ConditionResult.yes(words, count)
    return ConditionResult.never(words)


def _replayed(asked: _Condition) -> ConditionResult:
    replay = replays.replay(asked.store, asked.pipeline, asked.condition["ticket"])
    if replay is None:
        return ConditionResult.not_yet(f"no driver has begun; {asked.status().words}")
    words = f"{replay.state}, {replay.sent} sent"
    if not replay.settled:
        return ConditionResult.not_yet(words)
    return ConditionResult.yes(words, replay.model_dump(exclude={"v"}))


def _retention(asked: _Condition) -> ConditionResult:
    condition = asked.condition
    try:
        retention = retention_left(asked.store, asked.pipeline, asked.environment())
    except RetryableError as error:
        return ConditionResult.not_yet(f"unknown, looking again: {redacted(str(error))}")
    is_low, words = retention.against(condition["seconds"], condition["size"])
    if is_low is None:
        return ConditionResult.not_yet(words)
    if is_low is condition["awaits_low"]:
        return ConditionResult.yes(words, retention.left)
    return ConditionResult.not_yet(words) if not is_low else ConditionResult.never(words)


_KINDS: Mapping[str, Callable[[_Condition], ConditionResult]] = {
    "snapshot_finished": _snapshot_finished,
    "lag_below": _lag_below,
    "checkpoint_past": _checkpoint_past,
    "status_in": _status_in,
    "at_rest": _at_rest,
    "no_drift": _no_drift,
    "drift_seen": _drift_seen,
    "verified": _verified,
    "rewound": _rewound,
    "dead_letters": _dead_letters,
    "replayed": _replayed,
    "retention": _retention,
}
