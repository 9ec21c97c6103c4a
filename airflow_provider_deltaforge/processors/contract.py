"""What every processor promises."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.spec.settings import PluginSettings

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Processed:
    """What a processor made of one batch.

    Attributes:
        rows: change events in CHANGE_SCHEMA. The chain puts them into the order of ``origins``;
            several of one origin stay as they are.
        origins: int32 per row: the row of the input it stands for or was made from. None: the
            rows are the input's, one for one.
        made: bool per row: the processor created this event, whose ``event_id`` is then filled in
            by the chain from the origin's id, the processor's id and an ordinal, so that it is the
            same on every replay. None: it created none.
        placed: bool per row: of the created events those of which nothing but their place among the
            others tells an origin. That changes with the batches, so what they hold is a part of
            their ids. None: there are none.
        rejections: events of the input that could not be processed; ``event_row`` counts in the
            input. They are not in ``rows``; the pipeline sets them aside, or stops.
        counts: what happened to how many events since the last batch, by a name of the processor's
            own, for example ``{"dropped": 3}``; for metrics.
    """

    rows: "pa.RecordBatch"
    origins: "pa.Int32Array | None" = None
    made: "pa.BooleanArray | None" = None
    rejections: Sequence[Rejection] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    placed: "pa.BooleanArray | None" = None


def rejected(row: int, reason: str) -> Rejection:
    """Return the rejection of an event of the input, by its row; the reason holds no values."""
    return Rejection(row, "processor", reason)


class Worker(Protocol):
    """A processor at work in one lane, or in one task of a snapshot.

    Used by one thread at a time; it may be opened, used and closed by three.
    """

    def process(self, rows: "pa.RecordBatch") -> Processed:
        """Process a batch of at least one event, which may be a slice of a larger one.

        Raises:
            EventError: the batch cannot be processed as a whole; nothing of it is delivered.
            RetryableError: the same batch may succeed later.
            FatalError: processing can never work.
        """

    def close(self) -> None:
        """Release what was opened. Safe to call twice."""


class Processor(PluginSettings):
    """A description: picklable, holds no interpreter and no connection."""

    masks: ClassVar[bool] = False
    """Events are not to be kept as they were before this processor: what it or one in front of it
    refuses is set aside without its row images."""

    keeps_tables: ClassVar[bool] = False
    """No event leaves it under another table's name than the one it came with."""

    keeps_columns: ClassVar[bool] = False
    """Rows leave it with the columns they came with, each made of itself alone; see ``hides``."""

    template_fields: ClassVar[frozenset[str]] = frozenset({"topic", "key"})
    """Settings that hold ``${…}`` of their own: templates, or text in another language. Elsewhere
    only ``${VAR}`` and ``${VAR:-default}`` may stand, so that no slip becomes a value."""

    id: str
    """Names the processor in metrics and logs, and marks the events it makes."""

    def within(self, pipeline: str, tenant: str, connector: str) -> "Processor":
        """Return the description as part of a pipeline, for those whose users see its names."""
        return self

    def check(self) -> None:
        """Try what only trying shows, such as whether a script compiles; for ``validate``.

        Raises:
            SpecError: the settings cannot work. A driver that is not installed is no reason.
        """

    def unmatched(self, tables: Sequence[TableSchema]) -> Sequence[str]:
        """Return the patterns of columns that no captured table has; for the preflight.

        Args:
            tables: every captured table.
        """
        return ()

    def lets_pass(self, table: TableSchema) -> bool:
        """Return whether any event of a table may leave it."""
        del table
        return True

    def hides(self, table: TableSchema, column: str) -> bool:
        """Return whether values of a column, as the source has them, are not to be shown.

        Args:
            table: as it is registered; a processor in front of this one may add columns to it.
            column: the column's name.
        """
        del table, column
        return self.masks

    @abstractmethod
    def open(self) -> Worker:
        """Start the worker. Called once per lane."""
