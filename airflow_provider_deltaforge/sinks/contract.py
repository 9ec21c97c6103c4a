"""What every sink promises."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import Field, field_validator, model_validator

from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.plugins import ENCODINGS, ENVELOPES
from airflow_provider_deltaforge.spec.choice import choose, refusal
from airflow_provider_deltaforge.spec.settings import PluginSettings, Settings


class SinkWriter(Protocol):
    """A live connection, opened on the machine that writes. Used by one thread."""

    def write(self, messages: Messages) -> Sequence[Rejection]:
        """Write in order, and return only when every message not rejected is durable.

        Called again with the same messages after a RetryableError, so a message may arrive
        twice; a later message of a key must never become durable without the earlier ones.

        Raises:
            RetryableError: the destination is away; the engine waits and calls again.
            AccessError: credentials, permissions or TLS were refused.
            FatalError: writing can never work.
        """

    def close(self) -> None:
        """Release the connection within a few seconds. Safe to call twice, and while broken."""


@runtime_checkable
class Interruptible(Protocol):
    """A writer whose client goes on sending by itself while the destination is away.

    The lane that follows has a client of its own: what the old one still held would arrive behind
    newer messages of the same keys.
    """

    def abandon(self) -> None:
        """Make a write under way raise RetryableError soon. Called from another thread."""


class SinkFilter(Settings):
    """Which events a sink wants; every condition given must hold."""

    exclude_synthetic: bool = False
    """Leave out events that a processor made."""
    synthetic_only: bool = False
    """Leave out events that came from the source."""
    producers: tuple[str, ...] = ()
    """Only events made by these processors; empty takes every event."""

    @model_validator(mode="after")
    def _check_meaning(self) -> "SinkFilter":
        if self.exclude_synthetic and (self.synthetic_only or self.producers):
            other = "synthetic_only" if self.synthetic_only else "producers"
            raise refusal((other,), "no event could pass it together with exclude_synthetic")
        return self


class Sink(PluginSettings):
    """A description: picklable, holds no connection.

    A concrete sink names the field that holds its destination template (``topic``, ``stream``,
    ``subject``, ``url`` or ``path``) in ``destination_field``.
    """

    destination_field: ClassVar[str]

    id: str
    """Names the sink in checkpoints, metrics and logs; unique in the pipeline."""
    required: bool = True
    """The pipeline blocks while this sink is behind."""
    envelope: Any = Field(default=None, validate_default=True)
    """``native``, ``debezium`` or ``{type: cloudevents, type_prefix: …}``; ``native`` if absent."""
    encoding: Any = Field(default=None, validate_default=True)
    """``json`` or ``{type: json}``, which is also what an absent key means."""
    filter: SinkFilter | None = None
    """Which events this sink wants; all of them if absent."""

    @field_validator("envelope", mode="before")
    @classmethod
    def _choose_envelope(cls, value: Any) -> Any:
        return choose(ENVELOPES, value, "native")

    @field_validator("encoding", mode="before")
    @classmethod
    def _choose_encoding(cls, value: Any) -> Any:
        return choose(ENCODINGS, value, "json")

    @abstractmethod
    def open(self, pipeline: str) -> SinkWriter:
        """Connect. Called once per lane, on the machine that writes."""

    @property
    def destination(self) -> str:
        """The template of the place this sink writes to."""
        return str(getattr(self, self.destination_field))
