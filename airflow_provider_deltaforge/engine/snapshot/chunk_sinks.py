"""Writes rendered rows of a chunk to sinks, and sets aside what one of them refuses."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from airflow_provider_deltaforge.engine.dead_letters.queue import DeadLetterQueue
from airflow_provider_deltaforge.engine.deliver.row_marks import note_marks
from airflow_provider_deltaforge.engine.deliver.sink_group import DeliveryRules, Enough, SinkGroup
from airflow_provider_deltaforge.engine.deliver.sink_thread import SinkBatch
from airflow_provider_deltaforge.engine.render.render_stage import SinkMessages
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.sinks.chunk_rows import ChunkMark
from airflow_provider_deltaforge.sinks.contract import Sink


class DeliveredRows(NamedTuple):
    """What became of rows.

    Attributes:
        refused: what each sink refused that has taken the rest.
        views: which view's rows each sink holds that was given the mark; None: of several.
    """

    refused: Mapping[str, list[Rejection]]
    views: Sequence[str | None]


@dataclass(frozen=True, slots=True)
class ChunkSinks:
    """The sinks that are given a chunk's rows.

    Attributes:
        group: the connections.
        ids: of the sinks.
        exact: of those that take a chunk at once, with its mark.
        dead_letters: holds what is set aside.
        store: stores that once there is room; returns False when asked to end before.
    """

    group: SinkGroup
    ids: Sequence[str]
    exact: Collection[str]
    dead_letters: DeadLetterQueue
    store: Callable[[], bool]

    def write(
        self,
        source: pa.RecordBatch,
        rendered: SinkMessages,
        mark: ChunkMark | None,
        row_marks: dict[str, list[str | None]],
        gives_up: Callable[[], bool],
        enough: Enough | None = None,
    ) -> DeliveredRows | None:
        """Write rows to every sink; None when asked to end.

        Args:
            source: the rows.
            rendered: what the sinks are given of them.
            mark: goes with them where a sink takes all of a chunk; None if these are not all.
            row_marks: of the parts before, see ``RowMarkers.leave``; those of this one are added.
            gives_up: as of ``DeliveryRules``, like ``enough``.
            enough: the same.

        Raises:
            DeltaForgeError: a sink cannot do it, or was resumed since the rows were rendered.
        """
        resumed = [name for name in self.ids if name not in rendered.messages]
        if resumed:  # It lacks the chunks before, too.
            raise RetryableError(f"sink {', '.join(resumed)} was resumed, and lacks these rows")
        messages, held = self.dead_letters.held_back(rendered, self.ids)

        def set_aside(name: str, refused: Sequence[Rejection]) -> None:
            held[name] = [*held.get(name, ()), *refused]
            self.dead_letters.take(rendered, source, {name: held[name]})
            if not self.store():
                raise RetryableError("asked to end before there was room for dead letters")

        marked = [name for name in self.ids if mark is not None and name in self.exact]
        for name in marked:
            # A sink that holds the chunk is not given it again.
            if held.get(name) or rendered.rejections[name] or rendered.processed.refused:
                set_aside(name, ())
        batches = {
            name: SinkBatch(each, chunk=mark if name in marked else None)
            for name, each in messages.items()
        }
        rules = DeliveryRules(gives_up, enough=enough, set_aside=set_aside)
        results = self.group.deliver(batches, rules)
        if results is None:
            return None
        refused = {
            name: [*held.get(name, ()), *result.durable()] for name, result in results.items()
        }
        note_marks(row_marks, messages, results)
        return DeliveredRows(
            refused, [results[name].chunk_text for name in marked if name in results]
        )


def exact_sinks(sinks: Collection[Sink]) -> frozenset[str]:
    """Return the ids of the sinks that take all of a chunk at once, with its mark, or nothing."""
    return frozenset(sink.id for sink in sinks if sink.holds_position and sink.takes_chunks)
