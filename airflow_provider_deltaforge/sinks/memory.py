"""Messages kept in this process, and faults on demand: for tests and for trying things out."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import Sink, SinkWriter
from airflow_provider_deltaforge.sinks.reader_contract import HeldMessages, SinkReader


@dataclass(frozen=True, slots=True)
class MemoryMessage:
    """One message as a reader of the destination would see it."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, str], ...]
    event_id: bytes


@dataclass
class MemoryLog:
    """What the sinks of one name have written, and how they should behave.

    Attributes:
        latency_s: Seconds each write takes.
        value_bytes_max: Longer values are rejected as ``message_too_large``; None takes all.
        refuses: Values for which it is true are rejected as ``refused``; None takes all.
    """

    latency_s: float = 0.0
    value_bytes_max: int | None = None
    refuses: Callable[[bytes], bool] | None = None
    _messages: list[MemoryMessage] = field(default_factory=list)
    _failures: list[DeltaForgeError] = field(default_factory=list)
    _partial: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _free: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        """Begin with writes that do not hang."""
        self._free.set()

    def fail_next(self, count: int, error: DeltaForgeError, *, after_messages: int = 0) -> None:
        """Make the next ``count`` writes raise ``error``, each after storing some messages."""
        with self._lock:
            self._failures += [error] * count
            self._partial = after_messages

    def heal(self) -> None:
        """Forget the faults that were asked for."""
        with self._lock:
            self._failures.clear()

    def hold(self) -> None:
        """Make writes hang until ``let_go``."""
        self._free.clear()

    def let_go(self) -> None:
        """End the hanging of writes."""
        self._free.set()

    def messages(self) -> list[MemoryMessage]:
        """Return what is stored, in order of arrival."""
        with self._lock:
            return list(self._messages)

    def clear(self) -> None:
        """Forget messages and faults."""
        with self._lock:
            self._messages.clear()
            self._failures.clear()
        self.latency_s, self.value_bytes_max, self.refuses = 0.0, None, None

    def write(self, messages: Messages) -> list[Rejection]:
        """Store the messages, or fail as asked."""
        self._free.wait()
        if self.latency_s:
            time.sleep(self.latency_s)
        with self._lock:
            failure = self._failures.pop(0) if self._failures else None
            taken = len(messages) if failure is None else min(self._partial, len(messages))
            rejections = self._store(messages, taken)
        if failure is not None:
            raise failure
        return rejections

    def _store(self, messages: Messages, count: int) -> list[Rejection]:
        rejections = []
        topics = messages.topics.to_pylist()
        headers = messages.headers
        for index in range(count):
            value = messages.values[index].as_py()
            if self.value_bytes_max is not None and len(value or b"") > self.value_bytes_max:
                row = messages.event_rows[index].as_py()
                reason = f"memory sink: the value is longer than {self.value_bytes_max} bytes"
                rejections.append(Rejection(row, "message_too_large", reason))
                continue
            if self.refuses is not None and self.refuses(value or b""):
                row = messages.event_rows[index].as_py()
                rejections.append(Rejection(row, "refused", "memory sink: it refuses this one"))
                continue
            pairs = None if headers is None else headers[index].as_py()
            self._messages.append(
                MemoryMessage(
                    topics[index],
                    messages.keys[index].as_py(),
                    value,
                    tuple(pairs or ()),
                    messages.event_ids[index].as_py(),
                )
            )
        return rejections


_LOGS: defaultdict[str, MemoryLog] = defaultdict(MemoryLog)


def memory_log(name: str) -> MemoryLog:
    """Return what this process holds under ``name``; empty at first."""
    return _LOGS[name]


class MemorySink(Sink):
    """Keeps messages in lists that live as long as the process."""

    destination_field: ClassVar[str] = "topic"
    key_field: ClassVar[str] = "key"
    is_private: ClassVar[bool] = True
    takes_several_writers: ClassVar[bool] = True

    id: str = "memory"
    """Names the sink in checkpoints, metrics and logs; unique in the pipeline."""
    log: str = ""
    """Name of the list, for ``memory_log``; the sink's id if empty."""
    topic: str = "${source.db}.${source.table}"
    """Topic, or a template."""
    key: str | None = None
    """Template of the message key; the row's primary key as JSON if absent."""
    tombstones: bool = False
    """After each delete write a message with the same key and no value."""

    @property
    def writes_tombstones(self) -> bool:
        """Whether the document asks for tombstones."""
        return self.tombstones

    def open(self, pipeline: str) -> SinkWriter:
        """Return a writer to the named list."""
        return MemoryWriter(memory_log(self.log or self.id))

    def open_reader(self, pipeline: str) -> SinkReader:
        """Return a reader of the named list."""
        return MemoryReader(memory_log(self.log or self.id))


class MemoryWriter:
    """Writes to one list."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def write(self, messages: Messages) -> Sequence[Rejection]:
        """Store in order; see ``SinkWriter``."""
        return self._log.write(messages) if len(messages) else []

    def close(self) -> None:
        """Nothing to release."""


class MemoryReader:
    """Reads one list back; see ``SinkReader``."""

    def __init__(self, log: MemoryLog) -> None:
        self.notes: list[str] = []
        self._log = log
        self._reached: dict[str, int] = {}

    def read(self, topics: Collection[str]) -> Iterator[HeldMessages]:
        """Yield the messages that were not read before."""
        held = self._log.messages()
        for topic in sorted(topics):
            fresh = held[self._reached.get(topic, 0) :]
            self._reached[topic] = len(held)
            mine = [message for message in fresh if message.topic == topic]
            if mine:
                keys = pa.array([message.key for message in mine], pa.binary())
                values = pa.array([message.value for message in mine], pa.binary())
                yield HeldMessages(topic, 0, keys, values)

    def close(self) -> None:
        """Nothing to release."""
