"""How far one batch has come on its way into the streams."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.redis import entries


@dataclass
class RedisBatch:
    """One batch, from its first step to its last answer.

    Attributes:
        messages: the whole batch.
        steps: what is not yet confirmed, in order.
        rejections: what the server refused so far.
    """

    messages: Messages
    steps: list[Messages]
    rejections: list[Rejection] = field(default_factory=list)
    _ahead: tuple[Messages, memoryview] | None = None

    def commands(self, number: int, max_len: int | None) -> memoryview:
        """Return the commands of a step, kept until they are asked for again; empty behind all."""
        if number >= len(self.steps):
            return memoryview(b"")
        step = self.steps[number]
        if self._ahead is None or self._ahead[0] is not step:
            self._ahead = (step, entries.commands(step, max_len))
        return self._ahead[1]


def work(messages: Messages, slot: Callable[[str], int]) -> RedisBatch:
    """Return a batch as steps, each of which the server can carry out as a whole.

    Args:
        messages: the batch.
        slot: of a stream; one step writes to one slot only.
    """
    return RedisBatch(
        messages, [step for part in _by_slot(messages, slot) for step in _steps(part)]
    )


def _by_slot(messages: Messages, slot: Callable[[str], int]) -> Iterator[Messages]:
    names = messages.topics.dictionary.to_pylist()
    slots = np.array([slot(name) for name in names], np.int32)
    of_each = slots[np.asarray(messages.topics.indices)]
    found, first = np.unique(of_each, return_index=True)
    if len(found) == 1:
        yield messages
        return
    for one in found[np.argsort(first)]:
        yield messages.take(pa.array(np.flatnonzero(of_each == one)))


def _steps(messages: Messages) -> Iterator[Messages]:
    for first, last in entries.spans(messages):
        yield messages.slice(first, last - first)
