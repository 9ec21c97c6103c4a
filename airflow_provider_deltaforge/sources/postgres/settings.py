"""The parts of a PostgreSQL source's settings."""

from typing import Annotated, Literal

from pydantic import Field, SecretStr, StringConstraints

from airflow_provider_deltaforge.sources.shared.snapshot_settings import SnapshotSettings
from airflow_provider_deltaforge.spec.settings import Settings

STANDBY_KEY = "snapshot.dsn"
"""Which setting errors about a standby name."""

Lsn = Annotated[str, StringConstraints(pattern=r"^[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}$")]
SlotName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,63}$")]
PublicationName = Annotated[str, StringConstraints(min_length=1, max_length=63)]


class StartLsn(Settings):
    """A place in the write-ahead log."""

    lsn: Lsn
    """The log sequence number, for example ``16/B374D848``."""


StartPosition = Literal["earliest", "latest"] | StartLsn


class SlotSettings(Settings):
    """A replication slot, and what may be done with it."""

    name: SlotName
    """Its name."""
    create: bool = True
    """Create it when it does not exist at the first start."""
    failover: bool = False
    """Have standbys keep a copy, also of a slot that is there; from PostgreSQL 17 on."""


class PublicationSettings(Settings):
    """A publication, and what may be done with it."""

    name: PublicationName
    """Its name."""
    create: bool = True
    """Create it when it does not exist, and add tables that match and are created later."""


class OutboxMessages(Settings):
    """Which logical messages are outbox events."""

    prefixes: tuple[str, ...] = Field(min_length=1)
    """Patterns of message prefixes, such as ``outbox`` or ``outbox_%``."""


class PostgresSnapshotSettings(SnapshotSettings):
    """The copy of rows that were there before the log is followed."""

    dsn: SecretStr | None = None
    """Address of a standby to read rows from; the log is followed at ``dsn`` of the source.
    ``HOST`` or ``HOST:PORT`` alone is the source's address at another place."""
