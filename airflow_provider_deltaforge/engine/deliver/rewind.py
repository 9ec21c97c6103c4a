"""Begin to deliver the log again to a sink, from an earlier position: what is stored for that.

The sink's checkpoint moves back in the transaction that stores the rewind, so a driver that is
killed leaves either nothing of it or all of it.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_deltaforge.engine.archive.lane_archive import reach as reach_archived
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.deliver.held_positions import (
    PositionOwner,
    as_texts,
    lies_behind,
)
from airflow_provider_deltaforge.engine.deliver.sink_answers import (
    SinkAnswer,
    SinkAnswers,
    answer_of,
)
from airflow_provider_deltaforge.errors import DeltaForgeError, FencedError, RetryableError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sinks.contract import Sink, SinkWriter
from airflow_provider_deltaforge.sinks.position_contract import BeginsEmpty, SinkPosition
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints, StoredPosition
from airflow_provider_deltaforge.storage.records.gaps import Gaps, SinkCommand
from airflow_provider_deltaforge.storage.records.rewinds import Rewind, Rewinds
from airflow_provider_deltaforge.telemetry.redaction import redacted

_log = logging.getLogger(__name__)


def rewind_refusal(context: TaskContext, checkpoints: Checkpoints, wish: SinkCommand) -> str | None:
    """Return why a rewind cannot begin, for people; None if it can.

    Args:
        context: the opened job.
        checkpoints: as they are stored now.
        wish: the rewind.

    Raises:
        RetryableError: the source is away, so it is not known whether it still has the log.
    """
    name, to = wish.sink, wish.to or {}
    source, stand = context.pipeline.spec.source, checkpoints.stand(name)
    if stand is None:
        return f"sink {name} has no position yet"
    if wish.tables and name in Gaps(context.store, context.pipeline.name).open():
        return f"sink {name} was given up and lacks changes of every table; name no tables"
    try:
        if not source.covers(stand.position, to):
            return (
                f"sink {name} is at {dict(stand.position)}, and nothing behind {to} was "
                "delivered to it"
            )
        reach_archived(context.pipeline, to)
    except RetryableError:
        raise
    except DeltaForgeError as error:
        return redacted(str(error))
    return None


def refuse_rewind(context: TaskContext, wish: SinkCommand, reason: str) -> list[Write]:
    """Return the writes that store why a rewind is refused; one that is running goes on."""
    _log.error(
        "the log behind %s is not delivered to sink %s again: %s",
        dict(wish.to or {}),
        wish.sink,
        reason,
    )
    granted = Gaps(context.store, context.pipeline.name).granted(wish)
    rewinds = Rewinds(context.store, context.pipeline.name)
    return [rewinds.refuse(wish.sink, wish.to or {}, wish.by, reason), *granted]


def begin_rewind(
    context: TaskContext, checkpoints: Checkpoints, wish: SinkCommand
) -> tuple[Rewind, list[Write]]:
    """Return a rewind that begins now, and the writes of the one transaction that begins it.

    Args:
        context: the opened job.
        checkpoints: as they are stored now; learns that one of them moves back.
        wish: the rewind, after ``rewind_refusal`` returned None for it.
    """
    name, to = wish.sink, wish.to or {}
    gaps = Gaps(context.store, context.pipeline.name)
    rewinds = Rewinds(context.store, context.pipeline.name)
    stand = checkpoints.stand(name)
    at = to if stand is None else stand.position
    tables, until = _limits(rewinds.running().get(name), wish.tables, at)
    rewind = rewinds.begin(name, to, until, tables, wish.by)
    covers = context.pipeline.spec.source.covers
    # If the sink is emptied by accident later, it lacks what comes now, too.
    begun = None if stand is None else stand.begun
    begins = True if not tables and begun is not None and covers(begun, to) else None
    put = checkpoints.put(name, to, None, back=True, begins=begins)
    writes: list[Write] = [put, rewinds.put(rewind), *gaps.granted(wish)]
    for gap in [] if tables else gaps.all():
        if gap.sink == name and (gap.end is None or not covers(to, gap.end)):
            is_filled = bool(gap.start) and covers(gap.start, to)
            writes.append(gaps.close(gap, gap.start if is_filled else to))
    _log.warning("sink %s: %s", name, rewind.shown)
    return rewind, writes


def ask_rewound(
    context: TaskContext, answers: SinkAnswers, sink: Sink, stand: StoredPosition, rewind: Rewind
) -> tuple[str, ...]:
    """Ask a sink that stores the position itself which one it has, as a rewind begins.

    A sink that can store a position before its first message stores the rewind's.

    Returns:
        What its checkpoint has to allow; see ``Checkpoint.held``.

    Raises:
        FencedError: it holds a position of another state store.
        RetryableError, AccessError, FatalError: as its write does.
    """
    owner = PositionOwner.of(context)
    begins = owner.at(stand.position)

    def begin(writer: SinkWriter) -> SinkAnswer:
        answer = answer_of(writer)
        if answer.cursor is not None and owner.is_of_another_store(answer.cursor):
            raise FencedError(f"sink {sink.id}: it holds a position of another state store")
        if not isinstance(writer, BeginsEmpty):
            return answer
        writer.begin(begins)
        return replace(answer, cursor=begins)

    cursor = answers.ask(sink, threading.Event(), begin).cursor
    reach(CrashPoint.REWIND_ASKED)
    return held_behind(cursor, rewind, stand, owner)


def held_behind(
    cursor: SinkPosition | None, rewind: Rewind | None, stand: StoredPosition, owner: PositionOwner
) -> tuple[str, ...]:
    """Return the position that a sink stores itself, for its checkpoint as a rewind begins.

    The last event that the sink has may be part of the first batch that it gets now. Everything
    before that event has to be delivered again too, so it is marked as delivered before the rewind.
    """
    is_next = cursor is not None and lies_behind(cursor, stand, owner)
    if cursor is not None and is_next and rewind is not None and rewind.until is not None:
        return as_texts(replace(cursor, position={"rewound": rewind.mark}))
    return as_texts(cursor)


def _limits(
    running: Rewind | None, tables: Sequence[str], at: Position
) -> tuple[Sequence[str], Position]:
    """Return which tables' changes are delivered again, and up to where.

    A rewind that is running becomes part of the new one: the sink still needs what it lacks of it.
    """
    if running is None or not running.tables or running.until is None:
        return tables, at
    return (tuple(dict.fromkeys([*tables, *running.tables])) if tables else ()), running.until
