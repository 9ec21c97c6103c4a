"""At a lane's start, what sinks hold themselves wins over what was stored about them.

Every sink that delivers exactly once is asked before the log is opened. That shuts former writers
out, so that nothing of them can follow, and then the sink's checkpoint is set to what it tells.
Everything after that only knows checkpoints.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.heartbeat import Heartbeat
from airflow_provider_deltaforge.engine.base.required_sinks import RequiredSinks
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.deliver.held_positions import (
    OtherStores,
    adopted,
    as_texts,
    tells,
)
from airflow_provider_deltaforge.engine.deliver.rewind import (
    begin_rewind,
    held_behind,
    refuse_rewind,
    rewind_refusal,
)
from airflow_provider_deltaforge.engine.deliver.row_marks import check_rows, has_unmarked_rows
from airflow_provider_deltaforge.engine.deliver.sink_answers import (
    SinkAnswer,
    SinkAnswers,
    answer_of,
)
from airflow_provider_deltaforge.engine.deliver.sink_gap import log_gap
from airflow_provider_deltaforge.engine.deliver.sink_thread import SinkWatcher
from airflow_provider_deltaforge.errors import (
    FatalError,
    FencedError,
    PositionLostError,
    RetryableError,
)
from airflow_provider_deltaforge.sinks.contract import Sink, SinkWriter
from airflow_provider_deltaforge.sinks.position_contract import BeginsEmpty, SinkPosition
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Delete, Write
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints, StoredPosition
from airflow_provider_deltaforge.storage.records.gaps import Gap, Gaps
from airflow_provider_deltaforge.storage.records.rewinds import Rewinds
from airflow_provider_deltaforge.telemetry.redaction import redacted

_TAKEOVERS, _TAKEOVERS_S = 30, 120.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _ComparedSink:
    """A sink that has a checkpoint, and what it tells of itself."""

    sink: Sink
    answer: SinkAnswer
    stored: StoredPosition


class SinkPositions:
    """Compares them for one lane. Used by its delivery thread.

    Args:
        context: the opened job; its fence guards every write.
        watcher: called with errors of sinks.
        heartbeat: says when to give up.
    """

    def __init__(self, context: TaskContext, watcher: SinkWatcher, heartbeat: Heartbeat) -> None:
        spec = context.pipeline.spec
        self._context = context
        self._sinks = {sink.id: sink for sink in spec.sinks if sink.holds_position}
        self.sink_ids = frozenset(self._sinks)
        self._policy = RequiredSinks.of(spec)
        self._source = spec.source
        self._gaps = Gaps(context.store, context.pipeline.name)
        self._others = OtherStores(context)
        self._found: dict[str, SinkAnswer] = {}
        self._answers = SinkAnswers(context, watcher, heartbeat.ending)
        self._checkpoints = Checkpoints(
            context.store, context.pipeline.name, spec.source.id, spec.source.compare
        )
        self._takeovers: deque[float] = deque(maxlen=_TAKEOVERS)

    def settle(self) -> None:
        """Set the checkpoints of sinks that hold the position themselves to what they tell.

        A sink that the pipeline goes on without is not waited for: its checkpoint is compared when
        it is written to first.

        Raises:
            RetryableError: the lane was asked to end, or the store is away.
            PositionLostError: a sink that the pipeline needs has lost what it held, and the log
                does not reach back to there.
            FatalError: a sink holds the position of another state store.
            AccessError, FatalError: as a sink's write does.
        """
        checkpoints = self._checkpoints
        checkpoints.load()
        self._store(self._resumed())
        self._begin_rewinds()
        if not self._sinks:
            return
        self._found = self._answers.ask_all(self._sinks)
        anew = is_reset(self._context)
        if not anew:
            self._refuse_others()
        given_up = self._gaps.open()
        given_up_now = {*given_up}
        writes: list[Write] = []
        lost: list[PositionLostError] = []
        for name, answer in self._found.items():
            cursor, stand, gap = answer.cursor, checkpoints.stand(name), given_up.get(name)
            if gap is not None:
                writes += self._back(gap, cursor, stand)
            elif stand is not None and self._is_taken(cursor, stand):
                _log.warning("sink %s is taken over; it goes on at %s", name, dict(stand.position))
                writes.append(checkpoints.put(name, stand.position, as_texts(cursor)))
            elif stand is not None:
                compared = _ComparedSink(self._sinks[name], answer, stand)
                try:
                    writes += self._compared(compared)
                except PositionLostError as error:
                    given_up_now.add(name)
                    writes.append(self._given_up(compared, error, given_up_now, lost))
            elif cursor is not None and not anew:
                writes += self._unknown(name, cursor)
        self._store(writes)
        if lost:
            raise lost[0]

    def adopt(self) -> None:
        """Note what sinks tell that have a checkpoint only now, and begin there.

        Raises:
            RetryableError: the store or a sink is away.
        """
        checkpoints, given_up = self._checkpoints, self._gaps.open()
        checkpoints.load()
        rewinds = Rewinds(self._context.store, self._context.pipeline.name).running()
        writes: list[Write] = []
        for name, answer in self._found.items():
            stand = checkpoints.stand(name)
            if stand is None or name in given_up:
                continue
            is_new = stand.held is None
            cursor = answer.cursor
            if answer.begins_empty and (is_new or (not stand.held and cursor is None)):
                cursor = self._begun(self._sinks[name], self._others.owner.at(stand.position))
                writes.append(checkpoints.put(name, stand.position, as_texts(cursor)))
            elif is_new:
                held = held_behind(cursor, rewinds.get(name), stand, self._others.owner)
                writes.append(checkpoints.put(name, stand.position, held))
        if self._found.keys() & rewinds.keys():
            reach(CrashPoint.REWIND_ASKED)
        writes += self._others.forget(self._found)
        if self._sinks and is_reset(self._context):
            writes.append(Delete(names.CURSORS, self._context.pipeline.name))
        self._store(writes)

    def see_others(self) -> None:
        """Look for positions of other state stores, before rows of a snapshot are copied.

        A sink that is away is asked when the stream begins.

        Raises:
            FatalError: a sink holds one.
            RetryableError: the store is away.
        """
        if self._sinks and not is_reset(self._context):
            self._found = self._answers.ask_all(self._sinks, waits=False)
            self._checkpoints.load()
            self._refuse_others()

    def taken_over(self, error: FencedError) -> None:
        """Allow the lane to take its sinks over once more.

        Raises:
            FatalError: it did so too often just now: two pipelines of one name would for ever.
        """
        _log.warning("sinks are taken over again: %s", redacted(str(error)))
        now = time.monotonic()
        if len(self._takeovers) == _TAKEOVERS and now - self._takeovers[0] < _TAKEOVERS_S:
            raise FatalError(
                f"{error}. Taken over {_TAKEOVERS} times in {_TAKEOVERS_S:g} s: does another "
                "pipeline of this name, with a state store of its own, write there? Rename one"
            )
        self._takeovers.append(now)

    def _refuse_others(self) -> None:
        given_up = self._gaps.open()  # Those are given nothing.
        cursors = {
            name: answer.cursor for name, answer in self._found.items() if name not in given_up
        }
        self._others.refuse(cursors, self._checkpoints.stand)

    def _is_taken(self, cursor: SinkPosition | None, stand: StoredPosition) -> bool:
        """Return whether a sink holds another pipeline's position, which means nothing here.

        A checkpoint without ``held`` is left to ``adopt``.
        """
        return stand.held is not None and not self._others.counts(cursor, stand)

    def _unknown(self, name: str, cursor: SinkPosition) -> list[Write]:
        """Return what is to be stored of a sink that holds a position, and has no checkpoint."""
        owner = self._others.owner
        if not owner.reads(cursor):
            _log.warning(
                "sink %s holds a position of another source, %s: it begins", name, cursor.source
            )
            return []
        _log.warning(
            "sink %s: the state store knows no position of it; it goes on at its own, %s",
            name,
            dict(cursor.position),
        )
        held = as_texts(cursor) if owner.owns(cursor) else adopted(cursor, owner)
        return [self._checkpoints.put(name, cursor.position, held, begins=False)]

    def _resumed(self) -> list[Write]:
        """Resume sinks at their checkpoints that were emptied on purpose, as somebody asked."""
        writes: list[Write] = []
        given_up = self._gaps.open()
        for wish in self._gaps.wishes():
            gap, stand = given_up.get(wish.sink), self._checkpoints.stand(wish.sink)
            if wish.wanted != "resume" or gap is None or gap.goes_on is None or stand is None:
                continue
            _log.warning("sink %s goes on at %s, as %s wants", wish.sink, gap.goes_on, wish.by)
            writes += [
                self._checkpoints.put(wish.sink, gap.goes_on, begins=True),
                self._gaps.close(gap, gap.goes_on),
                *self._gaps.granted(wish),
            ]
        return writes

    def _begin_rewinds(self) -> None:
        """Move checkpoints back before sinks are asked: one may have been emptied on purpose.

        A sink that was given up is filled first, as the pipeline may not begin without it. The
        lane begins the rewinds of all others between two batches.
        """
        wishes = [wish for wish in self._gaps.wishes() if wish.wanted == "rewind"]
        given_up = self._gaps.open() if wishes else {}
        for wish in wishes:
            if wish.sink not in self._sinks and wish.sink not in given_up:
                continue
            reason = rewind_refusal(self._context, self._checkpoints, wish)
            if reason is not None:
                self._store(refuse_rewind(self._context, wish, reason))
                continue
            self._store(begin_rewind(self._context, self._checkpoints, wish)[1])
            reach(CrashPoint.REWIND_STORED)

    def _compared(self, compared: _ComparedSink) -> list[Write]:
        """Return what is to be stored where a sink tells something else than its checkpoint.

        Raises:
            PositionLostError: it has lost what it held, and the log cannot be read from there.
        """
        name, stored = compared.sink.id, compared.stored
        at, cursor = stored.position, compared.answer.cursor
        check_rows(self._context, compared.sink)
        if stored.held is None:
            _log.info("sink %s delivers exactly once from %s on", name, dict(at))
            return []  # ``adopt`` stores what it tells.
        if tells(cursor, stored.held):
            return []
        if cursor is not None and self._source.covers(cursor.position, at):
            return [self._checkpoints.put(name, cursor.position, as_texts(cursor))]
        if cursor is not None or not compared.answer.has_expired:
            return self._went_back(compared)
        _log.warning(
            "sink %s holds no position any more: its messages have expired, or were purged. "
            "It goes on at its checkpoint, %s",
            name,
            dict(at),
        )
        return [self._checkpoints.put(name, at, ())]

    def _went_back(self, compared: _ComparedSink) -> list[Write]:
        """Return what is to be stored where a sink has lost what it held."""
        name, back = compared.sink.id, self._data_end(compared)
        _log.warning(
            "sink %s has lost what it held: its checkpoint is %s, it holds the log up to %s. "
            "It goes on from there",
            name,
            dict(compared.stored.position),
            dict(back.position),
        )
        # What it tells of an earlier time does not count: ``adopt`` lets it begin there.
        held = as_texts(back) if back is compared.answer.cursor else None
        return [self._checkpoints.put(name, back.position, held, back=True)]

    def _back(
        self, gap: Gap, cursor: SinkPosition | None, stand: StoredPosition | None
    ) -> list[Write]:
        """Resume a sink that has again what it had lost."""
        if gap.goes_on is None or cursor is None or stand is None or stand.held is None:
            return []
        if not self._others.counts(cursor, stand):
            return []
        if not (tells(cursor, stand.held) or self._source.covers(cursor.position, stand.position)):
            return []
        try:
            check_rows(self._context, self._sinks[gap.sink])
        except PositionLostError:
            return []
        _log.warning("sink %s holds again what it had lost", gap.sink)
        return [self._gaps.close(gap, gap.goes_on)]

    def _data_end(self, compared: _ComparedSink) -> SinkPosition:
        """Return up to where a sink holds the log that has lost what it held behind.

        Raises:
            PositionLostError: nobody knows, or the log cannot be read from there.
            RetryableError: the source is away.
        """
        name, begun = compared.sink.id, compared.stored.begun
        cursor, covers = compared.answer.cursor, self._source.covers
        if cursor is not None and (begun is None or covers(cursor.position, begun)):
            self._source.reach(cursor.position)
            return cursor
        if not compared.answer.loses_both:
            raise PositionLostError(
                f"sink {name} holds no position any more, although its messages may be there: was "
                "the topic of its positions deleted?"
            )
        lost = f"sink {name} holds nothing of what it was given: it came back with older data, or"
        if begun is None:
            raise PositionLostError(f"{lost} was emptied, and nobody knows where its data began")
        if has_unmarked_rows(self._context, name):
            raise PositionLostError(f"{lost} was emptied. The rows of snapshots are gone with that")
        self._source.reach(begun)
        return SinkPosition(begun)

    def _given_up(
        self,
        compared: _ComparedSink,
        error: PositionLostError,
        given_up: Collection[str],
        lost: list[PositionLostError],
    ) -> Write:
        """Record what a sink lacks that lost what it held.

        Args:
            compared: the sink.
            error: what it has lost.
            given_up: the sinks that are given up with it.
            lost: gets the reason why the pipeline cannot go on, if it needs the sink.
        """
        pipeline, name, stored = self._context.pipeline.name, compared.sink.id, compared.stored
        sink_ids = [sink.id for sink in self._context.pipeline.spec.sinks]
        needed = name in self._policy.lacks(sink_ids, given_up)
        cursor = compared.answer.cursor
        start = cursor.position if cursor is not None else (stored.begun or {})
        why = redacted(str(error))
        if needed:
            why += (
                f". If it was emptied on purpose, let it go on at its checkpoint, "
                f"{dict(stored.position)}, with `deltaforge sinks resume {pipeline} {name}`, and "
                "start the pipeline again"
            )
            lost.append(PositionLostError(why))
        else:
            log_gap(self._context, name, start, error)
        goes_on = stored.position if needed else None
        return self._gaps.give_up(name, start, why, error.error_class, goes_on)

    def _begun(self, sink: Sink, cursor: SinkPosition) -> SinkPosition | None:
        """Store in a sink where its part of the log begins; return what it holds then."""

        def begin(writer: SinkWriter) -> SinkAnswer:
            answer = answer_of(writer)
            if answer.cursor != self._found[sink.id].cursor:  # Written since then.
                self._checkpoints.load()
                self._others.refuse({sink.id: answer.cursor}, self._checkpoints.stand)
            try:
                if isinstance(writer, BeginsEmpty):
                    writer.begin(cursor)
            except FencedError as error:  # If a newer driver is there, the store will say so.
                raise RetryableError(*error.args) from error
            return replace(answer, cursor=cursor)

        return self._answers.ask(sink, threading.Event(), begin).cursor

    def _store(self, writes: Sequence[Write]) -> None:
        if writes:
            self._context.store.transact(writes, self._context.fence)


def is_reset(context: TaskContext) -> bool:
    """Return whether a person has the pipeline begin anew, whatever its sinks hold."""
    return context.store.get(names.CURSORS, context.pipeline.name) is not None
