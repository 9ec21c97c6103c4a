"""What every source promises."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import PositiveInt

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.schemas.history import SchemaHistory
from airflow_provider_deltaforge.spec.settings import PluginSettings, Settings

Identity = Mapping[str, Any]
"""Whose log it is, as JSON: ``{"type": "my_sql", "server_uuid": "…"}``."""


class LogSegment(Protocol):
    """Raw log, understood down to transaction borders, rows not yet decoded.

    Picklable and self-contained: it carries every table description its decoding needs.
    """

    @property
    def nbytes(self) -> int:
        """Return the length in bytes of the log in it."""

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
            ServerChangedError: another server answers; whoever reads must open the log anew.
            PositionLostError, AccessError, SchemaError: a person must act.
        """

    def decode(self, chunk: Any) -> ChangeBatch:
        """Turn a chunk of this reader into change events. Holds no lock ``read`` needs."""

    def acknowledge(self, position: Position) -> None:
        """Tell the server that everything up to ``position`` is durable everywhere."""

    def close(self) -> None:
        """Let go of the connection. Safe to call twice, and from another thread."""


@dataclass(frozen=True, slots=True)
class AppearedTable:
    """A table that the log begins to tell of, which had rows before.

    Attributes:
        table: its full name.
        position: whoever has everything up to here has read of it; None where the log says nothing.
    """

    table: str
    position: Position | None


@runtime_checkable
class ReportsAppearedTables(Protocol):
    """A reader that finds tables whose rows were there before the log told of them."""

    def appeared(self) -> Sequence[AppearedTable]:
        """Return what was found since the reader was opened. Called by the delivery thread."""


@dataclass(frozen=True, slots=True)
class NamedTables:
    """Which table has which name.

    Attributes:
        server: where; what another one says cannot be compared.
        tables: what tells a table from others, whatever it is called, by full name.
    """

    server: str
    tables: Mapping[str, str]


@runtime_checkable
class ReportsTableNames(Protocol):
    """A reader that finds tables which have taken a captured name, where the log says nothing.

    It tells them as ``ReportsAppearedTables`` does.
    """

    def know(self, named: NamedTables) -> None:
        """Take note of how tables were called. Called before the first ``read``."""

    def named(self) -> NamedTables | None:
        """Return how they are called now; None if that was not looked at.

        Called by the delivery thread. What it tells is to be known once all is noted that
        ``appeared`` has found.
        """


@runtime_checkable
class ReportsSilence(Protocol):
    """A reader whose server says something from time to time, also when nothing is written."""

    def silence(self) -> tuple[float, str] | None:
        """Return for how many seconds it said nothing although it should have, and what is missed.

        None while all is well. Called by any thread.
        """


@runtime_checkable
class SkipsTables(Protocol):
    """A reader that goes on without a table that it cannot decode."""

    def leave_out(self, tables: Collection[str]) -> None:
        """Pass over the rows of tables, by full name. Called before the first ``read``."""


@dataclass(frozen=True, slots=True)
class TableChunk:
    """One piece of one table's snapshot; JSON-able, so that it can be planned once and stored.

    ``bounds`` belongs to the source: for example ``{"after": [...], "upto": [...]}``.
    """

    id: str
    db: str
    schema: str | None
    table: str
    bounds: Mapping[str, Any] = field(default_factory=dict)
    rows_estimate: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of the preflight."""

    check: str
    verdict: str
    """``ok``, ``warn``, ``high_risk`` or ``fail``."""
    message: str
    data: Mapping[str, Any] = field(default_factory=dict)


class Snapshotter(Protocol):
    """Reads tables. Opened on the driver to plan, and in each Spark task to read."""

    def begin(self) -> Position:
        """Return the position the stream must start at so that no chunk read later has a gap.

        Called once per snapshot run, before the first chunk is read, and then stored: a resumed
        run goes on with the stored position.
        """

    def plan(
        self, chunk_rows: int, tables: Sequence[str] = (), where: str | None = None
    ) -> Iterator[TableChunk]:
        """Cut the captured tables into chunks, table by table.

        Args:
            chunk_rows: rows in one chunk, about.
            tables: patterns of the captured tables to copy; empty copies all.
            where: SQL condition on the rows, for exactly one table.

        Raises:
            SpecError: a pattern matches no captured table, or the condition is wrong.
        """

    def read(self, chunk: TableChunk, run: str) -> Iterator[ChangeBatch]:
        """Yield the rows of a chunk as op ``r`` events.

        Every batch's ``end`` is the chunk's cut: what the rows' view is known to contain.
        """

    def guard(self, position: Position) -> None:
        """Check that the log from ``position`` on is still there.

        Raises:
            PositionLostError: it is not; the snapshot is worthless and must be cancelled.
        """

    def close(self) -> None:
        """Let go of the connection. Safe to call twice."""


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


class Source(PluginSettings):
    """A description: picklable, holds no connection."""

    connector: ClassVar[str]
    """The source's name in events: ``mysql``, ``postgresql``, …"""

    tells_schema_changes: ClassVar[bool] = False
    """Whether the log holds schema changes of captured tables, as events of op ``ddl``."""

    id: str
    """Names the source in checkpoints and metrics, and seeds its event ids."""
    snapshot: SnapshotSettings = SnapshotSettings(mode="never")
    """The initial copy; none if the block is absent."""

    @abstractmethod
    def open(
        self,
        position: Position | None,
        stopping: Callable[[], bool] = lambda: False,
        history: SchemaHistory | None = None,
    ) -> LogReader:
        """Connect and start reading after ``position``; at the head of the log when it is None.

        Args:
            position: where to begin.
            stopping: asked while waiting, whether to give up.
            history: what was known of the tables where reading begins, for a log that does not
                describe them fully.
        """

    def beside(self, reader: str, *, once: bool = False) -> "Source":
        """Return this source as one more reader of the log, next to the pipeline's own.

        A server that knows its readers by a number or slot gets another one; event ids and
        positions stay the same.

        Args:
            reader: tells readers of one source apart.
            once: it reads a range that the reader of this name still holds, beside it, and leaves
                nothing on the server.
        """
        return self

    def behind(self, reader: str) -> "Source":
        """Return this source as a second reader of what the first holds; it leaves nothing."""
        return self.beside(f"behind-{reader}", once=True)

    @abstractmethod
    def open_snapshot(self) -> Snapshotter:
        """Connect for reading tables."""

    @abstractmethod
    def preflight(self) -> Sequence[Finding]:
        """Check settings, permissions and retention; never raises for a finding."""

    def warm(self) -> None:
        """Do once for each installation what the first reader would have to wait for."""

    def schemas_at(self, position: Position) -> Sequence[TableSchema]:
        """Return how captured tables look behind a position that was the log's head a moment ago.

        Only those that are known for sure; none where the log itself describes its rows.
        """
        return ()

    @abstractmethod
    def compare(self, left: Position, right: Position) -> int:
        """Return -1, 0 or 1 as ``left`` lies before, at or after ``right``.

        Raises:
            PositionLostError: the two lie on histories that cannot be ordered.
        """

    def covers(self, at: Position, position: Position) -> bool:
        """Say whether whoever has everything up to ``at`` has everything up to ``position``.

        Where positions have no one order, each of two may lack what the other has.
        """
        return self.compare(at, position) >= 0

    @abstractmethod
    def head(self) -> Position:
        """Return the current end of the server's log."""

    def beginning(self) -> Position:
        """Return where a stream begins that has never run; the head, unless the source knows more.

        What the server must keep for the stream is kept from then on.
        """
        return self.head()

    def identity(self) -> Identity | None:
        """Return which server's log answers now; None where one source is always the same."""
        return None

    def reach(self, position: Position) -> None:
        """Check that the log can be followed from ``position`` on, on the server that answers now.

        Raises:
            PositionLostError: it cannot; the text says which changes are lost.
            RetryableError: not yet: the server is a replica that has still to apply them.
        """

    def describe(self) -> Sequence[TableSchema]:
        """Return every captured table as the server's catalog describes it now.

        Raises:
            SpecError: this source cannot say.
        """
        raise SpecError(f"a source of type {self.connector} does not list its tables")

    def named_tables(self) -> NamedTables | None:
        """Return which table has which name now; None where the log tells of renames."""
        return None

    def catalog(self, tables: Sequence[TableSchema]) -> Mapping[str, TableSchema | None]:
        """Return how tables look now, by full name; None for one that is gone.

        Tables that are not captured any more are left out.
        """
        return {}

    def earliest(self, positions: Sequence[Position]) -> Position | None:
        """Return the position that lies before all others; None without any."""
        found: Position | None = None
        for position in positions:
            if found is None or self.compare(position, found) < 0:
                found = position
        return found
