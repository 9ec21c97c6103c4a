"""What every sink promises."""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import Field, NonNegativeInt, field_validator, model_validator

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.plugins import ENCODINGS, ENVELOPES, load_object
from airflow_provider_deltaforge.sinks.reader_contract import SinkReader, VerifySettings
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

    The next lane has a client of its own: what the old one still held would arrive behind newer
    messages of the same keys.
    """

    def abandon(self) -> None:
        """Make a write under way raise RetryableError soon. Called from another thread."""


@dataclass(frozen=True, slots=True)
class FormerWriter:
    """A writer of an earlier epoch that is not known to be closed.

    Attributes:
        name: as it entered.
        lives_s: how long what it had begun to write may go on after its lease.
        may_write: False once its process is known to be gone.
    """

    name: str
    lives_s: float
    may_write: bool


class WriterClaim(Protocol):
    """The right of one epoch's writers, which work side by side, to write to one sink.

    A newer epoch ends that of every older one. All methods ask the state store, and raise
    RetryableError while it is away.
    """

    token: str
    """The same for all writers of an epoch, and never used again."""

    def confirm(self) -> None:
        """Ask whether the epoch is still the newest.

        Raises:
            FencedError: it is not.
        """

    def hold(self) -> None:
        """Make sure that nobody else writes yet, for the next seconds; to be asked at every step.

        Raises:
            FencedError: a newer epoch has begun.
        """

    def former(self) -> Sequence[FormerWriter]:
        """Return the writers of earlier epochs that may still write to this sink."""

    def outlive(self, writers: Sequence[FormerWriter]) -> None:
        """Return when nothing that these have begun can be under way any more.

        Raises RetryableError while that takes some seconds more; the text says how many.
        """

    def forget(self, writers: Sequence[FormerWriter]) -> None:
        """Note that these cannot write any more."""

    def enter(self, name: str, lives_s: float = 0.0) -> None:
        """Note that a writer begins, before its first write.

        Args:
            name: by which a successor can find or shut it out.
            lives_s: how long what it has begun to write may go on after its lease.
        """


LEASE = "lease"
"""The name of writers that nothing shuts out: a successor outlives them."""


def take_lease(claim: WriterClaim, lives_s: float = 0.0) -> None:
    """Begin to write where nobody can be shut out.

    Args:
        claim: the right to do so; ``hold`` is to be asked before each step.
        lives_s: see ``WriterClaim.enter``.

    Raises:
        RetryableError: former writers have to be outlived first.
        FencedError: a newer epoch has begun.
    """
    former = claim.former()
    claim.outlive(former)
    claim.forget(former)
    claim.enter(LEASE, lives_s)


@runtime_checkable
class FencedWriter(Protocol):
    """A writer that keeps former writers from writing behind it.

    Before other writers the engine waits until nothing of a former one can be under way, and calls
    ``WriterClaim.hold`` before each write.
    """

    def fence(self, claim: WriterClaim) -> None:
        """Shut out, or outlive, every writer of earlier epochs. Called once, before the first use.

        Raises:
            FencedError: a newer epoch has begun.
            RetryableError, AccessError, FatalError: as ``write`` does.
        """


@runtime_checkable
class Reachable(Protocol):
    """A writer that can ask its destination whether it is there and takes us."""

    def reach(self) -> None:
        """Ask once, for a few seconds; nothing is written.

        Raises:
            RetryableError: the destination does not answer.
            AccessError: credentials, permissions or TLS were refused.
            FatalError: it lacks what the document names.
        """


class RowMarks(Protocol):
    """Marks by which a destination shows that it still holds acknowledged rows of snapshots.

    They have no position. A mark is lost together with what lies before it, when the destination
    comes back with older data; what is written from then on never makes it be found again. Used by
    one thread.
    """

    def leave(self) -> str:
        """Return a new mark behind everything that the destination has acknowledged.

        Raises:
            RetryableError, AccessError, FatalError: as ``write`` does.
        """

    def lost(self, marks: Collection[str]) -> set[str]:
        """Return which of these marks the destination lacks. Raises as ``leave`` does."""

    def close(self) -> None:
        """Release the connection."""


class SinkFilter(Settings):
    """Which events a sink wants; every condition given must hold."""

    exclude_synthetic: bool = False
    """Leave out events that a processor, or schema sensing, made."""
    synthetic_only: bool = False
    """Leave out events that came from the source."""
    exclude_ops: tuple[Literal["truncate", "ddl"], ...] = ()
    """Leave out events about a whole table, which have no key: ``truncate`` (op ``t``), ``ddl``."""
    producers: tuple[str, ...] = ()
    """Only events made by these processors, or by ``schema_sensing``; empty takes every event."""

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
    key_field: ClassVar[str | None] = None
    """The field that holds the template of the message key; None for a sink without keys."""
    quotes_fields: ClassVar[bool] = False
    """What fields put into the destination template is percent-encoded."""
    writes_lines: ClassVar[bool] = False
    """Each message is a line of text, which no binary encoding can be."""
    takes_partitions: ClassVar[bool] = False
    """Each message goes to the partition of its shard, if the document counts shards."""
    is_private: ClassVar[bool] = False
    """Each process writes to a place of its own: no former writer can follow a newer one."""
    takes_several_writers: ClassVar[bool] = False
    """Without a position: written by ``delivery.parallelism`` writers at once, each its keys."""
    takes_chunks: ClassVar[bool] = False
    """If it holds the position: its writer for rows of snapshots is a ``ChunkWriter``."""

    id: str
    """Names the sink in checkpoints, metrics and logs; unique in the pipeline."""
    required: bool = True
    """The pipeline blocks while this sink is behind."""
    start: Literal["earliest", "latest"] | dict[str, Any] = "earliest"
    """Where a sink begins that is added to a pipeline which has run before: ``earliest``, at the
    position of its slowest sink, ``latest``, at the end of the log, or a position in between."""
    lag_limit_secs: NonNegativeInt = 86_400
    """A sink that the pipeline goes on without is given up once it has lacked changes for this
    long; 0: never."""
    envelope: Any = Field(default=None, validate_default=True)
    """``native``, ``debezium`` or ``{type: cloudevents, type_prefix: …}``; ``native`` if absent."""
    encoding: Any = Field(default=None, validate_default=True)
    """``json``, which is also what an absent key means, or ``{type: avro, …}``."""
    filter: SinkFilter | None = None
    """Which events this sink wants; all of them if absent."""
    verify: VerifySettings | None = None
    """Verify what a function of yours reads, in place of what this sink holds."""

    @field_validator("envelope", mode="before")
    @classmethod
    def _choose_envelope(cls, value: Any) -> Any:
        return choose(ENVELOPES, value, "native")

    @field_validator("encoding", mode="before")
    @classmethod
    def _choose_encoding(cls, value: Any) -> Any:
        return choose(ENCODINGS, value, "json")

    @model_validator(mode="after")
    def _check_lines(self) -> "Sink":
        if self.writes_lines and not self.encoding.is_text:
            raise refusal(("encoding",), "this sink writes lines of text; use json")
        return self

    def content_type(self, *, in_arrays: bool = False) -> str:
        """Return what a value, or a JSON array of some, is called where messages say it."""
        own: str | None = self.encoding.media_type
        return own or str(self.envelope.media_types[in_arrays])

    def _connected(self, place: str, pipeline: str, extra: str) -> Any:
        """Return a ``module:class`` of this description and a pipeline's name.

        Raises:
            SpecError: ``extra``, of this package and the sink's type, is missing: the driver.
        """
        try:
            return load_object(place)(self, pipeline)
        except ModuleNotFoundError as error:
            raise SpecError(
                f"sink type {extra!r} needs an extra: pip install "
                f"'airflow-provider-deltaforge[{extra}]'"
            ) from error

    @abstractmethod
    def open(self, pipeline: str) -> SinkWriter:
        """Connect. Called once per lane, on the machine that writes."""

    def dataset(self) -> tuple[str, str] | None:
        """Return how lineage calls what it writes to, without a login; None where nothing lasts.

        Returns:
            The system, as ``kafka://host:9092``, and the template of a destination's name.
        """
        return None

    def open_reader(self, pipeline: str) -> SinkReader | None:
        """Connect for reading back what was written; None where that cannot be done."""
        return None

    def open_row_marks(self, pipeline: str) -> RowMarks | None:
        """Connect for marks of rows of an exactly-once sink; None where none can be lost."""
        return None

    def without_position(self) -> "Sink":
        """Return it without holding the position: for rows of snapshots, and dead letters."""
        return self

    @property
    def holds_position(self) -> bool:
        """Whether ``open`` returns an ``ExactlyOnceWriter``, which holds the position as well."""
        return False

    @property
    def writes_tombstones(self) -> bool:
        """Whether each delete is followed by a message with its key and no value."""
        return False

    @property
    def keeps_order_of(self) -> Literal["all", "keys", "rows"]:
        """What its writer keeps in order: all messages, those of a key or row, or those of a row.

        Unless it is ``all``, ``Messages.groups`` tells it which these are.
        """
        return "all"

    @property
    def key_template(self) -> str | None:
        """The template of the message key; None where it is the row's primary key as JSON."""
        return None if self.key_field is None else getattr(self, self.key_field)

    @property
    def batch_events(self) -> int:
        """How many events a batch should hold at least, unless the document says how many."""
        return 0

    @property
    def destination(self) -> str:
        """The template of the place this sink writes to."""
        return str(getattr(self, self.destination_field))
