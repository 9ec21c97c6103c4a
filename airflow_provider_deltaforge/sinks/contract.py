"""What every sink promises."""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import Field, NonNegativeInt, field_validator, model_validator

from airflow_provider_deltaforge.errors import FatalError, SpecError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.events.position import Position
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


class _SinkPositionText(Settings):
    """A position as destinations hold it."""

    v: Literal[1] = 1
    position: dict[str, Any]
    event_id: str | None = None
    store: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class SinkPosition:
    """How far a sink holds the log.

    A writer that makes one of another, for a part of a batch, keeps ``store`` and ``source``.
    """

    position: Position
    """Everything up to it is held."""
    event_id: bytes | None = None
    """And behind it the events up to this one, of what is delivered in parts."""
    store: str | None = None
    """The identity of the state store whose pipeline wrote this; None of one without."""
    source: str | None = None
    """The id of the source whose log it is a place in."""

    def as_text(self) -> bytes:
        """Return the one form in which every destination holds it."""
        event = self.event_id.hex() if self.event_id is not None else None
        record = _SinkPositionText(
            position=dict(self.position), event_id=event, store=self.store, source=self.source
        )
        return record.model_dump_json().encode()

    @classmethod
    def from_text(cls, text: bytes | str, where: str) -> "SinkPosition":
        """Read what ``as_text`` made.

        Args:
            text: what the destination holds.
            where: how messages for people name the place.

        Raises:
            FatalError: it is something else, or a newer release wrote it.
        """
        try:
            record = _SinkPositionText.model_validate_json(text)
            event = bytes.fromhex(record.event_id) if record.event_id is not None else None
        except ValueError as error:
            raise FatalError(
                f"{where}: this is no position that this release can read; use the release that "
                "wrote it, or remove it: the pipeline then goes on at its own checkpoint"
            ) from error
        return cls(record.position, event, record.store, record.source)


@runtime_checkable
class ExactlyOnceWriter(Protocol):
    """A writer whose destination holds our position together with the messages.

    It is a ``SinkWriter`` as well: ``write`` is used for the rows of snapshots, which have no
    position.
    """

    def recover(self) -> SinkPosition | None:
        """Shut every former writer of this sink out, and return what is durable.

        Called before the first ``write_once``, and again after a FencedError.

        Returns:
            None if nothing was ever written with a cursor.

        Raises:
            RetryableError, AccessError, FatalError: as ``write`` does.
        """

    def write_once(
        self, messages: Messages, before: SinkPosition, after: SinkPosition
    ) -> Sequence[Rejection]:
        """Write messages and the cursor, so that all of it becomes durable or nothing.

        Where a destination has no transactions, ``recover`` returns how far it came. Called again
        with the same arguments after a RetryableError: the writer finds out by itself what of it
        is durable already.

        Args:
            messages: in order, never empty.
            before: what the sink holds. It may lie behind what ``recover`` or the last call
                returned: stretches of the log without a message for the sink are not written.
            after: what it holds once this is durable.

        Returns:
            What the destination refuses. If that is anything at all, the cursor lies in front of
            it: the engine sets the refused events aside first, and then calls again without them.
            (Otherwise a kill between the two would forget them.) What is in front of them may be
            durable already if ``recover`` returns it; it is then not written again.

        Raises:
            FencedError: another writer of this sink has taken over.
            RetryableError, AccessError, FatalError: as ``write`` does.
        """


@runtime_checkable
class LosesPositionWithMessages(Protocol):
    """A writer whose destination cannot lose the position without the messages behind it.

    Where that is gone, the messages are gone as well, and may be written again.
    """

    has_expired: bool
    """After ``recover`` returned nothing: limits or a purge took it, with messages to be read."""


@runtime_checkable
class BeginsEmpty(Protocol):
    """A writer that can hold a position before the first message does."""

    def begin(self, cursor: SinkPosition) -> None:
        """Hold a position; called behind ``recover``.

        A destination that comes back with data from before the first message tells it then, and
        with it that it still holds what lies in front: the rows of a snapshot.

        Raises:
            FencedError, RetryableError, AccessError, FatalError: as ``write_once`` does.
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
