"""Sends dead letters to the sinks that miss them, in the order of the queue, row by row.

It runs while no lane does, under the epoch: a driver that started meanwhile makes its writes void.
An entry leaves the queue in the transaction that follows its delivery. Killed between the two, it
is sent again, before anything newer.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.last_error import shown
from airflow_provider_deltaforge.engine.base.measurements import LaneMeasurements
from airflow_provider_deltaforge.engine.base.processor_stats import DeadLetterStats, ProcessorStats
from airflow_provider_deltaforge.engine.base.required_sinks import RequiredSinks
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.dead_letters.dead_letter import restored
from airflow_provider_deltaforge.engine.dead_letters.row_keys import place_of
from airflow_provider_deltaforge.engine.deliver.sink_group import DeliveryRules, SinkGroup
from airflow_provider_deltaforge.engine.deliver.sink_thread import SinkBatch, SinkResult
from airflow_provider_deltaforge.engine.read.registrar import lookup, registry_of
from airflow_provider_deltaforge.engine.render.render_stage import RenderStage, SinkMessages
from airflow_provider_deltaforge.engine.replay.plan import ReplayDecision, ReplayPlan
from airflow_provider_deltaforge.engine.replay.sinks import opened, sinks_behind, stands
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.checkpoints import Position
from airflow_provider_deltaforge.storage.records.dead_letters import (
    DeadLetterRecords,
    StoredDeadLetter,
)
from airflow_provider_deltaforge.storage.records.record import now_ms
from airflow_provider_deltaforge.storage.records.requests import Replay, ReplayRequest, Replays

Result = TypeVar("Result")


class Cancellation:
    """Looks in the control record whether a replay is still wanted. Used by one thread at a time.

    Args:
        context: the open job.
        ticket: of the replay.
    """

    def __init__(self, context: TaskContext, ticket: str) -> None:
        self._control, self._ticket = context.control, ticket
        self._look_s = context.job.tuning.cancelled_s
        self._looked_at = time.monotonic()
        self.reason: str | None = None
        """Why it was withdrawn, as far as we have looked."""

    def look(self) -> str | None:
        """Return why it was withdrawn, if it was.

        Raises:
            RetryableError: the store is away.
        """
        self.reason = self._control.why_cancelled(self._ticket)
        self._looked_at = time.monotonic()
        return self.reason

    def is_known(self) -> bool:
        """Return whether it was, while something else is waited for: looks only now and then."""
        if self.reason is None and time.monotonic() - self._looked_at >= self._look_s:
            self._looked_at = time.monotonic()
            with suppress(RetryableError):
                self.look()
        return self.reason is not None

    def outlives(self, call: Callable[[], object]) -> bool:
        """Do something; return False if it does not work now, and is not wanted any more.

        Raises:
            RetryableError: it does not work now, and is still wanted.
        """
        try:
            call()
        except RetryableError:
            if not self.is_known():
                raise
            return False
        return True


class ReplayHost(Protocol):
    """Where a replay runs: in a driver, or in the process that asked for it."""

    ending: threading.Event
    processor_stats: ProcessorStats
    dead_letters: DeadLetterStats
    measured: LaneMeasurements

    def gives_up(self) -> bool:
        """Return whether a delivery under way should be abandoned."""

    def confirm(self) -> None:
        """Make sure that no newer driver has started; raise FencedError if one has."""

    def retry(self, call: Callable[[], Result]) -> Result:
        """Repeat a call to the store until it works or it is over."""

    def report_sink_error(self, sink_id: str, error: BaseException | None) -> None:
        """Called at every failed attempt, and with None when the sink is back."""

    def report_processor_error(self, processor_id: str, error: BaseException | None) -> None:
        """Called at every failed attempt, and with None when the processor works again."""

    def report_error(self, name: str, error: BaseException | None) -> None:
        """Called at every failed attempt, and with None when what has that name works again."""


@dataclass(slots=True)
class ReplayedEntry:
    """An entry that is sent again, and what became of it."""

    stored: StoredDeadLetter
    verdict: ReplayDecision
    receivers: list[str] = field(default_factory=list)
    refused: list[tuple[str | None, Rejection]] = field(default_factory=list)
    away: bool = False

    @property
    def unprocessed(self) -> bool:
        """Return whether a processor refused it again."""
        return any(sink_id is None for sink_id, _ in self.refused)


class ReplayDelivery:
    """The processors and sinks of one replay.

    Args:
        context: the opened job.
        here: where it runs.
        cancellation: once it is known, nothing more is waited for.
    """

    def __init__(self, context: TaskContext, here: ReplayHost, cancellation: Cancellation) -> None:
        spec = context.pipeline.spec
        self._context, self._here, self._cancellation = context, here, cancellation
        self._lags = partial(RequiredSinks.of(spec).may_lag, sinks=len(spec.sinks))
        self._sinks = {sink.id: sink for sink in spec.sinks}
        self._groups: dict[str, SinkGroup] = {}
        self._away: set[str] = set()
        self._behind: set[str] = set()
        self._rendering = RenderStage(
            context.pipeline,
            context.origin,
            here.processor_stats,
            here,
            lambda: here.ending.is_set() or cancellation.is_known(),
            lookup(registry_of(context)),
        )

    def open(self, stands: Mapping[str, Position]) -> None:
        """Start processors and encodings.

        Args:
            stands: the checkpoints of the sinks.

        Raises:
            RetryableError: see ``RenderStage.open``.
        """
        self._behind = sinks_behind(self._context, stands)
        self._rendering.open()

    def close(self) -> None:
        """Close processors and sinks."""
        self._rendering.close()
        for group in self._groups.values():
            group.close()

    def deliver(self, sent: Sequence[ReplayedEntry], processor_id: str) -> bool:
        """Send entries, and tell each what became of it; False if asked to end meanwhile.

        Args:
            sent: no two of them of one row.
            processor_id: all were refused by this one; ``""``: by sinks.
        """
        rows = restored([entry.stored for entry in sent])
        early = self._behind if processor_id else set()  # It refused what lies in front of these.
        to = {name for entry in sent for name in entry.verdict.sinks} - self._away - early
        rendered = self._rendering.render(rows, processor_id, to, self._lags)
        self._away |= to - rendered.messages.keys()
        for refused in rendered.processed.refused:
            for rejection, at in zip(refused.rejections, refused.origins.tolist(), strict=True):
                why = f"processor {refused.processor_id}: {rejection.reason}"
                sent[at].refused.append((None, replace(rejection, reason=why)))
        return all(self._write(sink_id, sent, rendered) for sink_id in self._sinks)

    def _write(self, sink_id: str, sent: Sequence[ReplayedEntry], rendered: SinkMessages) -> bool:
        """Give one sink the entries that it misses."""
        wanted = [
            entry for entry in sent if sink_id in entry.verdict.sinks and not entry.unprocessed
        ]
        if not wanted:
            return True
        if sink_id not in rendered.messages or self._cancellation.reason is not None:
            for entry in wanted:
                entry.away = True
            return True
        mine = {number for number, entry in enumerate(sent) if entry in wanted}
        processed, messages = rendered.processed, rendered.messages[sink_id]
        of = np.array([processed.origin(row) for row in messages.event_rows.to_pylist()], np.int64)
        chosen = messages.take(pa.array(np.flatnonzero(np.isin(of, sorted(mine)))))
        rejections = list(rendered.rejections[sink_id])
        if len(chosen):
            self._here.retry(self._here.confirm)
            outcomes = self._delivered(sink_id, SinkBatch(chosen))
            if outcomes is None:
                self._away.add(sink_id)
                for entry in wanted:
                    entry.away = True
                return not self._here.gives_up()
            rejections += outcomes[sink_id].durable()
        for entry in wanted:
            entry.receivers.append(sink_id)
        for rejection in rejections:
            entry = sent[processed.origin(rejection.event_row)]
            if entry in wanted and sink_id in entry.receivers:
                entry.receivers.remove(sink_id)
                entry.refused.append((sink_id, rejection))
        return True

    def _delivered(self, sink_id: str, sink_batch: SinkBatch) -> dict[str, SinkResult] | None:
        """Deliver; None if given up. An optional sink is not waited for: the log would wait too."""
        lags, here = self._lags(sink_id), self._here
        leaves: Callable[[], bool] = lambda: lags or self._cancellation.is_known()  # noqa: E731
        if sink_id not in self._groups:
            sink = self._sinks[sink_id]
            try:
                self._groups[sink_id] = opened(self._context, sink, here, here.ending, leaves)
            except RetryableError as error:
                if not leaves():
                    raise
                here.report_sink_error(sink_id, error)
                return None
        group = self._groups[sink_id]
        over = lambda: here.gives_up() or (group.thread(sink_id).failing and leaves())  # noqa: E731
        outcomes = group.deliver({sink_id: sink_batch}, DeliveryRules(over))
        if outcomes is None:
            self._groups.pop(sink_id).close()
        return outcomes


class ReplayRun:
    """One replay, from the first entry that is meant to the last that is there when it begins."""

    def __init__(self, context: TaskContext, request: ReplayRequest, here: ReplayHost) -> None:
        self._context, self._request = context, request
        self._here = here
        self._tuning = context.job.tuning
        self._cancellation = Cancellation(context, request.ticket)
        self._queue = DeadLetterRecords(context.store, context.pipeline.name)
        self._replays = Replays(context.store, context.pipeline.name)
        self._delivery = ReplayDelivery(context, here, self._cancellation)
        self._plan: ReplayPlan
        self._record = Replay(ticket=request.ticket, started_at_ms=now_ms())

    def run(self) -> Replay | None:
        """Replay until nothing is left, or it is withdrawn; None if asked to end before.

        Raises:
            DeltaForgeError: a sink or processor cannot work at all.
        """
        known = self._here.retry(lambda: self._replays.of(self._request.ticket))
        self._record = known.begun_again() if known else self._record
        try:
            positions = self._here.retry(lambda: stands(self._context))
            spec, request = self._context.pipeline.spec, self._request
            self._plan = ReplayPlan(spec, request.which, request.overtaken, positions)
            opens = partial(self._delivery.open, positions)
            if not self._here.retry(lambda: self._cancellation.outlives(opens)):
                return self._ended("cancelled", self._cancellation.reason)
            last = max((stored.dead_letter.seq for stored in self._read()), default=0)
            for entries in self._rounds(last):
                if self._here.ending.is_set():
                    return None
                if reason := self._here.retry(self._cancellation.look):
                    return self._ended("cancelled", reason)
                if not self._send(entries):
                    return None
        finally:
            self._delivery.close()
        return self._ended("done")

    def failed(self, reason: str | None, error_class: str | None) -> Replay:
        """Record that it cannot go on; what was sent stays sent."""
        if self._cancellation.reason is not None:
            return self._ended("cancelled", self._cancellation.reason)
        return self._ended("failed", reason, error_class)

    def _read(self) -> Iterator[StoredDeadLetter]:
        """Yield the entries, which may leave the queue meanwhile."""
        after = 0
        while page := self._here.retry(lambda: self._page(after)):  # noqa: B023 - called here
            yield from page
            after = page[-1].dead_letter.seq

    def _page(self, after: int) -> list[StoredDeadLetter]:
        return list(islice(self._queue.stored(after), self._tuning.replay_page))

    def _rounds(self, last: int) -> Iterator[list[ReplayedEntry]]:
        """Yield what is sent together: in order, and no two entries whose order matters."""
        together: list[ReplayedEntry] = []
        for stored in self._read():
            if stored.dead_letter.seq > last:
                break
            place = place_of(stored.dead_letter)
            if len(together) >= self._tuning.replay_round or (
                place is not None
                and any(sent.verdict.place and sent.verdict.place.meets(place) for sent in together)
            ):
                yield together
                together = []
            verdict = self._plan.judge(stored.dead_letter)
            if verdict is None:
                continue
            together.append(ReplayedEntry(stored, verdict))
        if together:
            yield together

    def _send(self, entries: Sequence[ReplayedEntry]) -> bool:
        """Send a round and store what became of it; False if asked to end meanwhile."""
        sent = [entry for entry in entries if entry.verdict.action == "send"]
        by_processor: dict[str, list[ReplayedEntry]] = {}
        for entry in sent:
            by_processor.setdefault(entry.stored.dead_letter.meta.processor_id or "", []).append(
                entry
            )
        for processor_id, chosen in by_processor.items():
            if not self._delivery.deliver(chosen, processor_id):
                return False
        if sent:
            reach(CrashPoint.REPLAY_WRITTEN)
        writes = [write for entry in entries for write in self._outcome(entry)]
        replay = self._replays.put(self._record)
        self._here.retry(
            lambda: self._context.store.transact([*writes, *replay], self._context.fence)
        )
        if writes:
            reach(CrashPoint.REPLAY_STORED)
        return True

    def _outcome(self, entry: ReplayedEntry) -> list[Write]:
        """Count an entry, and return the writes that take it out or keep what was learnt."""
        dead_letter, verdict = entry.stored.dead_letter, entry.verdict
        self._record = self._record.model_copy(update={"at_seq": dead_letter.seq})
        if verdict.action != "send":
            self._count("dropped" if verdict.action == "drop" else verdict.action)
            return [self._queue.take(dead_letter.seq)] if verdict.action == "drop" else []
        if not entry.refused and not entry.away:
            self._count("sent")
            self._here.dead_letters.count("replayed", 1)
            return [self._queue.take(dead_letter.seq)]
        if verdict.place is not None:
            self._plan.stays(
                dead_letter.seq, verdict.place, set(verdict.sinks) - set(entry.receivers)
            )
        if entry.refused or self._cancellation.reason is None:
            self._count("refused" if entry.refused else "away")
        update: dict[str, Any] = {"delivered": [*dead_letter.meta.delivered, *entry.receivers]}
        if entry.refused:
            sink_id, rejection = entry.refused[0]
            why = rejection.reason
            update["attempts"] = dead_letter.meta.attempts + 1
            update["error_kind"] = rejection.kind
            update["error_message"] = shown(
                why if dead_letter.meta.sink_id or sink_id is None else f"sink {sink_id}: {why}"
            )
        if dead_letter.meta.sink_id is not None:
            del update["delivered"]
        return [self._queue.amend(entry.stored, dead_letter.meta.model_copy(update=update))]

    def _count(self, what: str) -> None:
        self._record = self._record.model_copy(update={what: getattr(self._record, what) + 1})

    def _ended(
        self, state: str, reason: str | None = None, error_class: str | None = None
    ) -> Replay:
        ending = {"finished_at_ms": now_ms(), "reason": reason, "error_class": error_class}
        self._record = self._record.model_copy(update={"state": state, **ending})
        writes = self._replays.put(self._record)
        self._here.retry(lambda: self._context.store.transact(writes, self._context.fence))
        return self._record
