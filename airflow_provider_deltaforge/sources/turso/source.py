"""Settings of a source that is a Turso database, a SQLite file or a libSQL server."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveInt, PrivateAttr, SecretStr, field_validator

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.plugins import load_object
from airflow_provider_deltaforge.schemas.history import SchemaHistory
from airflow_provider_deltaforge.sources.contract import Finding, Snapshotter, Source, TableChunk
from airflow_provider_deltaforge.sources.reader_contract import LogReader
from airflow_provider_deltaforge.sources.shared.independent_change import IndependentChange
from airflow_provider_deltaforge.sources.turso import positions
from airflow_provider_deltaforge.sources.turso.files import file_of
from airflow_provider_deltaforge.sources.turso.positions import polled_by_all
from airflow_provider_deltaforge.sources.turso.server_address import is_server, server_of
from airflow_provider_deltaforge.sources.turso.tuning import TURSO_TUNING, TursoTuning
from airflow_provider_deltaforge.spec.patterns import check_patterns
from airflow_provider_deltaforge.spec.settings import Settings

_INDEPENDENT = "airflow_provider_deltaforge.sources.turso.independent_log"
_MODES = "airflow_provider_deltaforge.sources.turso.modes"
_PREFLIGHT = "airflow_provider_deltaforge.sources.turso.preflight:preflight"


class NativeCapture(Settings):
    """Turso's own change capture."""

    level: Literal["data", "binlog"] = "data"
    """``data``: changes of rows; ``binlog``: also changes of tables, as ``ddl`` events."""


class TursoSource(Source):
    """Row changes of a Turso database, a SQLite file or a database behind a libSQL server."""

    connector = "turso"
    type_system = "turso"
    tuning: ClassVar[TursoTuning] = TURSO_TUNING
    """How often it counts, and how long it waits; no document says so."""

    url: str = Field(min_length=1)
    """The database: a path, ``file:`` and a path, or a server as ``libsql://``, ``https://`` or ``http://``."""
    auth_token: SecretStr | None = None
    """Token for a server."""
    tables: tuple[str, ...]
    """Captured tables: exact names, ``prefix%`` or ``*``; never the system's."""
    cdc_mode: Literal["native", "triggers", "polling", "auto"] = "auto"
    """How changes are found; ``auto`` takes the first of the three that the file offers."""
    poll_interval_ms: PositiveInt = 1000
    """How often to look for changes, in milliseconds."""
    native_cdc: NativeCapture = NativeCapture()
    """Turso's own change capture."""
    cdc_table_name: str = Field(default="turso_cdc", min_length=1)
    """The table native capture writes to."""
    tracking_column: str = Field(default="_rowid_", min_length=1)
    """The growing column that polling compares."""
    auto_create_triggers: bool = False
    """Create the triggers that ``triggers`` needs."""
    batch_size: PositiveInt = 1000
    """Changes read at once."""

    _cleans: bool = PrivateAttr(default=True)

    @field_validator("tables")
    @classmethod
    def _patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        check_patterns(value, "source.tables")
        if not value:
            raise ValueError("name tables, or '*' for every table that is not the system's")
        return value

    def unbuilt(self) -> list[str]:
        """Name what cannot be followed."""
        found = []
        if "url" in self.model_fields_set:  # The reference page asks without any.
            at_server = is_server(self.url)
            try:
                server_of(self.url) if at_server else file_of(self.url)
            except SpecError as error:
                found.append(str(error))
            if self.auth_token is not None and not at_server and "${" not in self.url:
                found.append("source.auth_token: a file needs none; take the key out")
        if self.cdc_mode not in ("native", "auto") and self.native_cdc.level == "binlog":
            found.append("source.native_cdc: binlog needs cdc_mode: native")
        if "tracking_column" in self.model_fields_set and self.cdc_mode in ("native", "triggers"):
            found.append("source.tracking_column: goes together with cdc_mode: polling or auto")
        return found

    def open(
        self,
        position: Position | None,
        stopping: Callable[[], bool] = lambda: False,
        history: SchemaHistory | None = None,
    ) -> LogReader:
        """Start reading after ``position``; at the head of the changes when it is None."""
        found: LogReader = load_object(f"{_MODES}:open_reader")(self, position, cleans=self._cleans)
        return found

    def beside(self, reader: str, *, once: bool = False) -> "TursoSource":
        """Return this source as a reader that never cleans up what it acknowledges."""
        copy = self.model_copy()
        copy._cleans = False  # noqa: SLF001 - our own class
        return copy

    def copied_from(self, replica: str) -> Source:
        """Refuse to: a replica of a server sends each transaction on to the server itself."""
        del replica
        raise SpecError(
            "no rows can be copied from a replica: a file has none, and that of a libSQL server "
            "sends every transaction on to the server, where the copy would be read all the same; "
            "take the key out"
        )

    def open_snapshot(self) -> Snapshotter:
        """Open the file for reading tables."""
        found: Snapshotter = load_object(f"{_MODES}:open_snapshot")(self)
        return found

    def preflight(self) -> Sequence[Finding]:
        """Check the file, its locks, capture and tables; never raises for a finding."""
        found: Sequence[Finding] = load_object(_PREFLIGHT)(self)
        return found

    def describe(self) -> Sequence[TableSchema]:
        """Return every captured table as the file describes it now."""
        found: Sequence[TableSchema] = load_object(f"{_MODES}:describe")(self)
        return found

    def precompile(self) -> None:
        """Compile the kernel of the event ids, or find it compiled."""
        from airflow_provider_deltaforge.sources.shared.precompile import precompile_shared

        precompile_shared()

    def chunk_of_keys(
        self, chunk: TableChunk, table: TableSchema, keys: Sequence[Mapping[str, Any]]
    ) -> TableChunk | None:
        """Return the chunk of the rows with these keys."""
        from airflow_provider_deltaforge.sources.turso.keys import chunk_of_keys

        return chunk_of_keys(chunk, table, keys)

    def compare(self, left: Position, right: Position) -> int:
        """Return -1, 0 or 1 as ``left`` lies before, at or after ``right``."""
        return positions.compare(left, right)

    def covers(self, at: Position, position: Position) -> bool:
        """Return whether everything up to ``position`` is also before ``at``."""
        return positions.covers(at, position)

    def is_ordered(self, position: Position) -> bool:
        """Return whether one change always comes before the other: polling reads by tables."""
        return positions.FilePosition.from_json(position).mode != "polling"

    def earliest(self, positions: Sequence[Position]) -> Position | None:
        """Return where reading misses nothing behind any position; None without any."""
        return polled_by_all(positions) or super().earliest(positions)

    def visible(self, cut: Position, batch: ChangeBatch) -> Any:
        """Return which changes a view of the tables contained, a bool array by row."""
        return positions.visible_in(cut, batch.rows.column("source_position"))

    def knows_views(self, position: Position) -> bool:
        """Return whether changes have numbers: what polling finds has none."""
        return positions.FilePosition.from_json(position).mode != "polling"

    def common_cut(self, cuts: Sequence[Position]) -> Position | None:
        """Return a cut such that several views contained everything up to it; None: unknown."""
        return self.earliest(cuts)

    def log_position(self, text: str) -> tuple[Position, Position]:
        """Return the place before a change's number, and where the table of changes begins."""
        return load_object(f"{_INDEPENDENT}:log_position")(self, text)  # type: ignore[no-any-return]

    def reach(self, position: Position) -> None:
        """Check that everything behind ``position`` is still kept."""
        load_object(f"{_MODES}:check_kept")(self, position)

    def place_at(self, text: str) -> Position:
        """Return the place behind the last transaction before a change's number."""
        place: Position = load_object(f"{_INDEPENDENT}:place_at")(self, text)
        return place

    def place_at_time(self, at_ms: int) -> Position:
        """Return the last place such that all behind it was made later, or in that second."""
        place: Position = load_object(f"{_INDEPENDENT}:place_at_time")(self, at_ms)
        return place

    def independent_changes(self, after: Position, upto: Position) -> Iterator[IndependentChange]:
        """Yield what the engine itself makes of the changes between two positions."""
        yield from load_object(f"{_INDEPENDENT}:independent_changes")(self, after, upto)

    def head(self) -> Position:
        """Return the current end of the changes."""
        found: Position = load_object(f"{_MODES}:head")(self)
        return found
