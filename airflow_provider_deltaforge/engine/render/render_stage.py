"""Processors and rendering of one pipeline: from a batch to messages for every sink."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns.binary_columns import bytes_in
from airflow_provider_deltaforge.encodings.contract import Schemas
from airflow_provider_deltaforge.engine.base.processor_stats import ProcessorStats, SinkCounts
from airflow_provider_deltaforge.engine.base.retry import StopRetrying, retry_until
from airflow_provider_deltaforge.engine.render.former_keys import with_former_keys
from airflow_provider_deltaforge.engine.render.processed_batch import ProcessedBatch
from airflow_provider_deltaforge.engine.render.processor_chain import (
    ProcessorChain,
    ProcessorWatcher,
)
from airflow_provider_deltaforge.engine.render.render_queue import DeferredRender, RenderQueue
from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.envelopes.contract import Origin
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.spec.document import Pipeline


class RenderWatcher(ProcessorWatcher, Protocol):
    """Called with what processors and encodings do and the errors they meet."""

    def report_error(self, name: str, error: BaseException | None) -> None:
        """Called at every failed attempt, and with None when what has that name works again."""


@dataclass(frozen=True, slots=True)
class SinkMessages:
    """Messages and rejections by sink id; their event rows count in ``processed.rows``."""

    processed: ProcessedBatch
    messages: Mapping[str, Messages]
    rejections: Mapping[str, Sequence[Rejection]]
    deferred: Mapping[str, DeferredRender] = field(default_factory=dict)
    """The sinks whose messages are still to be rendered."""

    def grown(self, sink_ids: Iterable[str]) -> "SinkMessages":
        """Return it with what was rendered for sinks meanwhile."""
        found = {name: self.deferred[name].made for name in sink_ids if name in self.deferred}
        there = {name: made for name, made in found.items() if made is not None}
        if not there:
            return self
        return replace(
            self,
            messages={**self.messages, **{name: made[0] for name, made in there.items()}},
            rejections={**self.rejections, **{name: made[1] for name, made in there.items()}},
            deferred={
                name: deferred for name, deferred in self.deferred.items() if name not in there
            },
        )

    def passed(self) -> None:
        """Note that the lane has gone beyond the batch."""
        for deferred in self.deferred.values():
            deferred.drop()

    def taken(self, sink_id: str, refused: Sequence[Rejection] = ()) -> SinkCounts:
        """Return what a sink holds but for what it refused; a tombstone is no event of its own."""
        messages = self.messages[sink_id]
        rows = messages.event_rows.to_numpy()
        events = int(np.count_nonzero(rows[1:] != rows[:-1])) + 1 if len(rows) else 0
        events -= len({rejection.event_row for rejection in refused})
        return SinkCounts(events, bytes_in(messages.values))


class RenderStage:
    """Owns the processors and one renderer per sink. Used by one thread at a time.

    Args:
        pipeline: the document.
        origin: what its events share.
        processor_stats: where the processors' work is counted.
        watcher: called with errors of processors and encodings.
        ending: asked while one is tried again; True gives up.
        schemas: finds the schema a row was read by.
        only: the sinks to render for; None: all.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        origin: Origin,
        processor_stats: ProcessorStats,
        watcher: RenderWatcher,
        ending: Callable[[], bool],
        schemas: Schemas,
        only: Collection[str] | None = None,
    ) -> None:
        self._chain = chain_of(pipeline, processor_stats, watcher, ending)
        self._watcher = watcher
        self._closing = StopRetrying(ending)
        self._renderers = {
            sink.id: Renderer(sink, origin, schemas, pipeline.spec.sharding)
            for sink in pipeline.spec.sinks
            if only is None or sink.id in only
        }
        self._links_keys = bool(pipeline.spec.journal.enabled) or any(
            renderer.links_keys for renderer in self._renderers.values()
        )
        """Both keys of an update that changes them are to be known: dead letters need them, too."""

    def open(self, parallelism: int = 1) -> None:
        """Start processors and encodings; see ``ProcessorChain.open`` and ``Encoding.open``."""
        for renderer in self._renderers.values():
            renderer.open()
        self._chain.open(parallelism)
        self._links_keys |= parallelism > 1  # A row's parts are known by its keys.

    def render(
        self,
        rows: pa.RecordBatch,
        since: str | None = None,
        sink_ids: Collection[str] | None = None,
        leaves: Callable[[str], bool] = lambda _: False,
    ) -> SinkMessages:
        """Run every processor in order, then render for sinks, however long that takes.

        Args:
            rows: change events.
            since: begin with this processor; ``""`` runs none, None all of them.
            sink_ids: for these; None: for all.
            leaves: says of a sink for which that does not work now to go on without it.
        """
        if since is None and self._links_keys:
            rows = with_former_keys(rows)
        processed = ProcessedBatch(rows) if since == "" else self._chain.process(rows, since)
        messages: dict[str, Messages] = {}
        rejections: dict[str, Sequence[Rejection]] = {}
        for name in self._renderers if sink_ids is None else sink_ids:
            try:
                messages[name], rejections[name] = self._retry(name, processed.rows, leaves)
            except RetryableError:
                if self._closing.over() or not leaves(name):
                    raise
        return SinkMessages(processed, messages, rejections)

    def _retry(
        self, name: str, rows: pa.RecordBatch, leaves: Callable[[str], bool]
    ) -> tuple[Messages, Sequence[Rejection]]:
        renderer = self._renderers[name]
        with renderer.busy:
            return retry_until(
                partial(renderer.render, rows),
                partial(self._watcher.report_error, f"encoding of sink {name}"),
                lambda: self._closing.over() or leaves(name),
                self._closing.rest,
            )

    def encoding_counts(self) -> dict[str, Mapping[str, int]]:
        """Return what the encoding of each sink counts. Called by any thread."""
        return {name: each.encoding_counts.copy() for name, each in self._renderers.items()}

    def ahead(self, goes: Callable[[str], bool]) -> "RenderAhead":
        """Return what renders one opening of the log ahead of its delivery.

        Args:
            goes: says whether a sink is given what is read; for others nothing is rendered.
        """
        queues = {name: RenderQueue(renderer) for name, renderer in self._renderers.items()}
        return RenderAhead(self._chain, queues, goes, links_keys=self._links_keys)

    def close(self) -> None:
        """Close processors and encodings. Safe to call twice."""
        self._closing.close()
        self._chain.close()
        for renderer in self._renderers.values():
            renderer.close()


class RenderAhead:
    """Renders for sinks that do not wait for each other; see ``RenderStage.ahead``."""

    def __init__(
        self,
        chain: ProcessorChain,
        queues: Mapping[str, RenderQueue],
        goes: Callable[[str], bool],
        *,
        links_keys: bool,
    ) -> None:
        self._chain, self._queues, self._goes = chain, queues, goes
        self._links_keys = links_keys

    def render(self, rows: pa.RecordBatch) -> SinkMessages:
        """Run every processor in order, then render for each sink for which that works."""
        processed = self._chain.process(with_former_keys(rows) if self._links_keys else rows)
        deferred = {
            name: queue.ahead(processed.rows, wanted=self._goes(name))
            for name, queue in self._queues.items()
        }
        return SinkMessages(processed, {}, {}, deferred).grown(deferred)


def chain_of(
    pipeline: Pipeline,
    processor_stats: ProcessorStats,
    watcher: ProcessorWatcher,
    ending: Callable[[], bool],
) -> ProcessorChain:
    """Return the processors of a pipeline, not opened yet; see ``ProcessorChain``."""
    meta, connector = pipeline.metadata, pipeline.spec.source.connector
    settled = [
        processor.within(meta.name, meta.tenant, connector)
        for processor in pipeline.spec.processors
    ]
    return ProcessorChain(settled, processor_stats, watcher, ending)
