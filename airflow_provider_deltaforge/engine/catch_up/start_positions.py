"""Where each sink of a pipeline stands when a lane opens the log, and where the lane begins."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.engine.base.required_sinks import RequiredSinks
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.errors import PositionLostError, SpecError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sinks.contract import Sink
from airflow_provider_deltaforge.sources.contract import Source
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Delete, Store, Write
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.gaps import Gap, Gaps
from airflow_provider_deltaforge.storage.records.rewinds import Rewind, Rewinds
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartPositions:
    """The sinks of a pipeline, by where they stand.

    Attributes:
        known: the checkpoint of every sink that goes on, also of those that begin now.
        start: where the lane begins; None before the first run.
        behind: sinks that stand before that.
        fresh: sinks that begin now, and are given nothing from before their place.
        given_up: sinks that are not waited for.
        rewinds: of sinks that get the log again, and are not waited for, either.
        writes: what is to be stored before the log is read.
    """

    known: Mapping[str, Position]
    start: Position | None
    behind: Sequence[str] = ()
    fresh: Sequence[str] = ()
    given_up: Mapping[str, Gap] = field(default_factory=dict)
    rewinds: Mapping[str, Rewind] = field(default_factory=dict)
    writes: Sequence[Write] = ()


def find_start_positions(store: Store, pipeline: Pipeline, policy: RequiredSinks) -> StartPositions:
    """Look at the checkpoints; sinks without one begin where the document says.

    Raises:
        SpecError: a sink is to begin where the log cannot be read any more, or is needed although
            it was given up.
        PositionLostError: one that is needed has lost what it held.
    """
    source, sinks = pipeline.spec.source, pipeline.spec.sinks
    checkpoints = Checkpoints(store, pipeline.name, source.id)
    gaps, rewinds = Gaps(store, pipeline.name), Rewinds(store, pipeline.name)
    stored = checkpoints.load()
    ids = [sink.id for sink in sinks]
    removed = [name for name in stored if name not in ids]
    open_gaps = gaps.open()
    given_up = {name: gap for name, gap in open_gaps.items() if name in ids and name in stored}
    resumed = {wish.sink for wish in gaps.wishes() if wish.wanted == "resume"}
    _refuse(pipeline, policy.lacks(ids, given_up.keys() - resumed), given_up)
    known = {name: stored[name] for name in ids if name in stored and name not in given_up}
    writes: list[Write] = [
        write for name in removed for write in _removed(checkpoints, gaps, rewinds, name)
    ]
    # Where none goes on, the former ones say how far the log was delivered. One that was given up
    # says it only where all were: what it lacks was delivered, and may be gone from the log.
    healthy = [at for name, at in stored.items() if name not in open_gaps]
    goes_on = list(known.values()) or healthy
    base = source.earliest(goes_on or list(stored.values()))
    if not goes_on:
        base = _furthest(source, [*([base] if base else ()), *_read_alone(rewinds, open_gaps)])
    if base is None:
        return StartPositions(known, None, writes=writes)
    for sink in sinks:
        if sink.id not in stored:
            known[sink.id] = _beginning(sink, source, base)
            writes.append(checkpoints.put(sink.id, known[sink.id]))
    running = {name: rewind for name, rewind in rewinds.running().items() if name in known}
    start = _lane_start(source, policy, known, running) or base  # Of sinks that all were given up.
    behind = [n for n, at in known.items() if _is_behind(source, at, start, running.get(n))]
    writes += [rewinds.end(rewind) for name, rewind in running.items() if name not in behind]
    running = {name: rewind for name, rewind in running.items() if name in behind}
    fresh = [name for name in known if name not in stored]
    return StartPositions(known, start, behind, fresh, given_up, running, writes)


def resume_sinks(context: TaskContext) -> None:
    """Resume sinks that were given up, as somebody asked, where the next lane begins.

    Raises:
        SpecError, PositionLostError: as ``find_start_positions`` does.
        RetryableError: source or store are away.
    """
    store, pipeline = context.store, context.pipeline
    gaps = Gaps(store, pipeline.name)
    if not (wishes := gaps.resumes()):
        return
    checkpoints = Checkpoints(store, pipeline.name, pipeline.spec.source.id)
    checkpoints.load()
    start = find_start_positions(store, pipeline, RequiredSinks.of(pipeline.spec)).start
    given_up, writes = gaps.open(), []
    for wish in wishes:
        gap = given_up[wish.sink]
        if (position := gap.goes_on or start) is None:
            continue
        put = checkpoints.put(wish.sink, position, begins=True)
        writes += [gaps.close(gap, position), put, *gaps.granted(wish)]
        log_resumed(gap, position)
    store.transact(writes, context.fence)
    reach(CrashPoint.SINK_RESUMED)


def log_resumed(gap: Gap, position: Position) -> None:
    """Log what a sink that goes on lacks for good."""
    text = "sink %s goes on at %s; it lacks what lies between %s and there"
    _log.warning(text, gap.sink, dict(position), gap.start)


def lagging(store: Store, pipeline: Pipeline) -> list[str]:
    """Return the sinks that have not caught up; those that were given up are none."""
    source, sinks = pipeline.spec.source, pipeline.spec.sinks
    given_up = Gaps(store, pipeline.name).open()
    stored = Checkpoints(store, pipeline.name, source.id).load()
    known = {s.id: stored[s.id] for s in sinks if s.id in stored and s.id not in given_up}
    running = {
        n: rewind for n, rewind in Rewinds(store, pipeline.name).running().items() if n in known
    }
    start = _lane_start(source, RequiredSinks.of(pipeline.spec), known, running)
    if start is None:
        return []
    return [n for n, at in known.items() if _is_behind(source, at, start, running.get(n))]


def show_lagging(store: Store, pipeline: Pipeline, stats: LaneStats) -> None:
    """Show who does not go with the others, before the first word of a lane."""
    behind = lagging(store, pipeline)
    for name in behind:
        stats.set_status(name, "behind")
    ids = {sink.id for sink in pipeline.spec.sinks}
    given_up = {n: gap for n, gap in Gaps(store, pipeline.name).open().items() if n in ids}
    for name, gap in given_up.items():
        stats.given_up(name, gap.since_ms, gap.why)
    absent = Rewinds(store, pipeline.name).running().keys() & set(behind)
    left = len(ids - absent - given_up.keys())
    stats.policy = RequiredSinks.of(pipeline.spec).without(absent, left)


def copied_before(context: TaskContext) -> Position | None:
    """Return where the log was when rows were first copied that nothing has streamed since.

    A request may be served by a job before a pipeline streams. What has changed in its rows since
    then is in the log alone.
    """
    run = Snapshots(context.store, context.pipeline.name).requested()
    if run is None or run.source_id != context.pipeline.spec.source.id:
        return None
    return run.start_position


def beginning(context: TaskContext) -> Position:
    """Return where a new stream begins.

    Raises:
        RetryableError: source or store are away.
    """
    source: Source = context.pipeline.spec.source
    at = copied_before(context)
    if at is not None:
        try:
            source.reach(at)
        except PositionLostError as error:
            _log.warning("rows that were copied before may be out of date: %s", error)
        else:
            return at
    return source.beginning()


def _lane_start(
    source: Source,
    policy: RequiredSinks,
    known: Mapping[str, Position],
    rewinds: Mapping[str, Rewind],
) -> Position | None:
    """Return where a lane begins: it does not wait for sinks that get the log again.

    If every sink does, it goes on where the last lane had come to.
    """
    going = {name: at for name, at in known.items() if name not in rewinds}
    if going:
        return policy.without(rewinds.keys(), len(going)).start(source, going)
    return _furthest(source, [at for rewind in rewinds.values() if (at := rewind.lane_at)])


def _read_alone(rewinds: Rewinds, gaps: Mapping[str, Gap]) -> list[Position]:
    """Return how far the log was read beside rewinds in which their sinks were given up.

    Those sinks lack what lies before it, and the source may have forgotten that.
    """
    failed = [rewind for rewind in rewinds.all().values() if rewind.state == "failed"]
    return [
        at
        for rewind in failed
        if (at := rewind.lane_at)
        and (gap := gaps.get(rewind.sink)) is not None
        and rewind.begun_ms <= gap.since_ms <= (rewind.ended_ms or 0)
    ]


def _furthest(source: Source, positions: Sequence[Position]) -> Position | None:
    furthest: Position | None = None
    for at in positions:
        if furthest is None or not source.covers(furthest, at):
            furthest = at
    return furthest


def _refuse(pipeline: Pipeline, needed: Sequence[str], given_up: Mapping[str, Gap]) -> None:
    """Refuse to go on without sinks that the document waits for: nobody would wait for them."""
    lost = [given_up[name] for name in needed if given_up[name].goes_on is not None]
    if lost:
        raise PositionLostError(lost[0].why)
    if needed:
        commands = ", ".join(f"`deltaforge sinks resume {pipeline.name} {name}`" for name in needed)
        raise SpecError(
            f"sink {', '.join(needed)}: given up, but commit_policy needs it; deliver what it "
            f"lacks with `deltaforge rewind {pipeline.name} --to PLACE --sink {needed[0]} --yes`, "
            f"or let it go on without with {commands}, and start the pipeline again; or do not "
            "require it"
        )


def _beginning(sink: Sink, source: Source, base: Position) -> Position:
    """Return where a sink begins that joins a pipeline which has streamed before."""
    start = sink.start
    if start == "earliest":
        position = base
    elif start == "latest":
        position = source.head()
    else:
        position = start
        _check_start(sink.id, source, position, base)
    at = dict(position)
    _log.warning("sink %s is new; it begins at %s (start: %s)", sink.id, at, _word(start))
    return position


def _check_start(sink_id: str, source: Source, start: Position, base: Position) -> None:
    """Refuse a place that the log does not have, or not any more."""
    head = source.head()
    try:
        is_early, is_late = _before(source, start, base), _before(source, head, start)
    except (KeyError, TypeError, ValueError, PositionLostError) as error:
        raise SpecError(
            f"sink {sink_id}: start: {dict(start)} is not a position of this source ({error!r}); "
            f"its log ends at {dict(head)}"
        ) from error
    if is_early:
        raise SpecError(
            f"sink {sink_id}: start: {dict(start)} lies before {dict(base)}, and the log in "
            "front of that is not kept for this pipeline: begin there or later"
        )
    if is_late:
        raise SpecError(
            f"sink {sink_id}: start: {dict(start)} lies behind the end of the log, {dict(head)}; "
            "write `latest` to begin there"
        )


def _word(start: object) -> str:
    return start if isinstance(start, str) else "a position"


def _removed(checkpoints: Checkpoints, gaps: Gaps, rewinds: Rewinds, name: str) -> list[Write]:
    _log.warning("sink %s is not in the document any more; its position is forgotten", name)
    forgotten = Delete(names.CHECKPOINTS, checkpoints.key(name))
    return [forgotten, *gaps.forget(name), *rewinds.forget(name)]


def _is_behind(source: Source, at: Position, start: Position, rewind: Rewind | None) -> bool:
    """Return whether a sink is to be caught up that is at one place where a lane begins."""
    if rewind is not None and rewind.is_limited_at(at, source.covers):
        return True  # The lane would deliver changes of all tables to it.
    return _before(source, at, start)


def _before(source: Source, left: Position, right: Position) -> bool:
    """Return whether what is read from one place lacks something before another."""
    return not source.covers(left, right)
