"""Sends dead letters to the sinks that miss them, in the order of the queue, row by row.

It runs while no lane does, under the epoch: a driver that started meanwhile makes its writes void.
An entry leaves the queue in the transaction that follows its delivery. Killed between the two, it
is sent again, before anything newer.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.engine.borders import Border, crossing
from airflow_provider_deltaforge.engine.job import Bench
from airflow_provider_deltaforge.engine.places import place_of
from airflow_provider_deltaforge.engine.policy import Policy
from airflow_provider_deltaforge.engine.registering import lookup, registry_of
from airflow_provider_deltaforge.engine.rendering import Rendered, Rendering
from airflow_provider_deltaforge.engine.replay_plan import Plan, Verdict
from airflow_provider_deltaforge.engine.replay_sinks import opened, sinks_behind, stands
from airflow_provider_deltaforge.engine.restoring import restored
from airflow_provider_deltaforge.engine.sink_group import SinkGroup
from airflow_provider_deltaforge.engine.sinking import Delivered, Parcel
from airflow_provider_deltaforge.engine.tallies import LetterTallies, Tallies
from airflow_provider_deltaforge.engine.withdrawing import Withdrawal
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.dead_letters import DeadLetters, Stored
from airflow_provider_deltaforge.storage.records import now_ms
from airflow_provider_deltaforge.storage.replays import Replay, ReplayRequest, Replays
from airflow_provider_deltaforge.telemetry.redaction import redacted

Result = TypeVar("Result")

PAGE = 50
ROUND = 200
"""Entries sent together at most; no two of one row, so that each waits for the one before."""


class Circumstances(Protocol):
    """Where a replay runs: in a driver, or in the process of whoever asked for it."""

    ending: threading.Event
    tallies: Tallies
    letters: LetterTallies

    def gives_up(self) -> bool:
        """Say whether a delivery under way should be abandoned."""

    def confirm(self) -> None:
        """Make sure that no newer driver has started; raise FencedError if one has."""

    def patiently(self, call: Callable[[], Result]) -> Result:
        """Repeat a call to the store until it works or it is over."""

    def sink_trouble(self, sink_id: str, error: BaseException | None) -> None:
        """Called at every failed attempt, and with None when the sink is back."""

    def processor_trouble(self, processor_id: str, error: BaseException | None) -> None:
        """Called at every failed attempt, and with None when the processor works again."""

    def trouble(self, name: str, error: BaseException | None) -> None:
        """Called at every failed attempt, and with None when what has that name works again."""


@dataclass(slots=True)
class _Sent:
    """One entry of a round, and what became of it."""

    stored: Stored
    verdict: Verdict
    given: list[str] = field(default_factory=list)
    refused: list[tuple[str | None, Rejection]] = field(default_factory=list)
    away: bool = False

    @property
    def unprocessed(self) -> bool:
        """Say whether a processor refused it again."""
        return any(sink_id is None for sink_id, _ in self.refused)


class Replaying:
    """One replay, from the first entry that is meant to the last that is there when it begins."""

    def __init__(self, bench: Bench, request: ReplayRequest, here: Circumstances) -> None:
        spec = bench.pipeline.spec
        self._bench, self._request = bench, request
        self._here = here
        self._withdrawal = Withdrawal(bench, request.ticket)
        self._lags = partial(Policy.of(spec).may_lag, sinks=len(spec.sinks))
        self._queue = DeadLetters(bench.store, bench.pipeline.name)
        self._replays = Replays(bench.store, bench.pipeline.name)
        self._sinks = {sink.id: sink for sink in spec.sinks}
        self._plan = Plan(spec, request.which, request.overtaken)
        self._groups: dict[str, SinkGroup] = {}
        self._away: set[str] = set()
        self._behind: set[str] = set()
        self._rendering = Rendering(
            bench.pipeline,
            bench.origin,
            here.tallies,
            here,
            lambda: here.ending.is_set() or self._withdrawal.is_known(),
            lookup(registry_of(bench)),
        )
        self._told = Replay(ticket=request.ticket, started_at_ms=now_ms())

    def run(self) -> Replay | None:
        """Replay until nothing is left, or it is withdrawn; None if asked to end before.

        Raises:
            DeltaForgeError: a sink or processor cannot work at all.
        """
        known = self._here.patiently(lambda: self._replays.of(self._request.ticket))
        self._told = known.begun_again() if known else self._told
        try:
            self._plan.stands = self._here.patiently(lambda: stands(self._bench))
            self._behind = sinks_behind(self._bench, self._plan.stands)
            if not self._here.patiently(lambda: self._withdrawal.outlives(self._rendering.open)):
                return self._ended("cancelled", self._withdrawal.reason)
            last = max((stored.letter.seq for stored in self._read()), default=0)
            for entries in self._rounds(last):
                if self._here.ending.is_set():
                    return None
                if reason := self._here.patiently(self._withdrawal.look):
                    return self._ended("cancelled", reason)
                if not self._send(entries):
                    return None
        finally:
            self._rendering.close()
            for group in self._groups.values():
                group.close()
        return self._ended("done")

    def failed(self, reason: str | None, error_class: str | None) -> Replay:
        """Record that it cannot go on; what was sent stays sent."""
        if self._withdrawal.reason is not None:
            return self._ended("cancelled", self._withdrawal.reason)
        return self._ended("failed", reason, error_class)

    def _read(self) -> Iterator[Stored]:
        """Yield the entries, which may leave the queue meanwhile."""
        after = 0
        while page := self._here.patiently(lambda: self._page(after)):  # noqa: B023 - called here
            yield from page
            after = page[-1].letter.seq

    def _page(self, after: int) -> list[Stored]:
        return list(islice(self._queue.stored(after), PAGE))

    def _rounds(self, last: int) -> Iterator[list[_Sent]]:
        """Yield what is sent together: in order, and no two entries whose order matters."""
        together: list[_Sent] = []
        for stored in self._read():
            if stored.letter.seq > last:
                break
            place = place_of(stored.letter)
            if len(together) >= ROUND or (
                place is not None
                and any(sent.verdict.place and sent.verdict.place.meets(place) for sent in together)
            ):
                yield together
                together = []
            verdict = self._plan.judge(stored.letter)
            if verdict is None:
                continue
            together.append(_Sent(stored, verdict))
        if together:
            yield together

    def _send(self, entries: Sequence[_Sent]) -> bool:
        """Send a round and store what became of it; False if asked to end meanwhile."""
        sent = [one for one in entries if one.verdict.action == "send"]
        by_processor: dict[str, list[_Sent]] = {}
        for one in sent:
            by_processor.setdefault(one.stored.letter.meta.processor_id or "", []).append(one)
        for processor_id, chosen in by_processor.items():
            if not self._deliver(chosen, processor_id):
                return False
        if sent:
            crossing(Border.REPLAY_WRITTEN)
        writes = [write for one in entries for write in self._outcome(one)]
        replay = self._replays.put(self._told)
        self._here.patiently(
            lambda: self._bench.store.transact([*writes, replay], self._bench.fence)
        )
        if writes:
            crossing(Border.REPLAY_STORED)
        return True

    def _deliver(self, sent: Sequence[_Sent], processor_id: str) -> bool:
        """Send entries that one processor refused, or (``""``) that sinks did."""
        rows = restored([one.stored for one in sent])
        early = self._behind if processor_id else set()  # It refused what lies in front of these.
        to = {name for one in sent for name in one.verdict.sinks} - self._away - early
        rendered = self._rendering.render(rows, processor_id, to, self._lags)
        self._away |= to - rendered.messages.keys()
        for refused in rendered.chained.refused:
            for rejection, at in zip(refused.rejections, refused.origins.tolist(), strict=True):
                why = f"processor {refused.processor_id}: {rejection.reason}"
                sent[at].refused.append((None, replace(rejection, reason=why)))
        return all(self._write(sink_id, sent, rendered) for sink_id in self._sinks)

    def _write(self, sink_id: str, sent: Sequence[_Sent], rendered: Rendered) -> bool:
        """Give one sink the entries that it misses."""
        wanted = [one for one in sent if sink_id in one.verdict.sinks and not one.unprocessed]
        if not wanted:
            return True
        if sink_id not in rendered.messages or self._withdrawal.reason is not None:
            for one in wanted:
                one.away = True
            return True
        mine = {number for number, one in enumerate(sent) if one in wanted}
        chained, messages = rendered.chained, rendered.messages[sink_id]
        of = np.array([chained.origin(row) for row in messages.event_rows.to_pylist()], np.int64)
        chosen = messages.take(pa.array(np.flatnonzero(np.isin(of, sorted(mine)))))
        rejections = list(rendered.rejections[sink_id])
        if len(chosen):
            self._here.patiently(self._here.confirm)
            outcomes = self._delivered(sink_id, Parcel(chosen))
            if outcomes is None:
                self._away.add(sink_id)
                for one in wanted:
                    one.away = True
                return not self._here.gives_up()
            rejections += outcomes[sink_id].durable()
        for one in wanted:
            one.given.append(sink_id)
        for rejection in rejections:
            one = sent[chained.origin(rejection.event_row)]
            if one in wanted and sink_id in one.given:
                one.given.remove(sink_id)
                one.refused.append((sink_id, rejection))
        return True

    def _delivered(self, sink_id: str, parcel: Parcel) -> dict[str, Delivered] | None:
        """Deliver; None if given up. An optional sink is not waited for: the log would wait too."""
        lags, here = self._lags(sink_id), self._here
        leaves: Callable[[], bool] = lambda: lags or self._withdrawal.is_known()  # noqa: E731
        if sink_id not in self._groups:
            sink = self._sinks[sink_id]
            try:
                self._groups[sink_id] = opened(self._bench, sink, here, here.ending, leaves)
            except RetryableError as error:
                if not leaves():
                    raise
                here.sink_trouble(sink_id, error)
                return None
        group = self._groups[sink_id]
        over = lambda: here.gives_up() or (group.thread(sink_id).failing and leaves())  # noqa: E731
        outcomes = group.deliver({sink_id: parcel}, over)
        if outcomes is None:
            self._groups.pop(sink_id).close()
        return outcomes

    def _outcome(self, one: _Sent) -> list[Write]:
        """Count an entry, and return the writes that take it out or keep what was learnt."""
        letter, verdict = one.stored.letter, one.verdict
        self._told = self._told.model_copy(update={"at_seq": letter.seq})
        if verdict.action != "send":
            self._count("dropped" if verdict.action == "drop" else verdict.action)
            return [self._queue.take(letter.seq)] if verdict.action == "drop" else []
        if not one.refused and not one.away:
            self._count("sent")
            self._here.letters.count("replayed", 1)
            return [self._queue.take(letter.seq)]
        if verdict.place is not None:
            self._plan.stays(letter.seq, verdict.place, set(verdict.sinks) - set(one.given))
        if one.refused or self._withdrawal.reason is None:
            self._count("refused" if one.refused else "away")
        told: dict[str, Any] = {"delivered": [*letter.meta.delivered, *one.given]}
        if one.refused:
            sink_id, rejection = one.refused[0]
            why = rejection.reason
            told["attempts"] = letter.meta.attempts + 1
            told["error_kind"] = rejection.kind
            told["error_message"] = redacted(
                why if letter.meta.sink_id or sink_id is None else f"sink {sink_id}: {why}"
            )
        if letter.meta.sink_id is not None:
            del told["delivered"]
        return [self._queue.amend(one.stored, letter.meta.model_copy(update=told))]

    def _count(self, what: str) -> None:
        self._told = self._told.model_copy(update={what: getattr(self._told, what) + 1})

    def _ended(
        self, state: str, reason: str | None = None, error_class: str | None = None
    ) -> Replay:
        told = {"finished_at_ms": now_ms(), "reason": reason, "error_class": error_class}
        self._told = self._told.model_copy(update={"state": state, **told})
        writes = [self._replays.put(self._told), *self._replays.forget_old()]
        self._here.patiently(lambda: self._bench.store.transact(writes, self._bench.fence))
        return self._told
