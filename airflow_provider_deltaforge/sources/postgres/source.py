"""PostgreSQL logical replication: described so that documents can be checked, not built yet."""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal, NoReturn

from pydantic import Field, SecretStr, StringConstraints

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.schemas.history import SchemaHistory
from airflow_provider_deltaforge.sources.contract import Finding, LogReader, Snapshotter, Source
from airflow_provider_deltaforge.spec.settings import Settings

_UNBUILT = "source type 'postgres'"

Lsn = Annotated[str, StringConstraints(pattern=r"^[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}$")]


class StartLsn(Settings):
    """A place in the write-ahead log."""

    lsn: Lsn
    """The log sequence number, for example ``16/B374D848``."""


class OutboxMessages(Settings):
    """Which logical messages are outbox events."""

    prefixes: tuple[str, ...] = Field(min_length=1)
    """Patterns of message prefixes."""


class PostgresSource(Source):
    """Row changes from a replication slot with the ``pgoutput`` plug-in."""

    connector = "postgresql"

    dsn: SecretStr
    """``postgres://user:password@host:5432/db``, or ``key=value`` pairs."""
    tables: tuple[str, ...] = ()
    """Patterns of captured tables; empty captures every table of the publication."""
    publication: str = Field(min_length=1)
    """Created when it does not exist."""
    slot: str = Field(pattern=r"^[a-z0-9_]{1,63}$")
    """Replication slot, created when it does not exist."""
    start_position: Literal["earliest", "latest"] | StartLsn = "earliest"
    """Where the first run starts."""
    outbox: OutboxMessages | None = None
    """Logical messages that are outbox events."""
    on_schema_drift: Literal["adapt", "halt"] = "adapt"
    """What to do when tables look different after a failover."""

    def unbuilt(self) -> list[str]:
        """Name the whole source."""
        return [_UNBUILT]

    def open(
        self,
        position: Position | None,
        stopping: Callable[[], bool] = lambda: False,
        history: SchemaHistory | None = None,
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
