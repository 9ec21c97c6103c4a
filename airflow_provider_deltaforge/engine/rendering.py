"""Processors and rendering of one pipeline: from a batch to messages for every sink."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.encodings.contract import Schemas
from airflow_provider_deltaforge.engine.batch_facts import Taken
from airflow_provider_deltaforge.engine.patience import Closing, patiently
from airflow_provider_deltaforge.engine.processing import Chain, Chained, ProcessorWatcher
from airflow_provider_deltaforge.engine.render import Renderer
from airflow_provider_deltaforge.engine.tallies import Tallies
from airflow_provider_deltaforge.envelopes.contract import Origin
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.spec.document import Pipeline


class RenderingWatcher(ProcessorWatcher, Protocol):
    """Is told how processors and encodings are doing."""

    def trouble(self, name: str, error: BaseException | None) -> None:
        """Called at every failed attempt, and with None when what has that name works again."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """Messages and rejections by sink id; their event rows count in ``chained.rows``."""

    chained: Chained
    messages: Mapping[str, Messages]
    rejections: Mapping[str, Sequence[Rejection]]

    def taken(self, sink_id: str, refused: Sequence[Rejection] = ()) -> Taken:
        """Return what a sink holds but for what it refused; a tombstone is no event of its own."""
        messages = self.messages[sink_id]
        rows = messages.event_rows.to_numpy()
        events = int(np.count_nonzero(np.diff(rows))) + 1 if len(rows) else 0
        events -= len({one.event_row for one in refused})
        return Taken(events, messages.values.nbytes)


class Rendering:
    """Owns the processors and one renderer per sink. Used by one thread at a time.

    Args:
        pipeline: the document.
        origin: what its events share.
        tallies: where the processors' work is counted.
        watcher: told about the trouble of processors and encodings.
        ending: asked while one is tried again; True gives up.
        schemas: finds the schema a row was read by.
        only: the one sink to render for; None: all.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        origin: Origin,
        tallies: Tallies,
        watcher: RenderingWatcher,
        ending: Callable[[], bool],
        schemas: Schemas,
        only: str | None = None,
    ) -> None:
        self._chain = chain_of(pipeline, tallies, watcher, ending)
        self._watcher = watcher
        self._closing = Closing(ending)
        # A lane that begins anew does not wait for the thread that still renders for the old one.
        self._busy = threading.Lock()
        self._renderers = {
            sink.id: Renderer(sink, origin, schemas)
            for sink in pipeline.spec.sinks
            if only in (None, sink.id)
        }

    def open(self) -> None:
        """Start processors and encodings; see ``Chain.open`` and ``Encoding.open``."""
        for renderer in self._renderers.values():
            renderer.open()
        self._chain.open()

    def render(self, rows: pa.RecordBatch, since: str | None = None) -> Rendered:
        """Run every processor in order, then render for every sink.

        Args:
            rows: change events.
            since: begin with this processor; ``""`` runs none, None all of them.
        """
        chained = Chained(rows) if since == "" else self._chain.process(rows, since)
        messages: dict[str, Messages] = {}
        rejections: dict[str, Sequence[Rejection]] = {}
        with self._busy:
            for name, renderer in self._renderers.items():
                messages[name], rejections[name] = patiently(
                    partial(renderer.render, chained.rows),
                    partial(self._watcher.trouble, f"encoding of sink {name}"),
                    self._closing.over,
                    self._closing.rest,
                )
        return Rendered(chained, messages, rejections)

    def close(self) -> None:
        """Close processors and encodings. Safe to call twice."""
        self._closing.close()
        self._chain.close()
        for renderer in self._renderers.values():
            renderer.close()


def chain_of(
    pipeline: Pipeline, tallies: Tallies, watcher: ProcessorWatcher, ending: Callable[[], bool]
) -> Chain:
    """Return the processors of a pipeline, not opened yet; see ``Chain``."""
    meta, connector = pipeline.metadata, pipeline.spec.source.connector
    settled = [
        processor.within(meta.name, meta.tenant, connector)
        for processor in pipeline.spec.processors
    ]
    return Chain(settled, tallies, watcher, ending)
