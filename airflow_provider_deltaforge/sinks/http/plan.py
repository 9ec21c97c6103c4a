"""Which messages go into which request, and how far a batch has come."""

import math
import uuid
from collections import deque
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns.binary_columns import id_bytes
from airflow_provider_deltaforge.events.message import Messages, Rejection

Span = tuple[int, int]


@dataclass
class RequestPlan:
    """A batch, or a part of it, on its way; requests leave it when they are answered.

    Attributes:
        messages: The whole batch.
        order: The messages in the order they are sent.
        spans: Which part of ``order`` each request holds, the next one first.
        rejections: What was refused.
        bytes_max: Larger requests with more than one message are not tried.
    """

    messages: Messages
    order: "np.typing.NDArray[np.intp]"
    spans: deque[Span]
    rejections: list[Rejection] = field(default_factory=list)
    bytes_max: float = math.inf

    @property
    def next_rows(self) -> "np.typing.NDArray[np.intp]":
        """The messages of the next request."""
        start, stop = self.spans[0]
        return self.order[start:stop]

    @property
    def taken(self) -> int:
        """How many of its messages are answered for."""
        return len(self.order) - sum(stop - start for start, stop in self.spans)

    def halve(self) -> None:
        """Send the next request as two."""
        start, stop = self.spans.popleft()
        middle = (start + stop) // 2
        self.spans.extendleft([(middle, stop), (start, middle)])

    def answered(self) -> None:
        """Go on with the request after the next one."""
        self.spans.popleft()

    def refuse(self, kind: str, reason: str) -> None:
        """Set the messages of the next request aside, and go on with the one after it."""
        rows = self.messages.event_rows.take(self.next_rows).to_pylist()
        self.rejections += [Rejection(row, kind, reason) for row in rows]
        self.answered()


def steps(messages: Messages, *, in_arrays: bool, count: int = 1) -> list[list[RequestPlan]]:
    """Divide a batch into steps, one sent after the other, and each into plans, sent together.

    All messages of an order group that are in one step are in one plan, in their order.

    Args:
        messages: the batch.
        in_arrays: send the messages of one URL together, as long as their headers are the same, and
            all are with their envelope or without.
        count: how many plans a step may have; what no message may overtake is a step of its own.
    """
    rows = np.arange(len(messages))
    make = _in_arrays if in_arrays else _singly
    if count == 1:
        return [[make(messages, rows)]]
    groups = messages.groups()
    # Two batches may divide a key differently: the one is through before the other begins.
    turns = np.asarray(pc.fill_null(groups, 0)) % count
    alone = np.asarray(groups.is_null())
    of_each = np.split(rows, np.flatnonzero(alone[1:] != alone[:-1]) + 1)
    parts = [[step[turns[step] == turn] for turn in range(count)] for step in of_each]
    return [[make(messages, part) for part in step if len(part)] for step in parts]


def _singly(messages: Messages, rows: "np.typing.NDArray[np.intp]") -> RequestPlan:
    return RequestPlan(messages, rows, deque((at, at + 1) for at in range(len(rows))))


def _in_arrays(messages: Messages, rows: "np.typing.NDArray[np.intp]") -> RequestPlan:
    codes = np.asarray(messages.topics.indices)[rows]
    order = np.lexsort((codes, _spans(messages, rows, codes)))
    sorted_codes, order = codes[order], rows[order]
    starts = sorted_codes[1:] != sorted_codes[:-1]
    if messages.bare is not None:
        bare = np.asarray(messages.bare)[order]
        starts = starts | (bare[1:] != bare[:-1])
    if messages.headers is not None:
        headers = messages.headers.take(pa.array(order)).to_pylist()
        starts = starts | np.array([former != other for former, other in pairwise(headers)], bool)
    borders = [0, *(np.flatnonzero(starts) + 1).tolist(), len(order)]
    return RequestPlan(messages, order, deque(pairwise(borders)))


def _spans(
    messages: Messages, rows: "np.typing.NDArray[np.intp]", codes: "np.typing.NDArray[np.int32]"
) -> "np.typing.NDArray[np.intp]":
    """Number the spans of messages that may be grouped by URL: in each, a row has one URL."""
    column = messages.groups().take(pa.array(rows))
    alone, groups = np.asarray(column.is_null()), np.asarray(pc.fill_null(column, -1))
    by_group = np.argsort(groups, kind="stable")
    earlier, later = by_group[:-1], by_group[1:]
    elsewhere = (groups[earlier] == groups[later]) & (codes[earlier] != codes[later])
    former = np.full(len(rows), -1)
    former[later[elsewhere]] = earlier[elsewhere]
    begins = np.zeros(len(rows), np.intp)
    begins[1:] = alone[1:] != alone[:-1]
    start = 0
    for at in np.flatnonzero((former >= 0) | (begins > 0)).tolist():
        if begins[at] or former[at] >= start:
            begins[at], start = 1, at
    return np.cumsum(begins)


def array_body(messages: Messages, rows: "np.typing.NDArray[np.intp]") -> bytes:
    """Return a JSON array of the values."""
    values = pc.fill_null(_chosen(messages.values, rows), b"null")
    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return b"[%b]" % pc.binary_join(whole, b",")[0].as_buffer()


def identity(messages: Messages, rows: "np.typing.NDArray[np.intp]") -> str:
    """Return what stands for exactly these events, in the shape of their own ids."""
    ids = id_bytes(_chosen(messages.event_ids, rows))
    return str(uuid.UUID(bytes=blake2b(ids, digest_size=16).digest()))


def _chosen(column: pa.Array, rows: "np.typing.NDArray[np.intp]") -> pa.Array:
    """Return values without copying them where they lie side by side."""
    first, count = int(rows[0]), len(rows)
    is_span = int(rows[-1]) - first == count - 1 and bool((np.diff(rows) == 1).all())
    return column.slice(first, count) if is_span else column.take(pa.array(rows))
