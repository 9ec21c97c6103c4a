"""Processors and rendering of one pipeline: from a batch to messages for every sink."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from airflow_provider_deltaforge.engine.render import Renderer
from airflow_provider_deltaforge.envelopes.contract import Origin
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.spec.document import Pipeline


@dataclass(frozen=True, slots=True)
class Rendered:
    """Messages and rejections by sink id."""

    messages: Mapping[str, Messages]
    rejections: Mapping[str, Sequence[Rejection]]


class Rendering:
    """Owns the processors and one renderer per sink. Used by one thread."""

    def __init__(self, pipeline: Pipeline, origin: Origin) -> None:
        self._workers = [processor.open() for processor in pipeline.spec.processors]
        self._renderers = {sink.id: Renderer(sink, origin) for sink in pipeline.spec.sinks}

    def render(self, rows: pa.RecordBatch) -> Rendered:
        """Run every processor in order, then render for every sink."""
        if rows.num_rows:
            for worker in self._workers:
                rows = worker.process(rows).rows
        messages: dict[str, Messages] = {}
        rejections: dict[str, Sequence[Rejection]] = {}
        for name, renderer in self._renderers.items():
            messages[name], rejections[name] = renderer.render(rows)
        return Rendered(messages, rejections)
