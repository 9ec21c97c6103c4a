"""Redis Streams: described so that documents can be checked, not built yet."""

from typing import ClassVar

from pydantic import Field, PositiveInt, SecretStr

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.sinks.contract import Sink, SinkWriter

_UNBUILT = "sink type 'redis'"


class RedisSink(Sink):
    """One stream entry per message."""

    destination_field: ClassVar[str] = "stream"

    uri: SecretStr
    """Where Redis listens, for example ``redis://cache:6379/0``."""
    stream: str = Field(min_length=1)
    """Template of the stream's name."""
    key: str | None = None
    """Template of the field ``df-key``; the event id if absent."""
    send_timeout_secs: PositiveInt = 5
    """How long one command may take, in seconds."""
    batch_timeout_secs: PositiveInt = 30
    """How long one batch may take, in seconds."""
    connect_timeout_secs: PositiveInt = 10
    """How long connecting may take, in seconds."""

    def unbuilt(self) -> list[str]:
        """Name the whole sink."""
        return [_UNBUILT]

    def open(self, pipeline: str) -> SinkWriter:
        """Refuse.

        Raises:
            SpecError: always.
        """
        raise SpecError(f"{_UNBUILT} is not part of this release; remove it from {pipeline!r}")
