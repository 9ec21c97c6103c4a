"""What every processor promises."""

from abc import abstractmethod
from collections.abc import Callable

import pyarrow as pa

from airflow_provider_deltaforge.spec.settings import PluginSettings

Process = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Rows in CHANGE_SCHEMA in, rows in CHANGE_SCHEMA out, in order; may drop, change and add rows.

An added row gets its own event id, computed from the id of the row it was made from, the
processor's id and an ordinal, so that it is the same on every replay."""


class Processor(PluginSettings):
    """A description: picklable, holds no interpreter and no connection."""

    id: str
    """Names the processor in metrics and logs, and marks the events it makes."""

    @abstractmethod
    def open(self) -> Process:
        """Start the worker. Called once per lane; used by one thread."""
