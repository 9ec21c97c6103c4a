"""A batch goes to all sinks at once, and those are waited for that the commit policy needs."""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_deltaforge.engine.deliver.sink_fences import SinkFences
from airflow_provider_deltaforge.engine.deliver.sink_thread import (
    SinkBatch,
    SinkResult,
    SinkThread,
    SinkWatcher,
)
from airflow_provider_deltaforge.engine.render.render_queue import DeferredRender
from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.sinks.contract import Sink
from airflow_provider_deltaforge.sinks.redelivery import redelivering

_LATE_S = 30.0
_POLL_S = 0.1

Enough = Callable[[Collection[str]], bool]
"""Says whether it is enough that these sinks have taken a batch."""


SetAside = Callable[[str, Sequence[Rejection]], None]
"""Stores durably what a sink refuses."""

Filled = Callable[[str], SinkBatch]
"""Returns what a sink is given whose messages are rendered now."""


def _cannot(sink_id: str, rejections: Sequence[Rejection]) -> None:
    raise FatalError(f"sink {sink_id}: {rejections[0].reason}; nothing here can set it aside")


def _unfilled(sink_id: str) -> SinkBatch:
    raise FatalError(f"sink {sink_id}: nothing here renders for it")


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """What a delivery asks its owner while it waits for sinks.

    Attributes:
        give_up: True leaves the batch undelivered.
        enough: returns whether the sinks that have taken the batch will do. The others are left
            with it if they fail or take too long. None: every sink is waited for.
        joining: returns sinks that are given the batch now.
        set_aside: stores what a sink refuses that takes all of a batch or nothing; the rest is
            given to it then.
        filled: returns what a sink is given whose messages are rendered now.
    """

    give_up: Callable[[], bool]
    enough: Enough | None = None
    joining: Callable[[], Mapping[str, SinkBatch | DeferredRender]] = dict
    set_aside: SetAside = _cannot
    filled: Filled = _unfilled


class SinkGroup:
    """All sinks of a lane: a batch goes to every one at once.

    Args:
        sinks: the descriptions.
        pipeline: the pipeline's name.
        watcher: called with errors.
        ending: set when the lane ends.
        deadline_s: how long one sink may take for one batch until that is an error.
        claims: who may write; None where nobody else could.
        parallelism: connections to each sink that may be written to over several.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        pipeline: str,
        watcher: SinkWatcher,
        ending: threading.Event,
        deadline_s: float | None = None,
        claims: SinkFences | None = None,
        parallelism: int = 1,
    ) -> None:
        self._watcher = watcher
        self._deadline_s = deadline_s
        self._news = threading.Event()
        self._sinks = {sink.id: sink for sink in sinks}
        self._pipeline, self._ending, self._claims = pipeline, ending, claims
        self._parallelism = parallelism
        self._threads = {sink.id: self._begun(sink) for sink in sinks}
        self.unanswered: Collection[str] = ()
        """Sinks that have not answered for the last batch."""

    def thread(self, sink_id: str) -> SinkThread:
        """Return the thread of a sink, to go on with it alone."""
        return self._threads[sink_id]

    def renew(self, sink_id: str, redelivery: str = "") -> bool:
        """Give a sink a new connection; return False while the old one may still write.

        Args:
            sink_id: the sink.
            redelivery: tells what it is given from former deliveries of the same events.
        """
        if not self._threads[sink_id].has_ended():
            return False
        self._threads[sink_id] = self._begun(redelivering(self._sinks[sink_id], redelivery))
        return True

    def _begun(self, sink: Sink) -> SinkThread:
        news, claims = self._news, self._claims
        pipeline, watcher, ending = self._pipeline, self._watcher, self._ending
        return SinkThread(sink, pipeline, watcher, ending, news, claims, self._parallelism)

    def deliver(
        self,
        sink_batches: Mapping[str, SinkBatch | DeferredRender],
        rules: DeliveryRules,
    ) -> dict[str, SinkResult] | None:
        """Write to every named sink and wait until it is enough.

        Args:
            sink_batches: by sink id, or what is to be rendered first; a sink that is not named gets
                nothing.
            rules: asked while waiting.

        Returns:
            How each ended that was waited for, or None if given up.
        """
        for sink_id, sink_batch in sink_batches.items():
            self._threads[sink_id].submit(sink_batch)
        return self._results(sink_batches, rules)

    def _results(
        self, sink_batches: Mapping[str, SinkBatch | DeferredRender], rules: DeliveryRules
    ) -> dict[str, SinkResult] | None:
        begun = dict.fromkeys(sink_batches, time.monotonic())
        self.unanswered = begun.keys()
        submitted = dict(sink_batches)
        outcomes: dict[str, SinkResult] = {}
        late: set[str] = set()
        while True:
            for sink_id, sink_batch in rules.joining().items():
                begun[sink_id], submitted[sink_id] = time.monotonic(), sink_batch
                self._threads[sink_id].submit(sink_batch)
            if begun:
                self._news.wait(_POLL_S)
                self._news.clear()
            for sink_id in begun.keys() - outcomes.keys():
                outcome = self._threads[sink_id].result(0)
                if outcome is not None and (outcome.is_nothing or outcome.is_made):
                    submitted[sink_id] = self._again(sink_id, submitted[sink_id], outcome, rules)
                elif outcome is not None:
                    outcomes[sink_id] = outcome
                    refuses = outcome.error and not isinstance(outcome.error, RetryableError)
                    if refuses or sink_id in late:
                        self._watcher.report_sink_error(sink_id, outcome.error)
            self.unanswered = waiting = begun.keys() - outcomes.keys()
            late |= self._late({name: begun[name] for name in waiting - late})
            if self._is_over(outcomes, waiting, late, rules.enough):
                return outcomes
            if rules.give_up():
                return None

    def _again(
        self,
        sink_id: str,
        submitted: SinkBatch | DeferredRender,
        outcome: SinkResult,
        rules: DeliveryRules,
    ) -> SinkBatch:
        """Give a sink what is left of a batch of which it holds nothing yet; return that."""
        if outcome.is_nothing:
            rules.set_aside(sink_id, outcome.rejections)
        if isinstance(submitted, SinkBatch):
            rest = submitted.without(outcome.rejections)
        else:
            rest = rules.filled(sink_id)
        self._threads[sink_id].submit(rest)
        return rest

    def _late(self, begun: Mapping[str, float]) -> set[str]:
        """Return the sinks that have just become late; say so where the document has a limit."""
        limit_s = self._deadline_s or _LATE_S
        late = {name for name, at in begun.items() if time.monotonic() - at > limit_s}
        for name in late if self._deadline_s else ():
            error = f"sink {name}: one batch has taken more than {limit_s:g} s (backpressure)"
            self._watcher.measured.sink_timed_out(name)
            self._watcher.report_sink_error(name, RetryableError(error))
        return late

    def _is_over(
        self,
        outcomes: Mapping[str, SinkResult],
        waiting: Collection[str],
        late: Collection[str],
        enough: Enough | None,
    ) -> bool:
        """Return whether nobody is waited for any more.

        Those that have not taken the batch can be left if they are slow and the others will do. If
        all have taken it and will not do, one that is caught up beside them must join.
        """
        taken = [name for name, outcome in outcomes.items() if outcome.error is None]
        has_failed = len(taken) < len(outcomes)
        if enough is None:
            return has_failed or not waiting
        if has_failed and not enough([*taken, *waiting]):
            return True  # That concerns the whole lane, whatever becomes of the others.
        slow = (name in late or self._threads[name].failing for name in waiting)
        return all(slow) and enough(taken)

    def close(self) -> None:
        """Close every sink."""
        for thread in self._threads.values():
            thread.close()

    @property
    def may_arrive(self) -> Sequence[str]:
        """Return the sinks to which something may be under way although they are closed."""
        return [name for name, thread in self._threads.items() if thread.may_arrive]
