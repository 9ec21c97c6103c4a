"""A sink is given the log once more from an earlier place: what is stored as that begins.

Its checkpoint moves back in the transaction that keeps the rewind, so a driver that is killed finds
either nothing of it or all of it.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_deltaforge.engine.archive.reader import reach
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
from airflow_provider_deltaforge.errors import (
    DeltaForgeError,
    FencedError,
    RetryableError,
)
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sinks.contract import (
    BeginsEmpty,
    Sink,
    SinkPosition,
    SinkWriter,
)
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints, StoredPosition
from airflow_provider_deltaforge.storage.records.gaps import Gaps, SinkCommand
from airflow_provider_deltaforge.storage.records.rewinds import Rewind, Rewinds
from airflow_provider_deltaforge.telemetry.redaction import redacted

_log = logging.getLogger(__name__)


def rewind_refusal(context: TaskContext, checkpoints: Checkpoints, wish: SinkCommand) -> str | None:
    """Return why a rewind is not begun, for people; None if it may be.

    Args:
        context: the opened job.
        checkpoints: as they are stored now.
        wish: the rewind.

    Raises:
        RetryableError: the source is away, so nobody can say whether it still has the log.
    """
    name, to = wish.sink, wish.to or {}
    source, stand = context.pipeline.spec.source, checkpoints.stand(name)
    if stand is None:
        return f"sink {name} has no position yet"
    if wish.tables and name in Gaps(context.store, context.pipeline.name).open():
        return f"sink {name} was given up and lacks changes of every table; leave out --tables"
    try:
        if not source.covers(stand.position, to):
            return (
                f"sink {name} stands at {dict(stand.position)}, and nothing behind {to} was "
                "delivered to it"
            )
        reach(context.pipeline, to)
    except RetryableError:
        raise
    except DeltaForgeError as error:
        return redacted(str(error))
    return None


def refuse_rewind(context: TaskContext, wish: SinkCommand, reason: str) -> list[Write]:
    """Return the writes that keep why a rewind was not begun; one that runs goes on."""
    _log.error(
        "sink %s is not given the log again from %s on: %s", wish.sink, dict(wish.to or {}), reason
    )
    granted = Gaps(context.store, context.pipeline.name).granted(wish)
    rewinds = Rewinds(context.store, context.pipeline.name)
    if wish.sink in rewinds.running():
        return [granted]
    return [rewinds.refuse(wish.sink, wish.to or {}, wish.by, reason), granted]


def begin_rewind(
    context: TaskContext, checkpoints: Checkpoints, wish: SinkCommand
) -> tuple[Rewind, list[Write]]:
    """Return a rewind that may begin, and what is to be stored in one transaction for that.

    Args:
        context: the opened job.
        checkpoints: as they are stored now; learns that one of them moves back.
        wish: the rewind; there is no refusal of it.
    """
    name, to = wish.sink, wish.to or {}
    gaps = Gaps(context.store, context.pipeline.name)
    rewinds = Rewinds(context.store, context.pipeline.name)
    stand, gap = checkpoints.stand(name), gaps.open().get(name)
    at = to if stand is None else stand.position
    tables, until = _limits(rewinds.running().get(name), wish.tables, at)
    rewind = rewinds.begin(name, to, until, tables, wish.by)
    covers = context.pipeline.spec.source.covers
    # Emptied by accident later, it lacks what it is given now, too.
    begun = None if stand is None else stand.begun
    begins = True if not tables and begun is not None and covers(begun, to) else None
    put = checkpoints.put(name, to, None, back=True, begins=begins)
    writes: list[Write] = [put, rewinds.put(rewind), gaps.granted(wish)]
    if gap is not None:
        is_filled = bool(gap.start) and covers(gap.start, to)
        writes.append(gaps.close(gap, gap.start if is_filled else to))
    _log.warning("sink %s: %s", name, rewind.shown)
    return rewind, writes


def ask_rewound(
    context: TaskContext, answers: SinkAnswers, sink: Sink, stand: StoredPosition, rewind: Rewind
) -> tuple[str, ...]:
    """Ask a sink that holds the position itself what it tells as a rewind begins.

    It begins at the rewind's place, if it can hold a position before the first message.

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
    return held_behind(cursor, rewind, stand, owner)


def held_behind(
    cursor: SinkPosition | None, rewind: Rewind | None, stand: StoredPosition, owner: PositionOwner
) -> tuple[str, ...]:
    """Return what a sink tells, for its checkpoint where a rewind begins.

    Its last event may be of the very batch that comes next now. Nothing in front of that event is
    to be left out, so it is noted as one of the place where the sink stood.
    """
    is_next = cursor is not None and lies_behind(cursor, stand, owner)
    if cursor is not None and is_next and rewind is not None and rewind.until is not None:
        return as_texts(replace(cursor, position={"rewound": rewind.mark}))
    return as_texts(cursor)


def _limits(
    running: Rewind | None, tables: Sequence[str], at: Position
) -> tuple[Sequence[str], Position]:
    """Return whose changes are delivered again, and up to where.

    A rewind that is under way goes on within the new one: what it still lacked is not left out.
    """
    if running is None or not running.tables or running.until is None:
        return tables, at
    return (tuple(dict.fromkeys([*tables, *running.tables])) if tables else ()), running.until
