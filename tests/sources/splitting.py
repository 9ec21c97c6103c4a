"""What the tests of all sources share about chunks that are split."""

from collections.abc import Sequence
from typing import Any

from airflow_provider_deltaforge.sources.contract import TableChunk


def keys_of(snapshotter: Any, chunk: TableChunk) -> list[bytes]:
    """Return the keys of a chunk's rows."""
    return [
        key for batch in snapshotter.read(chunk, "run") for key in batch.rows["key"].to_pylist()
    ]


def split(snapshotter: Any, chunk: TableChunk, rows: int) -> Sequence[TableChunk]:
    """Split a chunk; check that its parts are of one size and hold its rows, in order."""
    parts: Sequence[TableChunk] = snapshotter.split(chunk, rows)
    keys = [keys_of(snapshotter, part) for part in parts]
    assert [key for part in keys for key in part] == keys_of(snapshotter, chunk)
    assert {len(part) for part in keys[:-1]} == {rows}
    assert len(keys[-1]) <= rows
    assert len({part.id for part in [chunk, *parts]}) == len(parts) + 1
    assert chunk.bounds.get("after") == parts[0].bounds.get("after")
    assert chunk.bounds.get("upto") == parts[-1].bounds.get("upto")
    return parts
