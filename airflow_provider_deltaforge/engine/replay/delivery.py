"""Renders dead letters once more, and gives them to the sinks that miss them."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.engine.base.processor_stats import DeadLetterStats, ProcessorStats
from airflow_provider_deltaforge.engine.base.required_sinks import RequiredSinks
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.dead_letters.restored_events import restored
from airflow_provider_deltaforge.engine.deliver.sink_group import DeliveryRules, SinkGroup
from airflow_provider_deltaforge.engine.deliver.sink_thread import SinkBatch, SinkResult
from airflow_provider_deltaforge.engine.read.registrar import lookup, registry_of
from airflow_provider_deltaforge.engine.render.render_stage import RenderStage, SinkMessages
from airflow_provider_deltaforge.engine.replay.cancellation import Cancellation
from airflow_provider_deltaforge.engine.replay.plan import ReplayDecision
from airflow_provider_deltaforge.engine.replay.sinks import opened, sinks_behind
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.storage.records.checkpoints import Position
from airflow_provider_deltaforge.storage.records.dead_letters import StoredDeadLetter

Result = TypeVar("Result")


class ReplayHost(Protocol):
    """Where a replay runs: in a driver, or in the process that asked for it."""

    ending: threading.Event
    processor_stats: ProcessorStats
    dead_letters: DeadLetterStats

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
        for refused in rendered.chained.refused:
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
        chained, messages = rendered.chained, rendered.messages[sink_id]
        of = np.array([chained.origin(row) for row in messages.event_rows.to_pylist()], np.int64)
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
            entry = sent[chained.origin(rejection.event_row)]
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
