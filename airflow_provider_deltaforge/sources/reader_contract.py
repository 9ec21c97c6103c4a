"""What every reader of a source's log promises, and what some can beyond that."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from airflow_provider_deltaforge.events.position import Position

if TYPE_CHECKING:  # Descriptions of sources are read where no Arrow is needed.
    from airflow_provider_deltaforge.events.change import ChangeBatch


class LogSegment(Protocol):
    """A part of the log whose transaction borders are known, but whose rows are not yet decoded.

    Picklable and self-contained: it carries every table description its decoding needs.
    """

    @property
    def nbytes(self) -> int:
        """Return how many bytes of log it holds."""

    @property
    def end(self) -> Position:
        """Return where reading may resume after the last complete transaction."""


class LogReader(Protocol):
    """A replication connection, and the decoder of what it reads.

    ``read`` is called by the reader thread, ``decode`` by the decoder thread, ``acknowledge`` and
    ``lag`` by the delivery thread; the three run at the same time.
    """

    def read(self, timeout_s: float) -> LogSegment | None:
        """Return what the server has sent, or None when nothing came within ``timeout_s``.

        Reconnects by itself, from the last position it handed out.

        Raises:
            RetryableError: the server is away; the call may be repeated.
            ServerChangedError: another server answers; the log must be opened again.
            PositionLostError, AccessError, SchemaError: a person must act.
        """

    @property
    def is_caught_up(self) -> bool:
        """Return whether ``read`` had, when it returned, handed out all that was there.

        What comes while nobody reads is read together later. Called by the reader thread.
        """

    def decode(self, segment: Any) -> "ChangeBatch":
        """Decode a segment that this reader read. Holds no lock that ``read`` needs."""

    def acknowledge(self, position: Position) -> None:
        """Report to the server that everything up to ``position`` is durable everywhere."""

    def close(self) -> None:
        """Close the connection. Safe to call twice, and from another thread."""


@dataclass(frozen=True, slots=True)
class AppearedTable:
    """A table whose changes the log begins to hold, and which had rows before.

    Attributes:
        table: its full name.
        position: where in the log it appeared; None where the log has no sign of it.
        former: its captured former name, under which its rows came; None: it has had none.
    """

    table: str
    position: Position | None
    former: str | None = None


@runtime_checkable
class ReportsAppearedTables(Protocol):
    """A reader that finds tables whose rows were there before the log held their changes."""

    def appeared_tables(self) -> Sequence[AppearedTable]:
        """Return the tables found since the reader was opened. Called by the delivery thread."""


@dataclass(frozen=True, slots=True)
class NamedTables:
    """Which table has which name.

    Attributes:
        server: identifies the server; names of two servers cannot be compared.
        tables: a table's own id, which a rename does not change, by full name; whatever the reader
            has to remember of it besides stands in front of it.
    """

    server: str
    tables: Mapping[str, str]


@runtime_checkable
class ReportsTableNames(Protocol):
    """A reader that finds tables renamed to a captured name, which the log does not show.

    They are among its ``appeared_tables``.
    """

    def note_table_names(self, names: NamedTables) -> None:
        """Set which table had which name before. Called before the first ``read``."""

    def named_tables(self) -> NamedTables | None:
        """Return which table has which name now; None if that was not looked up.

        Called by the delivery thread, which stores the answer once it has stored everything that
        ``appeared_tables`` returned.
        """


@runtime_checkable
class ReportsSilence(Protocol):
    """A reader whose server sends something from time to time, also when nothing is written."""

    def silence(self) -> tuple[float, str] | None:
        """Return how many seconds the server has been silent too long, and why, for people.

        None while all is well. Called by any thread.
        """


@runtime_checkable
class SkipsTables(Protocol):
    """A reader that can go on without a table that it cannot decode."""

    def skip_tables(self, tables: Collection[str]) -> None:
        """Skip the rows of tables, by full name. Called before the first ``read``."""


@runtime_checkable
class WarnsOfStatements(Protocol):
    """A reader that can go on where it is unclear whether a logged statement changed a table."""

    def warn_of_statements(self) -> None:
        """Log such statements as warnings; for who only looks. Called before the first ``read``."""
