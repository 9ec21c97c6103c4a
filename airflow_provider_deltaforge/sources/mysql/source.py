"""Settings of a MySQL or MariaDB source."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, SecretStr, ValidationInfo, field_validator

from airflow_provider_deltaforge.errors import DeltaForgeError, SpecError
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
from airflow_provider_deltaforge.sources.mysql import connection as connections
from airflow_provider_deltaforge.sources.mysql import positions
from airflow_provider_deltaforge.sources.mysql.binlog.dump import server_id_of
from airflow_provider_deltaforge.sources.mysql.catalog import SYSTEM_SCHEMAS, captured_tables
from airflow_provider_deltaforge.sources.mysql.dsn import MySqlDsn, parse_dsn
from airflow_provider_deltaforge.sources.mysql.failover import (
    captured_catalog,
    check_reach,
    identity_of,
)
from airflow_provider_deltaforge.sources.mysql.outbox_tables import OutboxTagger, Tag
from airflow_provider_deltaforge.sources.mysql.tuning import MYSQL_TUNING, MySqlTuning
from airflow_provider_deltaforge.sources.reader_contract import LogReader
from airflow_provider_deltaforge.sources.shared.independent_change import IndependentChange
from airflow_provider_deltaforge.sources.shared.packed_positions import PackedPositions
from airflow_provider_deltaforge.sources.shared.preflight import checked
from airflow_provider_deltaforge.sources.shared.replica_address import named_once, place_of
from airflow_provider_deltaforge.sources.shared.snapshot_settings import SnapshotSettings
from airflow_provider_deltaforge.spec.patterns import TableMatcher, check_patterns
from airflow_provider_deltaforge.spec.settings import Settings
from airflow_provider_deltaforge.storage.records.measurements import LogRetention

if TYPE_CHECKING:
    from airflow_provider_deltaforge.sources.mysql.binlog.reader import MySqlReader
    from airflow_provider_deltaforge.sources.mysql.ddl.pending_ddl import Recorder

_SEARCH = "airflow_provider_deltaforge.sources.mysql.log_search"
_INDEPENDENT = "airflow_provider_deltaforge.sources.mysql.independent_log"
_REPLICA_KEY, _REPLICA_CHECK = "snapshot.dsn", "snapshot_replica"

SslMode = Literal["disabled", "preferred", "required", "verify_ca", "verify_identity"]


class OutboxTables(Settings):
    """Tables whose inserts are outbox messages."""

    tables: list[str] = Field(min_length=1)
    """Patterns of the outbox tables, which are captured only if ``tables`` of the source has them,
    too."""
    tag: Tag = "all"
    """Mark all their rows, so that the outbox processor drops and counts those that are not
    inserted, copied ones too; or only ``inserts``, so that the others flow like any row's."""

    @field_validator("tables")
    @classmethod
    def _patterns(cls, value: list[str]) -> list[str]:
        check_patterns(value, "source.outbox.tables")
        return value


class MySqlSnapshotSettings(SnapshotSettings):
    """The copy of rows that were there before the log is followed."""

    dsn: SecretStr | None = None
    """Address of a replica to read rows from; the log is followed at ``dsn`` of the source. MySQL
    with GTIDs. ``HOST`` or ``HOST:PORT`` alone is the source's address at another place. TLS is
    used as with the source, unless the address has options of its own: then as these say alone."""

    @field_validator("dsn")
    @classmethod
    def _readable(cls, value: SecretStr | None) -> SecretStr | None:
        return None if value is None else _checked_replica(value)


class MySqlSource(Source):
    """A MySQL or MariaDB server and the tables to capture."""

    connector = "mysql"
    logs_schema_changes = True
    connections_beside_copies = 4
    """The log; where schema changes are being applied, the log ahead of it and a question to the
    catalog; a question of the lane's."""
    connections_of_a_reader = 2
    """It reads, and may lock its table or look into the log to know what its view contains."""
    tuning: ClassVar[MySqlTuning] = MYSQL_TUNING
    """How long it waits, and how often it tries; no document says so."""

    dsn: SecretStr
    """``mysql://user:password@host:port/database``."""
    tables: list[str] = Field(default_factory=list)
    """Patterns such as ``shop.orders`` or ``shop.*``; empty: every table but the system's."""
    snapshot: MySqlSnapshotSettings = MySqlSnapshotSettings(mode="never")
    """The initial copy; none if the block is absent."""
    outbox: OutboxTables | None = None
    """Tables whose inserts are outbox messages."""
    on_undecodable: Literal["stop_table", "halt"] = "stop_table"
    """What to do when the rows of a table cannot be decoded: leave that table out until it is
    copied again, or stop the pipeline."""
    on_schema_drift: Literal["adapt", "halt"] = "adapt"
    """What to do when tables look different after a failover."""
    decimal: Literal["string", "number"] = "string"
    """How DECIMAL is written: as a string, or as a JSON number with the same digits, which not
    every reader keeps."""
    server_id: int | None = Field(default=None, ge=1, le=4_294_967_295)
    """Our id as a replica; by default drawn from the source's id, on MariaDB at random."""
    heartbeat_s: float = Field(default=15, gt=0)
    """How often an idle server sends a sign of life, in seconds."""
    connect_timeout_s: float = Field(default=30, gt=0)
    """How long connecting may take, in seconds."""
    read_timeout_s: float = Field(default=90, gt=0, validate_default=True)
    """How long the server may be silent, in seconds."""
    _reader: str = PrivateAttr("")
    """Of those that read the log beside the pipeline's own, which."""
    ssl_ca: str | None = None
    """File with the CA of the server's certificate; the system's if absent."""
    ssl_cert: str | None = None
    """File with our certificate, in PEM, for a server that asks for one."""
    ssl_key: str | None = None
    """File with the private key of ``ssl_cert``, if it is not in the same file."""
    ssl_mode: SslMode | None = None
    """How TLS is used, in the words of the MySQL client. If absent: ``verify_identity`` with
    ``ssl_ca`` or ``ssl_cert``; else TLS is taken if it is offered, and nothing is verified."""

    @field_validator("tables")
    @classmethod
    def _patterns(cls, value: list[str]) -> list[str]:
        check_patterns(value, "source.tables")
        return value

    @field_validator("dsn")
    @classmethod
    def _readable(cls, value: SecretStr) -> SecretStr:
        return _checked(value)

    @field_validator("read_timeout_s")
    @classmethod
    def _outlasts_heartbeats(cls, value: float, info: ValidationInfo) -> float:
        if value <= (heartbeat := info.data.get("heartbeat_s", 0)):
            raise ValueError(f"must be longer than heartbeat_s ({heartbeat:g})")
        return value

    @property
    def replica_id(self) -> int:
        """Our id as a replica of the server."""
        number = self.server_id or server_id_of(self.id)
        return server_id_of(f"{number}{self._reader}") if self._reader else number

    @property
    def is_id_fixed(self) -> bool:
        """Whether the document names that id, so that no other may be taken in its place."""
        return self.server_id is not None and not self._reader

    def captures(self, qualifier: str, table: str) -> bool:
        """Return whether the document names a table."""
        return self.matcher.matches(qualifier, table)

    @property
    def matcher(self) -> TableMatcher:
        """Decides which tables are captured."""
        return TableMatcher(tuple(self.tables), self.address().database, SYSTEM_SCHEMAS)

    @property
    def tagging(self) -> OutboxTagger | None:
        """Which rows are outbox messages; None: none are."""
        if self.outbox is None:
            return None
        matcher = TableMatcher(tuple(self.outbox.tables), self.address().database, SYSTEM_SCHEMAS)
        return OutboxTagger(matcher, self.outbox.tag)

    def connect(self) -> Any:
        """Return a new connection to the server.

        Raises:
            AccessError: credentials or TLS were refused.
            RetryableError: the server is away.
        """
        return connections.connect(self.address(), self.connect_timeout_s, self.read_timeout_s)

    def open(
        self,
        position: Position | None,
        stopping: Callable[[], bool] = lambda: False,
        history: SchemaHistory | None = None,
    ) -> LogReader:
        """Connect and start reading after ``position``; at the head of the log when it is None."""
        start = positions.LogPosition.from_json(self.head() if position is None else position)
        rows = {"tagging": self.tagging, "decimal_numbers": self.decimal == "number"}
        return self._reader_at(start, stopping, history, **rows)

    def schemas_at(self, position: Position) -> Sequence[TableSchema]:
        """Return how captured tables look behind a recent position, if the log will not say."""
        from airflow_provider_deltaforge.sources.mysql.ddl.pending_ddl import (
            DdlLookahead,
            schemas_at,
        )

        ahead = DdlLookahead(
            self.beside("schemas", once=True).open_without_rows, self.read_timeout_s
        )
        return schemas_at(
            self.connect, self.matcher, ahead, positions.LogPosition.from_json(position)
        )

    def open_without_rows(
        self, start: positions.LogPosition, recorder: "Recorder"
    ) -> "MySqlReader":
        """Start reading transactions and statements after a place, as if no table were captured."""
        return self._reader_at(start, lambda: False, recorder=recorder)

    def _reader_at(
        self,
        start: positions.LogPosition,
        stopping: Callable[[], bool],
        history: SchemaHistory | None = None,
        **more: Any,
    ) -> "MySqlReader":
        from airflow_provider_deltaforge.sources.mysql.binlog.reader import MySqlReader

        silence = self.heartbeat_s, self.read_timeout_s
        return MySqlReader(
            *(self.id, self.connect, self.matcher, start, self.replica_id, *silence, stopping),
            history=history,
            is_id_fixed=self.is_id_fixed,
            tuning=self.tuning,
            **more,
        )

    def beside(self, reader: str, *, once: bool = False) -> "MySqlSource":
        """Return this source under another server id."""
        beside = self.model_copy()
        name = f"{self._reader}/{reader}/{'once' if once else 'on'}"
        beside._reader = name  # noqa: SLF001 - of a source like this one
        return beside

    def log_position(self, text: str) -> tuple[Position, Position]:
        """Return the place ``FILE:OFFSET``, of a GTID, or of a stored position."""
        return load_object(f"{_INDEPENDENT}:log_position")(self, text)  # type: ignore[no-any-return]

    def place_at(self, text: str) -> Position:
        """Return the place at or before ``FILE:OFFSET``, a GTID, or a stored position."""
        place: Position = load_object(f"{_SEARCH}:LogSearch")(self).at_place(text)
        return place

    def place_at_time(self, at_ms: int) -> Position:
        """Return the place behind the last transaction that was committed at a time or before."""
        place: Position = load_object(f"{_SEARCH}:LogSearch")(self).at_time(at_ms)
        return place

    def independent_changes(self, after: Position, upto: Position) -> Iterator[IndependentChange]:
        """Yield what python-mysql-replication makes of the log between two positions."""
        yield from load_object(f"{_INDEPENDENT}:independent_changes")(self, after, upto)

    def open_snapshot(self) -> Snapshotter:
        """Connect for reading tables."""
        from airflow_provider_deltaforge.sources.mysql.snapshot.replica import ReplicaSnapshotter
        from airflow_provider_deltaforge.sources.mysql.snapshot.snapshotter import MySqlSnapshotter

        tables = (self.matcher, self.id, self.tagging)
        more: dict[str, Any] = {"decimal_numbers": self.decimal == "number", "tuning": self.tuning}
        primary = MySqlSnapshotter(self.connect, *tables, **more)
        if self.snapshot.dsn is None:
            return primary
        return ReplicaSnapshotter(primary, self.connect, self._connect_replica, *tables, **more)

    def copied_from(self, replica: str) -> "MySqlSource":
        """Return this source with its rows copied from a replica."""
        dsn = None if self.snapshot.dsn is None else self.snapshot.dsn.get_secret_value()
        found = _checked_replica(SecretStr(named_once(_REPLICA_KEY, dsn, replica)))
        return self.model_copy(update={"snapshot": self.snapshot.model_copy(update={"dsn": found})})

    def _connect_replica(self) -> Any:
        """Return a new connection to the server that rows are read from.

        Raises:
            SpecError: the address cannot be read.
            AccessError: credentials or TLS were refused.
            RetryableError: the server is away.
        """
        dsn, address = (self.snapshot.dsn or self.dsn).get_secret_value(), self.address()
        place = place_of(dsn)
        if place is None:
            address = parse_dsn(dsn, key=_REPLICA_KEY, tls=address)
        else:
            address = replace(address, host=place[0], port=place[1] or address.port)
        try:
            return connections.connect(address, self.connect_timeout_s, self.read_timeout_s)
        except DeltaForgeError as error:
            raise type(error)(f"{_REPLICA_KEY}: {error}") from error

    def preflight(self) -> Sequence[Finding]:
        """Check settings, permissions and retention; never raises for a finding."""
        from airflow_provider_deltaforge.sources.mysql.preflight import findings

        def check(connection: Any) -> Sequence[Finding]:
            parallel = self.snapshot.max_parallel_tables
            return findings(connection, self.address(), self.matcher, self.tagging, parallel)

        found = checked(self.connect, check, connections.translated)
        return found if self.snapshot.dsn is None else [*found, *self._replica_findings()]

    def _replica_findings(self) -> Sequence[Finding]:
        from airflow_provider_deltaforge.sources.mysql.snapshot.replica import check_replica

        def check(replica: Any) -> Sequence[Finding]:
            with closing(self.connect()) as primary:
                check_replica(primary, replica, self.tuning)
            return [Finding(_REPLICA_CHECK, "ok", f"{_REPLICA_KEY}: rows can be read there")]

        def translated(error: BaseException, doing: str) -> DeltaForgeError:
            return connections.translated(error, f"{_REPLICA_KEY}: {doing}")

        return checked(self._connect_replica, check, translated, _REPLICA_CHECK)

    def precompile(self) -> None:
        """Compile the decoders, or find them compiled."""
        from airflow_provider_deltaforge.sources.mysql.precompile import precompile

        precompile()

    def chunk_of_keys(
        self, chunk: TableChunk, table: TableSchema, keys: Sequence[Mapping[str, Any]]
    ) -> TableChunk | None:
        """Return the chunk of the rows with these keys."""
        from airflow_provider_deltaforge.sources.mysql.keys import chunk_of_keys

        return chunk_of_keys(chunk, table, keys)

    def compare(self, left: Position, right: Position) -> int:
        """Return -1, 0 or 1 as ``left`` lies before, at or after ``right``."""
        return positions.compare(left, right)

    def visible(self, cut: Position, batch: ChangeBatch) -> Any:
        """Return which changes a view of the tables contained, a bool array by row."""
        if not isinstance(batch.positions, positions.BinlogTxPositions):
            return super().visible(cut, batch)
        contained = positions.visible_in(positions.LogPosition.from_json(cut), batch.positions)
        return contained[batch.rows.column("tx").to_numpy()]

    def knows_views(self, position: Position) -> bool:
        """Return whether views are the server's own, by GTIDs or by places in its log.

        Of a replica's view it is not known where it lies in this server's log.
        """
        return self.snapshot.dsn is None

    def is_behind(self, position: Position, cut: Position) -> bool:
        """Return whether everything that a view contained lies before a position of the log."""
        return positions.is_behind(position, cut)

    def pack_positions(self, batch: ChangeBatch) -> PackedPositions:
        """Return the positions of a batch of the log, to be kept with it."""
        if not isinstance(batch.positions, positions.BinlogTxPositions):
            return super().pack_positions(batch)
        return batch.positions.packed()

    def unpack_positions(self, packed: PackedPositions, end: Position) -> Positions:
        """Return positions that were kept, as they were."""
        if "after" in packed.header:
            return super().unpack_positions(packed, end)
        return positions.BinlogTxPositions.unpacked(packed)

    def common_cut(self, cuts: Sequence[Position]) -> Position | None:
        """Return a cut such that several views contained everything up to it; None: unknown."""
        return positions.common_cut([positions.LogPosition.from_json(cut) for cut in cuts])

    def identity(self) -> Identity:
        """Return the server's UUID, or MariaDB's server id."""
        with closing(self.connect()) as connection:
            return identity_of(connections.server_info(connection))

    def reach(self, position: Position) -> None:
        """Check that the server executed what was read, and still has what was not."""
        with closing(self.connect()) as connection:
            info = connections.server_info(connection)
            at = positions.LogPosition.from_json(position)
            check_reach(connection, info, at, settling_s=self.tuning.settling_s)

    def describe(self) -> Sequence[TableSchema]:
        """Return every captured table as the server's catalog describes it now."""
        with closing(self.connect()) as connection:
            return captured_tables(connection, self.matcher)

    def catalog(self, tables: Sequence[TableSchema]) -> Mapping[str, TableSchema | None]:
        """Return how captured tables look now, by full name; None for one that is gone."""
        with closing(self.connect()) as connection:
            return captured_catalog(connection, self.matcher, tables)

    def head(self) -> Position:
        """Return the current end of the server's log.

        Raises:
            FatalError: the server writes no log.
        """
        connection = self.connect()
        try:
            return connections.read_head(connection).as_json()
        finally:
            connection.close()

    def log_retention(self, position: Position, commit_ms: int | None) -> LogRetention | None:
        """Return how much log lies before and behind us, and when the server may drop it."""
        from airflow_provider_deltaforge.sources.mysql.retention import log_retention

        at = positions.LogPosition.from_json(position)
        with closing(self.connect()) as connection:
            return log_retention(connection, at, commit_ms)

    def dataset_namespace(self) -> str:
        """Return the server's address without a login."""
        address = self.address()
        return f"mysql://{address.host}:{address.port}"

    def address(self) -> MySqlDsn:
        """Return where the server is, and how TLS is used with it.

        Raises:
            SpecError: the address cannot be read.
        """
        return parse_dsn(
            self.dsn.get_secret_value(), self.ssl_ca, self.ssl_mode, self.ssl_cert, self.ssl_key
        )


def _checked(value: SecretStr) -> SecretStr:
    """Return an address that can be read, or that a variable stands in."""
    if "${" not in value.get_secret_value():
        try:
            parse_dsn(value.get_secret_value())
        except SpecError as error:
            raise ValueError(str(error).removeprefix("source.dsn: ")) from None
    return value


def _checked_replica(value: SecretStr) -> SecretStr:
    """Return an address that can be read, or a place at which the rest is as at the source."""
    return value if place_of(value.get_secret_value()) is not None else _checked(value)
