"""What one side holds of each row: a checksum by key, spilled to disk and read back in buckets.

In memory is at most one part of ``_PART_ROWS`` states that is not written yet, and one bucket of
each side while they are compared: a 64th of all states.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.errors import FatalError

BUCKETS = 64
_PART_ROWS = 1 << 17
_PART_BYTES = 64 << 20
_SHIFT = np.uint64(58)

ABSENT, DROPPED, MARKED, LATE = 1, 2, 4, 8
"""Flags: the row is gone; processors drop it; the log did not repeat parts of it; the message came
behind the first reading."""

STATES = pa.schema(
    [
        pa.field("id", pa.uint64()),  # of table and key
        pa.field("content", pa.uint64()),
        pa.field("order", pa.int64()),  # in which it was read
        pa.field("time_ms", pa.int64()),
        pa.field("place", pa.int32()),  # within one place the order counts, between two the time
        pa.field("table", pa.int32()),
        pa.field("flags", pa.uint8()),
        pa.field("key", pa.binary()),
        pa.field("unchanged", pa.binary()),  # JSON list of columns, with MARKED
    ]
)


def states(columns: dict[str, Any], count: int) -> pa.RecordBatch:
    """Return states; columns that are not given are zero or null."""
    arrays = []
    for column in STATES:
        values = columns.get(column.name)
        if values is None:
            nothing = pa.types.is_binary(column.type)
            values = (
                pa.nulls(count, column.type)
                if nothing
                else np.zeros(count, column.type.to_pandas_dtype())
            )
        arrays.append(values if isinstance(values, pa.Array) else pa.array(values, column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=STATES)


@dataclass
class StateFiles:
    """The states of one side, in files of a directory of their own.

    Attributes:
        directory: made when the first part is written.
        rows: how many states were added.
    """

    directory: Path
    rows: int = 0
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _waiting_rows: int = 0
    _waiting_bytes: int = 0
    _parts: list[Path] = field(default_factory=list)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add states behind the others."""
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= _PART_ROWS or self._waiting_bytes >= _PART_BYTES:
            self._write()

    def bucket(self, number: int) -> pa.Table:
        """Return one bucket's states in the order in which they were added."""
        self._write()
        batches = []
        for path in self._parts:
            with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
                batches.append(reader.get_batch(number))
        return pa.Table.from_batches(batches, STATES)

    def clear(self) -> None:
        """Forget everything."""
        self._waiting, self._waiting_rows, self._waiting_bytes, self.rows = [], 0, 0, 0
        self._parts = []
        shutil.rmtree(self.directory, ignore_errors=True)

    def _write(self) -> None:
        if not self._waiting:
            return
        whole = pa.Table.from_batches(self._waiting, STATES)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        buckets = (whole["id"].to_numpy() >> _SHIFT).astype(np.int8)
        order = np.argsort(buckets, kind="stable")
        ends = np.searchsorted(buckets[order], np.arange(BUCKETS + 1))
        ordered = whole.take(pa.array(order)).combine_chunks()
        path = self.directory / f"{len(self._parts):06d}.arrow"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, STATES) as writer:
                for number in range(BUCKETS):
                    part = ordered.slice(ends[number], ends[number + 1] - ends[number])
                    batches = part.combine_chunks().to_batches()
                    writer.write_batch(batches[0] if batches else states({}, 0))
        except OSError as error:
            raise FatalError(
                f"{path} cannot be written ({error}); about 100 bytes a row are needed there for a "
                "while: make room, or name another directory in TMPDIR"
            ) from error
        self._parts.append(path)


@dataclass(frozen=True, slots=True)
class Truncation:
    """A table was emptied.

    Attributes:
        table: its number.
        order: when it was read.
        time_ms: when it was written.
        place: where.
        is_late: it came behind the first reading.
    """

    table: int
    order: int
    time_ms: int
    place: int
    is_late: bool = False

    def is_behind(self, place: Any, order: Any, time_ms: Any) -> Any:
        """Return whether states, or one of them, were there before the table was emptied."""
        return np.where(place == self.place, order < self.order, time_ms <= self.time_ms)


def latest(found: pa.Table, truncations: Sequence[Truncation] = ()) -> pa.Table:
    """Return the last state of each row, by id.

    Within one place the last one read counts; of several places, the one with the latest time.
    """
    if not found.num_rows:
        return found
    ids, order = found["id"].to_numpy(), found["order"].to_numpy()
    place, time = found["place"].to_numpy(), found["time_ms"].to_numpy()
    by_place = np.lexsort((order, place, ids))
    is_last = np.ones(len(ids), np.bool_)
    is_last[:-1] = (ids[by_place][1:] != ids[by_place][:-1]) | (
        place[by_place][1:] != place[by_place][:-1]
    )
    kept = by_place[is_last]
    by_time = kept[np.lexsort((order[kept], time[kept], ids[kept]))]
    is_last = np.ones(len(by_time), np.bool_)
    is_last[:-1] = ids[by_time][1:] != ids[by_time][:-1]
    chosen = by_time[is_last]
    result = found.take(pa.array(chosen)).combine_chunks()
    return _emptied(result, truncations) if truncations else result


def _emptied(found: pa.Table, truncations: Sequence[Truncation]) -> pa.Table:
    """Return states, those that lie in front of a truncation as absent."""
    table, flags = found["table"].to_numpy(), found["flags"].to_numpy().copy()
    order, time = found["order"].to_numpy(), found["time_ms"].to_numpy()
    place = found["place"].to_numpy()
    for cut in truncations:
        emptied = (table == cut.table) & cut.is_behind(place, order, time)
        flags[emptied] |= ABSENT | (LATE if cut.is_late else 0)
    at = STATES.get_field_index("flags")
    return found.set_column(at, STATES.field(at), pa.array(flags, pa.uint8()))


@dataclass(frozen=True, slots=True)
class Compared:
    """Both sides' rows of one bucket.

    Attributes:
        tables: int32 per row, its table's number.
        source: index of the row's state in the source's bucket; -1: the source has no such row.
        sink: the same of the sink's.
        dropped: which rows processors do not let through now: any state of the sink is right.
        differs: which rows differ, in either direction.
        late: which of these may still be in motion, or need a look at the source's row.
        keys: binary.
    """

    tables: Any
    source: Any
    sink: Any
    dropped: Any
    differs: Any
    late: Any
    keys: pa.BinaryArray


def compared(source: pa.Table, sink: pa.Table) -> Compared:
    """Compare the latest states of one bucket, by id."""
    left, right = source["id"].to_numpy(), sink["id"].to_numpy()
    ids = np.union1d(left, right)
    at_source, at_sink = _places(left, ids), _places(right, ids)
    source_flags, source_content = _spread(source, at_source)
    sink_flags, sink_content = _spread(sink, at_sink)
    dropped = (source_flags & DROPPED) != 0
    in_source = (source_flags & ABSENT) == 0
    in_sink = (sink_flags & ABSENT) == 0
    marked = (sink_flags & MARKED) != 0
    same = np.where(
        in_source & in_sink, (source_content == sink_content) & ~marked, in_source == in_sink
    )
    differs = ~same & ~dropped
    late = ((sink_flags & LATE) != 0) | (marked & in_source)
    tables = np.zeros(len(ids), np.int32)
    tables[at_sink >= 0] = sink["table"].to_numpy()[at_sink[at_sink >= 0]]
    tables[at_source >= 0] = source["table"].to_numpy()[at_source[at_source >= 0]]
    both = pa.concat_arrays([_whole(source["key"]), _whole(sink["key"])])
    place = np.where(at_source >= 0, at_source, at_sink + source.num_rows)
    return Compared(
        tables,
        np.where(in_source, at_source, -1),
        np.where(in_sink, at_sink, -1),
        dropped,
        differs,
        late,
        both.take(pa.array(place)),
    )


def _places(own: Any, ids: Any) -> Any:
    """Return for each id where it stands among sorted ones of its own; -1: nowhere."""
    if not len(own):
        return np.full(len(ids), -1, np.int64)
    at = np.minimum(np.searchsorted(own, ids), len(own) - 1)
    return np.where(own[at] == ids, at, -1)


def _spread(found: pa.Table, at: Any) -> tuple[Any, Any]:
    """Return flags and checksums, ``ABSENT`` and 0 where there is no state."""
    flags, content = np.full(len(at), ABSENT, np.uint8), np.zeros(len(at), np.uint64)
    there = at >= 0
    flags[there] = found["flags"].to_numpy()[at[there]]
    content[there] = found["content"].to_numpy()[at[there]]
    return flags, content


def _whole(column: pa.ChunkedArray) -> pa.BinaryArray:
    found = column.combine_chunks()
    return found if isinstance(found, pa.BinaryArray) else pa.array([], pa.binary())


def each_bucket(files: Sequence[StateFiles]) -> Iterator[tuple[pa.Table, ...]]:
    """Yield the same bucket of several sides, one after the other."""
    for number in range(BUCKETS):
        yield tuple(each.bucket(number) for each in files)
