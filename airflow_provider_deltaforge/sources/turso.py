"""Turso and SQLite: described so that documents can be checked, not built yet."""

from collections.abc import Callable, Sequence
from typing import Literal, NoReturn

from pydantic import Field, PositiveInt, SecretStr

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.contract import Finding, LogReader, Snapshotter, Source
from airflow_provider_deltaforge.spec.settings import Settings

_UNBUILT = "source type 'turso'"


class NativeCapture(Settings):
    """Turso's own change capture."""

    level: Literal["data", "binlog"] = "data"
    """How much of a change is recorded."""


class TursoSource(Source):
    """Row changes of a Turso database or a SQLite file."""

    connector = "turso"

    url: str = Field(min_length=1)
    """``libsql://``, ``http://``, ``https://`` or ``file:``, or a path."""
    auth_token: SecretStr | None = None
    """Token of a Turso cloud database."""
    tables: tuple[str, ...]
    """Captured tables: exact names, ``prefix%`` or ``*``."""
    cdc_mode: Literal["native", "triggers", "polling", "auto"] = "auto"
    """How changes are found; ``auto`` takes the best one the database offers."""
    poll_interval_ms: PositiveInt = 1000
    """How often to look for changes, in milliseconds."""
    native_cdc: NativeCapture = NativeCapture()
    """Turso's own change capture."""
    cdc_table_name: str = "turso_cdc"
    """The table native capture writes to."""
    tracking_column: str = "_rowid_"
    """The growing column that polling compares."""
    auto_create_triggers: bool = False
    """Create the triggers that ``triggers`` needs."""
    batch_size: PositiveInt = 1000
    """Changes read at once."""

    def unbuilt(self) -> list[str]:
        """Name the whole source."""
        return [_UNBUILT]

    def open(
        self, position: Position | None, stopping: Callable[[], bool] = lambda: False
    ) -> LogReader:
        """Refuse.

        Raises:
            SpecError: always, as every other method does.
        """
        self._refuse()

    def open_snapshot(self) -> Snapshotter:
        """Refuse."""
        self._refuse()

    def preflight(self) -> Sequence[Finding]:
        """Say that there is nothing to check."""
        return [Finding("source", "fail", f"{_UNBUILT} is not part of this release")]

    def compare(self, left: Position, right: Position) -> int:
        """Refuse."""
        self._refuse()

    def head(self) -> Position:
        """Refuse."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise SpecError(f"{_UNBUILT} is not part of this release; source {self.id!r} cannot open")
