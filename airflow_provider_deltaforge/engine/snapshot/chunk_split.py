"""Splits chunks that are too large for sinks to take them at once.

What is written in several parts is repeated where a driver is killed between two: the next one
reads the chunk from a view of its own. So a chunk is split before any of it is written. Its parts
stand in its place of the plan from then on; each has a view of its own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.snapshot.repair import is_of_keys
from airflow_provider_deltaforge.events.change import ChangeBatch
from airflow_provider_deltaforge.sources.contract import Snapshotter, TableChunk
from airflow_provider_deltaforge.sources.shared.table_chunks import SplitsChunks
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots


class LargeChunk(Exception):  # noqa: N818 - not an error: it is copied in parts
    """A chunk was split; its parts are in the plan."""

    def __init__(self, parts: Sequence[TableChunk]) -> None:
        super().__init__(f"{len(parts)} parts")
        self.parts = parts


def copy_in_parts(chunks: Iterable[TableChunk], copy: Callable[[TableChunk], None]) -> None:
    """Copy chunks one after the other, and of one that is split its parts."""
    left = [*chunks]
    while left:
        try:
            copy(left[0])
            left = left[1:]
        except LargeChunk as large:
            left = [*large.parts, *left[1:]]


class ChunkSplitter:
    """Splits chunks of one run. Used by one thread.

    Args:
        context: of the worker; its fence guards every write.
        run_id: of the run.
        snapshotter: that reads them.
    """

    def __init__(self, context: TaskContext, run_id: str, snapshotter: Snapshotter) -> None:
        self._context, self._run_id, self._snapshotter = context, run_id, snapshotter
        self._records = Snapshots(context.store, context.pipeline.name)
        self._rows: dict[str, int] = {}
        self._whole: set[str] = set()

    def parts_ahead(self, chunk: TableChunk) -> Sequence[TableChunk] | None:
        """Return the parts of a chunk that is as large as others of its table; None of another."""
        rows = self._rows.get(chunk.full_name)
        if rows is None or chunk.rows_estimate <= rows:
            return None
        parts = self._parts(chunk, rows)
        return parts if len(parts) > 1 else None

    def check(self, chunk: TableChunk, rows: int, reading: Iterator[ChangeBatch]) -> None:
        """Split a chunk of which nothing was written yet; return if it cannot be split.

        Args:
            chunk: that turned out to be too large.
            rows: so many of it would not be.
            reading: closed before it is split, because both use one connection.

        Raises:
            LargeChunk: it was split. If it cannot be, with itself alone, to be read again.
        """
        if chunk.id in self._whole or not self._is_splittable(chunk):
            return
        reading.close()  # type: ignore[attr-defined]
        # Rows are not equally large: with half as many, parts are seldom split again.
        self._rows[chunk.full_name] = max(1, rows // 2)
        parts = self._parts(chunk, self._rows[chunk.full_name])
        if len(parts) < 2:
            self._whole.add(chunk.id)
        raise LargeChunk(parts)

    def _parts(self, chunk: TableChunk, rows: int) -> Sequence[TableChunk]:
        if not isinstance(self._snapshotter, SplitsChunks) or not self._is_splittable(chunk):
            return [chunk]
        parts = self._snapshotter.split(chunk, rows)
        if len(parts) > 1:
            write = self._records.chunk_split(self._run_id, chunk.id, parts)
            self._context.store.transact([write], self._context.fence)
        return parts

    def _is_splittable(self, chunk: TableChunk) -> bool:
        """Return whether a chunk can be split; not if sinks may hold rows of it already."""
        splits = self._snapshotter
        if is_of_keys(chunk):  # Each part would delete the keys that the others have rows of.
            return False
        if not isinstance(splits, SplitsChunks) or not splits.is_splittable(chunk):
            return False
        return self._records.begun(self._run_id, chunk.id) is None
