"""What sinks receive: finished messages, in columns."""

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages ready to be written, in delivery order; all columns have the same length.

    Attributes:
        topics: dictionary<int32, utf8>. Topic, stream, subject, path or URL; never null or empty.
        keys: binary, nullable.
        values: binary; null is a tombstone.
        headers: map<utf8, utf8>, nullable, or None when no message has any.
        event_ids: fixed 16 bytes, the same on every replay.
        event_rows: int32. Which row of the change batch each message came from.
    """

    topics: pa.DictionaryArray
    keys: pa.BinaryArray
    values: pa.BinaryArray
    headers: pa.MapArray | None
    event_ids: pa.FixedSizeBinaryArray
    event_rows: pa.Int32Array

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Rejection:
    """One message (or one event) that cannot be delivered, and why; the rest were durable."""

    event_row: int
    kind: str
    reason: str
