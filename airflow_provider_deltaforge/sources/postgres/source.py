"""Settings of a PostgreSQL source."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, SecretStr, field_validator

from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position, Positions
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.plugins import load_object
from airflow_provider_deltaforge.schemas.history import SchemaHistory
from airflow_provider_deltaforge.sources.contract import (
    Finding,
    Identity,
    Snapshotter,
    Source,
    TableChunk,
)
from airflow_provider_deltaforge.sources.postgres import connection as connections
from airflow_provider_deltaforge.sources.postgres import positions
from airflow_provider_deltaforge.sources.postgres.settings import (
    STANDBY_KEY,
    OutboxMessages,
    PostgresSnapshotSettings,
    PublicationName,
    PublicationSettings,
    SlotName,
    SlotSettings,
    StartPosition,
)
from airflow_provider_deltaforge.sources.postgres.tuning import POSTGRES_TUNING, PostgresTuning
from airflow_provider_deltaforge.sources.reader_contract import LogReader, NamedTables
from airflow_provider_deltaforge.sources.shared.independent_change import IndependentChange
from airflow_provider_deltaforge.sources.shared.packed_positions import PackedPositions
from airflow_provider_deltaforge.sources.shared.replica_address import named_once, place_of
from airflow_provider_deltaforge.spec.patterns import TableMatcher, check_patterns
from airflow_provider_deltaforge.storage.records.measurements import LogRetention

if TYPE_CHECKING:
    from airflow_provider_deltaforge.sources.postgres.wal.decode_plans import Planner

SYSTEM_SCHEMAS = frozenset({"pg_catalog", "information_schema", "pg_toast"})
DEFAULT_SCHEMA = "public"


_INDEPENDENT = "airflow_provider_deltaforge.sources.postgres.independent_log"
_PREFLIGHT = "airflow_provider_deltaforge.sources.postgres.preflight:preflight"


class PostgresSource(Source):
    """Row changes from a replication slot with the ``pgoutput`` plug-in."""

    connector = "postgresql"
    type_system = "postgresql"
    tuning: ClassVar[PostgresTuning] = POSTGRES_TUNING
    """How often it looks, how long it waits, how much it holds; no document says so."""

    connections_beside_copies = 5
    """The log, two that ask the catalog what the log leaves out, one that looks for new tables, and
    a question of the lane's."""

    dsn: SecretStr
    """``postgres://user:password@host:5432/db``, or ``key=value`` pairs; both take ``sslmode``,
    ``sslrootcert`` and the other parameters of libpq."""
    tables: tuple[str, ...] = ()
    """Patterns such as ``public.orders`` or ``shop.*``, a bare name is one of ``public``; empty
    captures every table of the publication."""
    publication: PublicationName | PublicationSettings
    """Says on the server which tables are sent; created when it does not exist."""
    slot: SlotName | SlotSettings
    """Replication slot, created when it does not exist at the first start."""
    snapshot: PostgresSnapshotSettings = PostgresSnapshotSettings(mode="never")
    """The initial copy; none if the block is absent."""
    start_position: StartPosition = "earliest"
    """Where the first run starts: at the slot's position, at the end of the log, or at an LSN."""
    wal_messages: tuple[str, ...] = ("*",)
    """Patterns of prefixes of logical messages that are captured besides the outbox's; empty
    captures none."""
    outbox: OutboxMessages | None = None
    """Logical messages that are outbox events."""
    on_undecodable: Literal["stop_table", "halt"] = "stop_table"
    """What to do when the rows of a table cannot be decoded: leave that table out until it is
    copied again, or stop the pipeline."""
    on_schema_drift: Literal["adapt", "halt"] = "adapt"
    """What to do when tables look different after a failover."""
    decimal: Literal["string", "number"] = "string"
    """How ``numeric`` is written: as a string, or as a JSON number with the same digits, which not
    every reader keeps."""
    connect_timeout_s: float = Field(default=30, gt=0)
    """How long connecting may take, in seconds."""
    read_timeout_s: float = Field(default=90, gt=0)
    """How long the server may be silent, in seconds."""
    heartbeat_message_s: float = Field(default=0, ge=0)
    """How often to write a small message into the log, in seconds; 0 never."""

    _original: str | None = PrivateAttr(default=None)
    _once: bool = PrivateAttr(default=False)

    @field_validator("tables")
    @classmethod
    def _patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        check_patterns(value, "source.tables")
        return value

    @property
    def slot_settings(self) -> SlotSettings:
        """The slot, written out."""
        return SlotSettings(name=self.slot) if isinstance(self.slot, str) else self.slot

    @property
    def publication_settings(self) -> PublicationSettings:
        """The publication, written out."""
        named = self.publication
        return PublicationSettings(name=named) if isinstance(named, str) else named

    def captures(self, qualifier: str, table: str) -> bool:
        """Return whether the document names a table."""
        return self.matcher.matches(qualifier, table)

    @property
    def matcher(self) -> TableMatcher:
        """Decides which tables are captured."""
        return TableMatcher(tuple(self.tables), DEFAULT_SCHEMA, SYSTEM_SCHEMAS)

    def connect(self) -> Any:
        """Return a new connection to the server.

        Raises:
            AccessError: credentials or TLS were refused.
            RetryableError: the server is away.
        """
        return connections.connect(self._dsn())

    def open(
        self,
        position: Position | None,
        stopping: Callable[[], bool] = lambda: False,
        history: SchemaHistory | None = None,
    ) -> LogReader:
        """Connect and start reading after ``position``; where a new stream begins without one."""
        from airflow_provider_deltaforge.sources.postgres.wal.message_prefixes import Prefixes
        from airflow_provider_deltaforge.sources.postgres.wal.reader import PostgresReader
        from airflow_provider_deltaforge.sources.postgres.wal.replication_session import (
            ReaderSettings,
        )

        start = self.beginning() if position is None else position
        publication = self.publication_settings
        outbox = () if self.outbox is None else self.outbox.prefixes
        reading = ReaderSettings(
            source_id=self.id,
            dsn=self._dsn(),
            slot=self.slot_settings.name,
            publication=publication.name,
            matcher=self.matcher,
            prefixes=Prefixes(outbox, self.wal_messages),
            original=self._original,
            failover=self.slot_settings.failover and not self._beside,
            once=self._once,
            newcomers=None if self._beside or not self.tables else publication.create,
            heartbeat_s=0 if self._beside else self.heartbeat_message_s,
            read_timeout_s=self.read_timeout_s,
            decimal_numbers=self.decimal == "number",
            tuning=self.tuning,
        )
        return PostgresReader(reading, positions.WalPosition.from_json(start), stopping, history)

    def beside(self, reader: str, *, once: bool = False) -> "PostgresSource":
        """Return this source with a slot of its own, a copy of the pipeline's where it is new.

        A slot keeps the log on the server until it is dropped. One that is read ``once`` is a
        copy of the reader's slot for the time of the connection.
        """
        from airflow_provider_deltaforge.sources.postgres.wal.first_position import slot_beside

        main = self.slot_settings
        slot = main.model_copy(update={"name": slot_beside(main.name, reader), "create": True})
        copy = self.model_copy(update={"slot": slot, "start_position": "latest"})
        copy._original = main.name  # noqa: SLF001 - of our own copy
        copy._once = once  # noqa: SLF001
        return copy

    def behind(self, reader: str) -> "PostgresSource":
        """Return this source reading from temporary copies of the pipeline's own slot."""
        copy = self.model_copy()
        copy._original = self.slot_settings.name  # noqa: SLF001 - of our own copy
        copy._once = True  # noqa: SLF001
        return copy

    def beginning(self) -> Position:
        """Return where a new stream begins; creates publication and slot.

        Raises:
            SpecError: ``start_position`` names an LSN the slot does not hold.
            FatalError: something is missing and is not to be created.
        """
        from airflow_provider_deltaforge.sources.postgres import server
        from airflow_provider_deltaforge.sources.postgres.wal import first_position

        with self._connected() as connection:
            info = server.server_info(connection)
            slot, is_new = first_position.prepare(
                connection, info, self.slot_settings, self.publication_settings, self.matcher
            )
            start = self.start_position
            return first_position.first_position(
                connection, info, slot, start, is_new=is_new
            ).as_json()

    def open_snapshot(self) -> Snapshotter:
        """Connect for reading tables."""
        from airflow_provider_deltaforge.sources.postgres.snapshot.snapshotter import (
            PostgresSnapshotter,
        )
        from airflow_provider_deltaforge.sources.postgres.snapshot.standby import StandbySnapshotter

        names = (self.publication_settings.name, self.slot_settings.name)
        tables = (self.beginning, self.matcher, self.id, *names)
        more: dict[str, Any] = {
            "decimal_numbers": self.decimal == "number",
            "tuning": self.tuning,
        }
        primary = PostgresSnapshotter(self.connect, *tables, **more)
        if self.snapshot.dsn is None:
            return primary
        return StandbySnapshotter(primary, self.connect, self.connect_standby, *tables, **more)

    def copied_from(self, replica: str) -> "PostgresSource":
        """Return this source with its rows copied from a standby."""
        dsn = None if self.snapshot.dsn is None else self.snapshot.dsn.get_secret_value()
        found = SecretStr(named_once(STANDBY_KEY, dsn, replica))
        return self.model_copy(update={"snapshot": self.snapshot.model_copy(update={"dsn": found})})

    def connect_standby(self) -> Any:
        """Return a new connection to the server that rows are read from.

        Raises:
            SpecError: the address cannot be read.
            AccessError: credentials or TLS were refused.
            RetryableError: the server is away.
        """
        dsn = self._dsn()
        text = self.snapshot.dsn or self.dsn
        place = place_of(text.get_secret_value())
        dsn = replace(dsn, text=text) if place is None else replace(dsn, place=place)
        try:
            return connections.connect(dsn)
        except DeltaForgeError as error:
            raise type(error)(f"{STANDBY_KEY}: {error}") from error

    def preflight(self) -> Sequence[Finding]:
        """Check settings, permissions and retention; never raises for a finding."""
        found: Sequence[Finding] = load_object(_PREFLIGHT)(self)
        return found

    def precompile(self) -> None:
        """Compile the decoders, or find them compiled."""
        from airflow_provider_deltaforge.sources.postgres.precompile import precompile

        precompile()

    def chunk_of_keys(
        self, chunk: TableChunk, table: TableSchema, keys: Sequence[Mapping[str, Any]]
    ) -> TableChunk | None:
        """Return the chunk of the rows with these keys."""
        from airflow_provider_deltaforge.sources.postgres.keys import chunk_of_keys

        return chunk_of_keys(chunk, table, keys)

    def compare(self, left: Position, right: Position) -> int:
        """Return -1, 0 or 1 as ``left`` lies before, at or after ``right``."""
        return positions.compare(left, right)

    def visible(self, cut: Position, batch: ChangeBatch) -> Any:
        """Return which changes a view of the tables contained, a bool array by row."""
        if not isinstance(batch.positions, positions.WalTxPositions):
            return super().visible(cut, batch)
        contained = positions.visible_in(cut, batch.positions)
        return contained[batch.rows.column("tx").to_numpy()]

    def knows_views(self, position: Position) -> bool:
        """Return whether views are the server's own: ``pg_current_snapshot`` says what is in them.

        Of a standby's view only a part is known.
        """
        return self.snapshot.dsn is None

    def is_behind(self, position: Position, cut: Position) -> bool:
        """Return whether everything that a view contained lies before a position of the log."""
        return positions.is_behind(position, cut)

    def pack_positions(self, batch: ChangeBatch) -> PackedPositions:
        """Return the positions of a batch of the log, to be kept with it."""
        if not isinstance(batch.positions, positions.WalTxPositions):
            return super().pack_positions(batch)
        return batch.positions.packed()

    def unpack_positions(self, packed: PackedPositions, end: Position) -> Positions:
        """Return positions that were kept, as they were."""
        if "after" in packed.header:
            return super().unpack_positions(packed, end)
        return positions.WalTxPositions.unpacked(packed)

    def common_cut(self, cuts: Sequence[Position]) -> Position | None:
        """Return a cut such that several views contained everything up to it; None: unknown."""
        return positions.common_cut(cuts)

    def head(self) -> Position:
        """Return the current end of the server's log."""
        from airflow_provider_deltaforge.sources.postgres.server import read_head

        with self._connected() as connection:
            return read_head(connection).as_json()

    def identity(self) -> Identity:
        """Return which cluster's log answers now, and on which timeline."""
        from airflow_provider_deltaforge.sources.postgres.failover import identity_of
        from airflow_provider_deltaforge.sources.postgres.server import server_info

        with self._connected() as connection:
            return identity_of(server_info(connection))

    def named_tables(self) -> NamedTables:
        """Return which published table has which name now."""
        from airflow_provider_deltaforge.sources.postgres.server import server_info
        from airflow_provider_deltaforge.sources.postgres.wal.table_names import named_tables

        with self._connected() as connection:
            info = server_info(connection)
            name = self.publication_settings.name
            return named_tables(connection, info, name, self.matcher)

    def describe(self) -> Sequence[TableSchema]:
        """Return every captured table as the server's catalog describes it now."""
        from airflow_provider_deltaforge.sources.postgres.publication import published_tables
        from airflow_provider_deltaforge.sources.postgres.server import server_info
        from airflow_provider_deltaforge.sources.postgres.tables import captured_tables

        with self._connected() as connection:
            tables = captured_tables(connection, self.matcher)
            if not self.tables:
                # Without patterns the publication alone decides.
                published = published_tables(connection, self.publication_settings.name)
                tables = [table for table in tables if table.oid in published]
            planner = self._planner(server_info(connection).db, connection)
            plans = [planner.plan_of_table(table.schema, table.table) for table in tables]
        return [plan.schema for plan in plans if plan is not None]

    def catalog(self, tables: Sequence[TableSchema]) -> Mapping[str, TableSchema | None]:
        """Return how captured tables look now, by full name; None for one that is gone."""
        found: dict[str, TableSchema | None] = {}
        with self._connected() as connection:
            for table in tables:
                schema = table.schema or DEFAULT_SCHEMA
                if self.matcher.matches(schema, table.table):
                    plan = self._planner(table.db, connection).plan_of_table(schema, table.table)
                    found[table.full_name] = None if plan is None else plan.schema
        return found

    def log_position(self, text: str) -> tuple[Position, Position]:
        """Return the place of an LSN or a stored position, and where the slot stands."""
        return load_object(f"{_INDEPENDENT}:log_position")(self, text)  # type: ignore[no-any-return]

    def place_at(self, text: str) -> Position:
        """Return the place of an LSN or a stored position, if the slot still holds it."""
        place: Position = load_object(f"{_INDEPENDENT}:place_at")(self, text)
        return place

    def place_at_time(self, at_ms: int) -> Position:
        """Return the place behind the last transaction, of those in the slot, up to a time."""
        place: Position = load_object(f"{_INDEPENDENT}:place_at_time")(self, at_ms)
        return place

    def independent_changes(self, after: Position, upto: Position) -> Iterator[IndependentChange]:
        """Yield what the plug-in ``test_decoding`` prints of the log between two positions."""
        yield from load_object(f"{_INDEPENDENT}:independent_changes")(self, after, upto)

    def reach(self, position: Position) -> None:
        """Check that the log can be followed from ``position`` on, on the server that answers now.

        Raises:
            PositionLostError: it cannot; the text says what is lost.
            RetryableError: the server is a standby that has still to replay what was read.
        """
        from airflow_provider_deltaforge.sources.postgres.failover import check_reach
        from airflow_provider_deltaforge.sources.postgres.server import server_info

        at = positions.WalPosition.from_json(position)
        replication = partial(connections.replication_connection, self._dsn())
        with self._connected() as connection:
            info = server_info(connection)
            check_reach(connection, replication, info, at, self.slot_settings.name)

    def dataset_namespace(self) -> str:
        """Return the server's address without a login."""
        return f"postgres://{self._dsn().address}"

    def log_retention(self, position: Position, commit_ms: int | None) -> LogRetention | None:
        """Return what the server keeps back for our slot, and what may still be written."""
        from airflow_provider_deltaforge.sources.postgres.slots import log_retention

        del commit_ms
        at = positions.WalPosition.from_json(position)
        with self._connected() as connection:
            return log_retention(connection, self.slot_settings.name, at)

    @property
    def _beside(self) -> bool:
        return self._original is not None

    def _planner(self, db: str, connection: Any) -> "Planner":
        from airflow_provider_deltaforge.sources.postgres.borrowed_connection import (
            BorrowedConnection,
        )
        from airflow_provider_deltaforge.sources.postgres.wal.decode_plans import Planner

        return Planner(
            db, self.matcher, lambda: BorrowedConnection(connection), self.publication_settings.name
        )

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        import psycopg

        connection = self.connect()
        try:
            yield connection
        except psycopg.Error as error:
            raise connections.translated(error, "asking the server") from error
        finally:
            connection.close()

    def _dsn(self) -> connections.PostgresDsn:
        return connections.PostgresDsn(
            self.dsn, f"deltaforge/{self.id}"[:63], self.connect_timeout_s
        )
