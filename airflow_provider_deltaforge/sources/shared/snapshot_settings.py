"""What a document says about the copy of rows."""

from typing import Literal

from pydantic import PositiveInt

from airflow_provider_deltaforge.spec.settings import Settings


class SnapshotSettings(Settings):
    """The copy of rows that were there before the log is followed."""

    mode: Literal["never", "initial", "always"] = "initial"
    """When to copy the tables: once, or at each start by a person or DAG run."""
    max_parallel_tables: PositiveInt = 8
    """Tables copied at the same time."""
    chunk_size: PositiveInt = 10_000
    """Rows in one chunk."""
    intra_table_parallel: bool = False
    """Copy the chunks of one table at the same time."""
    max_parallel_chunks: PositiveInt = 4
    """Chunks of one table copied at the same time, with ``intra_table_parallel``."""
    max_connections: PositiveInt | None = None
    """Connections that read rows at the same time, in all tasks of a copy together; without it as
    many as there may be tables, and chunks of one table, at the same time."""
    max_rows_per_s: PositiveInt | None = None
    """Rows read per second at the most, in all tasks of a copy together."""
    max_bytes_per_s: PositiveInt | None = None
    """Bytes of rows, as JSON, read per second at the most, in all tasks of a copy together."""

    def limits(self) -> dict[str, int]:
        """Return the limits that are set, by the setting's name."""
        settings = ("max_connections", "max_rows_per_s", "max_bytes_per_s")
        return {name: value for name in settings if (value := getattr(self, name)) is not None}
