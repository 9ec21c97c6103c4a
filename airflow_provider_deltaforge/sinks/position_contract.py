"""What sinks promise that hold the position with the data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.events.position import Position
from airflow_provider_deltaforge.spec.settings import Settings


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

    Only of such a one it follows, from a position that is gone, that the messages are gone as well,
    and that they may be written again.
    """

    has_expired: bool
    """After ``recover`` returned nothing: the destination itself let the position go, by its limits
    or a purge, together with messages that readers could have read."""


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
