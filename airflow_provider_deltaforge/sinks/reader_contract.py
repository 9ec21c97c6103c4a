"""What a sink promises whose messages can be read back."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field, NonNegativeInt

from airflow_provider_deltaforge.spec.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class HeldMessages:
    """Messages of one destination as it holds them, in its own order.

    Attributes:
        topic: the topic, stream or path that they were read from.
        partition: messages of two partitions have no order among each other, but for their times.
        keys: binary; null or empty where a message has none.
        values: binary; null is a tombstone.
        times_ms: int64, when each was written, in ms since the epoch; None: not known.
    """

    topic: str
    partition: int
    keys: "pa.BinaryArray"
    values: "pa.BinaryArray"
    times_ms: Any = None


class SinkReader(Protocol):
    """Reads back what a sink has written, for ``deltaforge verify``. Used by one thread."""

    notes: list[str]
    """What people should know of what was read, such as that old messages are deleted there."""

    def read(self, topics: Collection[str]) -> Iterator[HeldMessages]:
        """Yield what destinations hold, from their beginning or behind what was read before.

        It ends with what they held when it was called, or a little later. Everything that was
        acknowledged to the writer before is in it.

        Args:
            topics: those to read; one that does not exist is empty.

        Raises:
            RetryableError, AccessError, FatalError: as ``SinkWriter.write`` does.
        """

    def close(self) -> None:
        """Release the connection. Safe to call twice."""


class VerifySettings(Settings):
    """How ``deltaforge verify`` reads back what consumers made of this sink's messages."""

    reader: str = Field(pattern=r"^[\w.]+:\w+$")
    """``package.module:function`` that returns a table's rows as Arrow record batches."""
    options: Mapping[str, Any] = {}
    """Passed to it as keyword arguments."""
    lag_secs: NonNegativeInt = 0
    """How long rows may take from this sink to where the reader finds them, in seconds."""
