"""What sinks receive: finished messages, in columns."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
        shards: int32, by ``sharding.count`` of the document, or None without one.
        order_groups: uint64, nullable. Messages with the same number must not overtake each other:
            those of a key, and those of a row that changes it. Null is about a whole table and
            overtakes nothing, nor is it overtaken. None where the sink keeps all in order.
        bare: bool. Which values are ``after`` alone, without the envelope, or None: none is.
    """

    topics: "pa.DictionaryArray"
    keys: "pa.BinaryArray"
    values: "pa.BinaryArray"
    headers: "pa.MapArray | None"
    event_ids: "pa.FixedSizeBinaryArray"
    event_rows: "pa.Int32Array"
    shards: "pa.Int32Array | None" = None
    order_groups: "pa.UInt64Array | None" = None
    bare: "pa.BooleanArray | None" = None

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.values)

    def slice(self, start: int, count: int) -> "Messages":
        """Return so many messages from one on, without copying them."""
        return self._each(lambda column: column.slice(start, count))

    def take(self, rows: "pa.Array") -> "Messages":
        """Return the messages at ``rows``, in that order."""
        return self._each(lambda column: column.take(rows))

    def groups(self) -> "pa.Int32Array":
        """Return ``order_groups`` counted from 0; where there are none, the keys stand for them."""
        by = self.keys if self.order_groups is None else self.order_groups
        return by.dictionary_encode().indices

    def same_as(self, other: "Messages") -> bool:
        """Return whether these are the same messages, perhaps rendered again."""
        return self is other or (
            self.event_ids.equals(other.event_ids)
            and self.keys.equals(other.keys)
            and self.values.equals(other.values)
            and self.topics.cast("string").equals(other.topics.cast("string"))
        )

    def _each(self, change: "Callable[[pa.Array], pa.Array]") -> "Messages":
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return Messages(
            **{name: None if column is None else change(column) for name, column in columns.items()}
        )


@dataclass(frozen=True, slots=True)
class Rejection:
    """One message (or one event) that cannot be delivered, and why; the rest were durable."""

    event_row: int
    kind: str
    reason: str
