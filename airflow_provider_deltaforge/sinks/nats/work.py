"""How far one batch has come, and which message may be sent next.

JetStream stores what it can: a message that it refuses does not stop the ones behind it. So a
message is sent only when every earlier one of its key is stored. Messages without a key, such as
truncates, wait for all earlier ones that have a key, and those behind wait for them.
"""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.events.message import Messages, Rejection

_IN_FLIGHT = 2048


@dataclass
class NatsBatch:
    """One batch, from its first message sent to its last answer.

    Attributes:
        messages: The whole batch.
        next: The first message not yet sent.
        low: Every message before it is settled.
        settled: One byte a message: stored, or refused for good.
        seqs: Where each message was stored, with all that it follows.
        refused: Messages that cannot be delivered, by index.
        again: Messages to be sent once more under another id.
    """

    messages: Messages
    next: int = 0
    low: int = 0
    settled: bytearray = field(init=False)
    seqs: dict[int, tuple[str, int]] = field(default_factory=dict)
    refused: dict[int, Rejection] = field(default_factory=dict)
    again: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Find out what each message has to wait for."""
        self.settled = bytearray(len(self.messages))
        self.follows = _predecessors(self.messages.keys)

    @property
    def done(self) -> bool:
        """Whether every message is settled."""
        return self.low == len(self.messages)

    def ready(self) -> range:
        """Return the messages that may be sent now, in order."""
        last = min(len(self.messages), self.low + _IN_FLIGHT)
        waiting = np.flatnonzero(self.follows[self.next : last] >= self.low)
        return range(self.next, self.next + int(waiting[0]) if len(waiting) else last)

    def settle(self, index: int) -> None:
        """Take note that a message is stored, or refused for good."""
        self.settled[index] = 1
        while self.low < len(self.settled) and self.settled[self.low]:
            self.low += 1

    def begin_again(self) -> None:
        """Send what is not settled once more, on another connection."""
        self.next = self.low
        self.again.clear()

    def rejections(self) -> list[Rejection]:
        """Return what was refused, in the order of the messages."""
        return [rejection for _, rejection in sorted(self.refused.items())]


def _predecessors(keys: pa.BinaryArray) -> "np.typing.NDArray[np.int64]":
    """Return for each message the last one that it has to wait for, or -1."""
    count = len(keys)
    found = np.full(count, -1, np.int64)
    codes = keys.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    same = codes[order][1:] == codes[order][:-1]
    found[order[1:][same]] = order[:-1][same]
    places, keyless = np.arange(count), codes == -1
    found[keyless] = _last(places, ~keyless)[keyless]
    return np.maximum(found, np.where(keyless, -1, _last(places, keyless)))


def _last(
    places: "np.typing.NDArray[np.int64]", chosen: "np.typing.NDArray[np.bool_]"
) -> "np.typing.NDArray[np.int64]":
    """Return for each place the last chosen one up to it, or -1."""
    if not len(places):
        return places
    return np.maximum.accumulate(np.where(chosen, places, -1))
