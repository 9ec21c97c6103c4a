"""NATS JetStream: described so that documents can be checked, not built yet."""

from typing import ClassVar

from pydantic import Field, PositiveInt, SecretStr, model_validator

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.sinks.contract import Sink, SinkWriter

_UNBUILT = "sink type 'nats'"


class NatsSink(Sink):
    """One JetStream message per event, deduplicated by ``Nats-Msg-Id``."""

    destination_field: ClassVar[str] = "subject"

    url: SecretStr
    """Servers, separated by commas, for example ``nats://one:4222,nats://two:4222``."""
    subject: str = Field(min_length=1)
    """Template of the subject."""
    key: str | None = None
    """Template of the header ``df-key``; no such header if absent."""
    stream: str | None = None
    """The JetStream stream that must take the subject."""
    send_timeout_secs: PositiveInt = 5
    """How long one acknowledgement may take, in seconds."""
    batch_timeout_secs: PositiveInt = 30
    """How long one batch may take, in seconds."""
    connect_timeout_secs: PositiveInt = 10
    """How long connecting may take, in seconds."""
    credentials_file: str | None = None
    """Path of a NATS credentials file."""
    username: str | None = None
    """User, together with ``password``."""
    password: SecretStr | None = None
    """Password of ``username``."""
    token: SecretStr | None = None
    """Token, instead of user and password."""

    @model_validator(mode="after")
    def _check_login(self) -> "NatsSink":
        if (self.username is None) != (self.password is None):
            raise ValueError("'username' and 'password' go together")
        return self

    def unbuilt(self) -> list[str]:
        """Name the whole sink."""
        return [_UNBUILT]

    def open(self, pipeline: str) -> SinkWriter:
        """Refuse.

        Raises:
            SpecError: always.
        """
        raise SpecError(f"{_UNBUILT} is not part of this release; remove it from {pipeline!r}")
