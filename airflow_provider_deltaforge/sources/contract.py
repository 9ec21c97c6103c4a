"""What every source promises."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.position import Position
from airflow_provider_deltaforge.events.schema import TableSchema, TypeSystem
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.schemas.history import SchemaHistory
from airflow_provider_deltaforge.sources.reader_contract import LogReader, NamedTables
from airflow_provider_deltaforge.sources.shared.independent_change import IndependentChange
from airflow_provider_deltaforge.sources.shared.packed_positions import PacksPositions
from airflow_provider_deltaforge.sources.shared.snapshot_settings import SnapshotSettings
from airflow_provider_deltaforge.spec.settings import PluginSettings
from airflow_provider_deltaforge.storage.records.measurements import LogRetention

if TYPE_CHECKING:  # Descriptions of sources are read where no Arrow is needed.
    from airflow_provider_deltaforge.events.change import ChangeBatch

Identity = Mapping[str, Any]
"""Which server's log it is, as JSON: ``{"type": "my_sql", "server_uuid": "…"}``."""


@dataclass(frozen=True, slots=True)
class TableChunk:
    """A range of one table's rows, as a snapshot copies it; it can be stored as JSON.

    Only the source reads ``bounds``, for example ``{"after": [...], "upto": [...]}``.
    """

    id: str
    db: str
    schema: str | None
    table: str
    bounds: Mapping[str, Any] = field(default_factory=dict)
    rows_estimate: int = 0

    @property
    def full_name(self) -> str:
        """``schema.table`` where the source has schemas, else ``db.table``."""
        return qualified_name(self.schema or self.db, self.table)


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
        """Return the position where the stream must start so that no change behind it is missed.

        Called once per snapshot run, before the first chunk is read. The position is stored, and
        a resumed run uses the stored one.
        """

    def plan(
        self, chunk_rows: int, tables: Sequence[str] = (), where: str | None = None
    ) -> Iterator[TableChunk]:
        """Cut the captured tables into chunks, table by table.

        Args:
            chunk_rows: about how many rows a chunk has.
            tables: patterns of the captured tables to copy; empty copies all.
            where: SQL condition on the rows, for exactly one table.

        Raises:
            SpecError: a pattern matches no captured table, or the condition is wrong.
        """

    def settle(self) -> None:
        """Return when views that open from now on contain all that the log holds by now.

        Not where a view's cut says as much: it covers every position before it.

        Raises:
            RetryableError: somebody who may be committing does not end.
        """

    def read(self, chunk: TableChunk, run: str) -> "Iterator[ChangeBatch]":
        """Yield the rows of a chunk as op ``r`` events.

        Every batch's ``end`` is the chunk's cut: all changes up to it are in the rows.
        """

    def guard(self, position: Position) -> None:
        """Check that the log from ``position`` on is still there.

        Raises:
            PositionLostError: it is not, so the snapshot is worthless and must be cancelled.
        """

    def close(self) -> None:
        """Close the connection. Safe to call twice."""


class Source(PluginSettings, PacksPositions):
    """A description: picklable, holds no connection."""

    connector: ClassVar[str]
    """The source's name in events: ``mysql``, ``postgresql``, …"""

    type_system: ClassVar[TypeSystem] = "mysql"
    """Whose names the types of its columns have; encodings with typed records go by it."""

    logs_schema_changes: ClassVar[bool] = False
    """Whether the log holds schema changes of captured tables, as events of op ``ddl``."""

    connections_beside_copies: ClassVar[int] = 2
    """The most connections at a time that none of those who read rows of a copy have: the log's,
    and those that ask for something else."""
    connections_of_a_reader: ClassVar[int] = 1
    """The most connections at a time of one who reads rows of a copy."""

    id: str
    """Names the source in checkpoints and metrics, and seeds its event ids. Two pipelines of one
    state store never have the same."""
    snapshot: SnapshotSettings = SnapshotSettings(mode="never")
    """The initial copy; none if the block is absent."""

    @abstractmethod
    def open(
        self,
        position: Position | None,
        stopping: Callable[[], bool] = lambda: False,
        history: SchemaHistory | None = None,
    ) -> LogReader:
        """Connect and start reading after ``position``; at the ``beginning`` when it is None.

        Args:
            position: where to begin.
            stopping: called while waiting; True gives up.
            history: the registered schemas, for a log that does not fully describe its tables.
        """

    def beside(self, reader: str, *, once: bool = False) -> "Source":
        """Return this source for one more reader of the log, next to the pipeline's own.

        Where the server knows its readers by a number or slot, the copy has another one; event
        ids and positions stay the same.

        Args:
            reader: names the reader among those of one source.
            once: it reads a range that the reader of this name still holds, and leaves nothing on
                the server.
        """
        return self

    def behind(self, reader: str) -> "Source":
        """Return this source for a second reader of what the first one's server still keeps.

        It leaves nothing on the server.
        """
        return self.beside(f"behind-{reader}", once=True)

    def within(self, connections: int) -> "Source":
        """Return this source with so many readers of rows that it keeps within its connections.

        Raises:
            SpecError: that leaves none to read rows.
        """
        beside, each = self.connections_beside_copies, self.connections_of_a_reader
        room = (connections - beside) // each
        if room < 1:
            raise SpecError(
                f"{connections} are too few for a source of type {self.connector}: its stream may "
                f"need {beside} at a time, and a copy {each} more; allow {beside + each} or more"
            )
        readers = min(room, self.snapshot.max_connections or room)
        snapshot = self.snapshot.model_copy(update={"max_connections": readers})
        return self.model_copy(update={"snapshot": snapshot})

    def copied_from(self, replica: str) -> "Source":
        """Return this source with its rows copied from a replica.

        Args:
            replica: ``HOST``, ``HOST:PORT``, or an address.

        Raises:
            SpecError: it cannot be, or the source names another one itself.
        """
        raise SpecError(f"a source of type {self.connector} reads rows at its own address only")

    @abstractmethod
    def open_snapshot(self) -> Snapshotter:
        """Connect for reading tables."""

    def chunk_of_keys(
        self, chunk: TableChunk, table: TableSchema, keys: Sequence[Mapping[str, Any]]
    ) -> TableChunk | None:
        """Return the chunk of certain rows; None if they cannot be read by their keys.

        Args:
            chunk: any chunk of the table.
            table: its schema.
            keys: members of rows' keys in events, none a fraction; some may fit no column.
        """
        del chunk, table, keys
        return None

    @abstractmethod
    def preflight(self) -> Sequence[Finding]:
        """Check settings, permissions and retention; never raises for a finding."""

    def precompile(self) -> None:
        """Compile ahead, once for each installation, what the first reader would wait for."""

    def schemas_at(self, position: Position) -> Sequence[TableSchema]:
        """Return the schemas that captured tables have behind a position, a moment ago the head.

        Only those known for sure; none where the log itself describes its rows.
        """
        return ()

    @abstractmethod
    def compare(self, left: Position, right: Position) -> int:
        """Return -1, 0 or 1 as ``left`` lies before, at or after ``right``.

        Raises:
            PositionLostError: the two lie on histories that cannot be ordered.
        """

    def covers(self, at: Position, position: Position) -> bool:
        """Return whether everything up to ``position`` is also before ``at``.

        Where positions have no total order, each of two may lack changes that the other has.
        """
        return self.compare(at, position) >= 0

    def is_ordered(self, position: Position) -> bool:
        """Return whether every reading of the log finds changes in one order, position by position.

        Then of two positions like this one, one covers the other.
        """
        del position
        return True

    def visible(self, cut: Position, batch: "ChangeBatch") -> Any:
        """Return which changes a view of the tables contained.

        All changes of a transaction are treated alike, also when it is spread over batches.

        Args:
            cut: of the view: the ``end`` of the batches read from it.
            batch: of the log.

        Returns:
            Bool array by row. False also where the source does not know: a change that is delivered
            twice is better than one that is lost.
        """
        import numpy as np

        return np.zeros(batch.rows.num_rows, np.bool_)

    def knows_views(self, position: Position) -> bool:
        """Return whether ``visible`` and ``is_behind`` tell what a view contained.

        Then rows are copied beside a running stream, which goes on meanwhile.

        Args:
            position: where the stream is.
        """
        return False

    def is_behind(self, position: Position, cut: Position) -> bool:
        """Return whether everything that a view contained lies before a position of the log.

        Args:
            position: up to where the log was read.
            cut: of the view: the ``end`` of the batches read from it.
        """
        return self.covers(position, cut)

    def common_cut(self, cuts: Sequence[Position]) -> Position | None:
        """Return a cut such that several views contained everything up to it; None: unknown."""
        return None

    @abstractmethod
    def head(self) -> Position:
        """Return the current end of the server's log."""

    def beginning(self) -> Position:
        """Return where a new stream begins: the head, unless the source knows better.

        From then on the server keeps the log that the stream needs.
        """
        return self.head()

    def identity(self) -> Identity | None:
        """Return which server answers now; None where a source is always the same one."""
        return None

    def captures(self, qualifier: str, table: str) -> bool:
        """Return whether the document names a table, by its schema or database and its name."""
        del qualifier, table
        return True

    def reach(self, position: Position) -> None:
        """Check that the log can be followed from ``position`` on, on the server that answers now.

        Raises:
            PositionLostError: it cannot; the text names the changes that are lost.
            RetryableError: not yet: the server is a replica that still has to apply them.
        """

    def describe(self) -> Sequence[TableSchema]:
        """Return every captured table as the server's catalog describes it now.

        Raises:
            SpecError: this source cannot list its tables.
        """
        raise SpecError(f"a source of type {self.connector} does not list its tables")

    def named_tables(self) -> NamedTables | None:
        """Return which table has which name now; None where the log shows renames."""
        return None

    def log_position(self, text: str) -> tuple[Position, Position]:
        """Return the place in the log that a person writes, and one at or before it to begin at.

        Raises:
            SpecError: the text names no place, or this source has no log to look into.
        """
        raise SpecError(f"the log of a source of type {self.connector} cannot be looked into")

    def independent_changes(self, after: Position, upto: Position) -> Iterator[IndependentChange]:
        """Yield the changes of captured tables between two positions, as others decode them.

        Never by code of ours, and without disturbing any reader of the log.

        Raises:
            SpecError: nothing else decodes this source's log.
        """
        raise SpecError(f"nothing else decodes the log of a source of type {self.connector}")

    def catalog(self, tables: Sequence[TableSchema]) -> Mapping[str, TableSchema | None]:
        """Return the schemas of tables now, by full name; None for one that is gone.

        Tables that are no longer captured are left out.
        """
        return {}

    def dataset_namespace(self) -> str:
        """Return how the server is called where lineage is shown, ``mysql://host:3306``; no login.

        Raises:
            SpecError: its address cannot be read.
        """
        return f"{self.connector}://{self.id}"

    def log_retention(self, position: Position, commit_ms: int | None) -> LogRetention | None:
        """Return what the server keeps of its log for us, and for how long; None: it cannot say.

        Args:
            position: where we stand.
            commit_ms: when the last change before it was committed, ms since the epoch.

        Raises:
            RetryableError, AccessError, FatalError: the server was not asked.
        """
        del position, commit_ms
        return None

    def earliest(self, positions: Sequence[Position]) -> Position | None:
        """Return the position that lies before all others; None without any."""
        found: Position | None = None
        for position in positions:
            if found is None or self.compare(position, found) < 0:
                found = position
        return found
