"""Sends dead letters to the sinks that miss them, in the order of the queue, row by row.

It runs while no lane does, under the epoch: a driver that started meanwhile makes its writes void.
An entry leaves the queue in the transaction that follows its delivery. Killed between the two, it
is sent again, before anything newer.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.last_error import shown
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.dead_letters.row_keys import place_of
from airflow_provider_deltaforge.engine.replay.cancellation import Cancellation
from airflow_provider_deltaforge.engine.replay.delivery import (
    ReplayDelivery,
    ReplayedEntry,
    ReplayHost,
)
from airflow_provider_deltaforge.engine.replay.plan import ReplayPlan
from airflow_provider_deltaforge.engine.replay.sinks import stands
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.dead_letters import (
    DeadLetterRecords,
    StoredDeadLetter,
)
from airflow_provider_deltaforge.storage.records.record import now_ms
from airflow_provider_deltaforge.storage.records.replays import Replay, ReplayRequest, Replays

PAGE = 50
ROUND = 200
"""Entries sent together at most; no two of one row, so that each waits for the one before."""


class ReplayRun:
    """One replay, from the first entry that is meant to the last that is there when it begins."""

    def __init__(self, context: TaskContext, request: ReplayRequest, here: ReplayHost) -> None:
        self._context, self._request = context, request
        self._here = here
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
        return list(islice(self._queue.stored(after), PAGE))

    def _rounds(self, last: int) -> Iterator[list[ReplayedEntry]]:
        """Yield what is sent together: in order, and no two entries whose order matters."""
        together: list[ReplayedEntry] = []
        for stored in self._read():
            if stored.dead_letter.seq > last:
                break
            place = place_of(stored.dead_letter)
            if len(together) >= ROUND or (
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
            lambda: self._context.store.transact([*writes, replay], self._context.fence)
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
        writes = [self._replays.put(self._record), *self._replays.forget_old()]
        self._here.retry(lambda: self._context.store.transact(writes, self._context.fence))
        return self._record
