"""The writer: entries in order, each step of them as a whole.

A step is a transaction: the server carries out all of it or, when it has no memory or is no master,
nothing. Were the commands only sent one behind the other, the server could refuse one and take the
next, and a retry would put the older entry behind the newer one.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    RetryableError,
    WrongServerError,
)
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import WriterClaim
from airflow_provider_deltaforge.sinks.redis import entries, error_codes
from airflow_provider_deltaforge.sinks.redis.fence import FenceKeys, RedisFence
from airflow_provider_deltaforge.sinks.redis.servers import (
    RedisPipeline,
    UnansweredError,
    secrets,
    servers,
)
from airflow_provider_deltaforge.sinks.redis.sink import RedisSink
from airflow_provider_deltaforge.telemetry.listener import other_server

log = logging.getLogger(__name__)

MULTI, EXEC = entries.command("MULTI"), entries.command("EXEC")
_VALUE_BYTES_MAX = 512 * 2**20
_LARGE = 2**20
"""The server's own limit on one part of a command cannot be set lower."""
_NO_VALUE = "a message without a value says nothing in a stream"
_TOO_LARGE = (
    "its {part} has {size} bytes, more than the server takes ({most}); raise proto-max-bulk-len"
)


@dataclass
class RedisBatch:
    """One batch, from its first step to its last answer.

    Attributes:
        messages: the whole batch.
        steps: what is not yet confirmed, in order.
        rejections: what the server refused so far.
        marks: of which one was left behind the last step that is confirmed, in its transaction, or
            behind one whose answer was lost; None where none can be.
        lost: a mark that the server had lost when the next step was written.
    """

    messages: Messages
    steps: list[Messages]
    rejections: list[Rejection] = field(default_factory=list)
    marks: list[str] | None = field(default_factory=list)
    lost: str | None = None
    _ahead: tuple[Messages, memoryview] | None = None

    def commands(self, number: int, max_len: int | None) -> memoryview:
        """Return the commands of a step, kept until they are asked for again; empty behind all."""
        if number >= len(self.steps):
            return memoryview(b"")
        step = self.steps[number]
        if self._ahead is None or self._ahead[0] is not step:
            self._ahead = (step, entries.commands(step, max_len))
        return self._ahead[1]


def in_steps(messages: Messages, slot: Callable[[str], int]) -> RedisBatch:
    """Return a batch as steps that the server carries out as a whole.

    Args:
        messages: the batch.
        slot: returns the slot of a stream; one step writes to one slot only.
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
    for number in found[np.argsort(first)]:
        yield messages.take(pa.array(np.flatnonzero(of_each == number)))


def _steps(messages: Messages) -> Iterator[Messages]:
    for first, last in entries.spans(messages):
        yield messages.slice(first, last - first)


class RedisWriter:
    """Live connections of one sink. Used by one thread, but for ``abandon``."""

    def __init__(self, sink: RedisSink, pipeline: str) -> None:
        import redis

        self._redis: Any = redis
        self._sink = sink
        address = sink.address()
        self._is_cluster = address.kind == "cluster"
        self._where = f"redis sink {sink.id}: {address.shown}"
        self._secrets = secrets(sink)
        self._servers = servers(sink, pipeline)
        self._pipes: dict[int, RedisPipeline] = {}
        self._batch: RedisBatch | None = None
        self._value_bytes_max: int | None = None
        self._abandoned = False
        self._fence: RedisFence | None = None
        self.row_mark: str | None = None
        slot_of = self._servers.slot if self._is_cluster else None
        self._fence_keys = FenceKeys(pipeline, sink.id, slot_of)
        self._look(pipeline)

    def write(self, messages: Messages) -> Sequence[Rejection]:
        """Write in order; see ``SinkWriter``."""
        self.row_mark = None
        if not len(messages):
            return []
        deadline = time.monotonic() + self._sink.batch_timeout_secs
        current = self._take_up(messages, deadline)
        while current.steps:
            self._attempt(lambda: self._step(current, deadline))
            current.steps.pop(0)
        self._batch = None
        if current.marks:
            self.row_mark = current.lost or current.marks[-1]
        return sorted(current.rejections, key=lambda rejection: rejection.event_row)

    def fence(self, claim: WriterClaim) -> None:
        """Make the server refuse every step that comes after a newer claim; see ``FencedWriter``.

        On a cluster each slot is claimed with the first step into it.
        """
        self._fence = RedisFence(claim, self._where)
        if not self._is_cluster:
            self._attempt(lambda: self._guarded(""))
        claim.forget(claim.former())
        claim.enter("redis")

    def abandon(self) -> None:
        """Give up the write under way within a moment; see ``Interruptible``."""
        self._abandoned = True

    def close(self) -> None:
        """Drop the connections, and what is not answered."""
        self._drop()

    def _take_up(self, messages: Messages, deadline: float) -> RedisBatch:
        if self._batch is not None and self._batch.messages.same_as(messages):
            return self._batch
        self._settle(deadline)
        fitting, rejections = self._fitting(messages)
        self._batch = in_steps(fitting, self._servers.slot)
        self._batch.messages = messages
        self._batch.rejections += rejections
        return self._batch

    def _settle(self, deadline: float) -> None:
        """Wait for what was asked before: it must not be carried out behind what comes now."""
        for pipe in list(self._pipes.values()):
            if pipe.is_waiting:
                self._attempt(partial(self._answers, pipe, deadline))

    def _fitting(self, messages: Messages) -> tuple[Messages, list[Rejection]]:
        """Set aside what the protocol cannot carry: the server would hang up on it."""
        sizes, most = entries.part_sizes(messages), _LARGE
        if max(int(each.max(initial=0)) for each in sizes.values()) > _LARGE:
            sizes["header list"], most = entries.header_sizes(messages), self._limit()
        longest = np.maximum.reduce(list(sizes.values()))
        wrong = (longest > most) | (sizes["value"] < 0)
        if not wrong.any():
            return messages, []
        rejections = []
        for row in np.flatnonzero(wrong).tolist():
            kind, why = "invalid_record", _NO_VALUE
            if sizes["value"][row] >= 0:
                part = max(sizes, key=lambda name: int(sizes[name][row]))
                kind, size = "message_too_large", longest[row]
                why = _TOO_LARGE.format(part=part, size=size, most=most)
            rejections.append(self._rejection(messages, row, kind, f"{self._where}: {why}"))
        return messages.take(pa.array(np.flatnonzero(~wrong))), rejections

    def _limit(self) -> int:
        """Return how long a part may be; servers that do not answer have the usual limit."""
        if self._value_bytes_max is None:
            asked = entries.command("CONFIG", "GET", "proto-max-bulk-len")
            [answer] = self._attempt(lambda: self._ask("", asked))
            known = isinstance(answer, list) and len(answer) > 1
            self._value_bytes_max = int(answer[1]) if known else _VALUE_BYTES_MAX
        return self._value_bytes_max

    def _step(self, current: RedisBatch, deadline: float) -> None:
        """Write the next step of a batch, or wait on for its answers."""
        step = current.steps[0]
        name = step.topics[0].as_py()
        pipe = self._pipe(name)
        if pipe.is_waiting and not pipe.is_step:
            self._answers(pipe, deadline)  # Somebody asked, and did not wait for them.
        if not pipe.is_waiting:
            pipe = self._guarded(name)
            more = [] if self._fence is None else self._fence.watch(self._fence_keys.of(name))
            body, mark = current.commands(0, self._sink.max_len), self._mark(current)
            count = len(step) + len(mark) + 2 + len(more)
            pipe.send([MULTI, body, *mark, EXEC, *more], count)
            pipe.is_step, pipe.watches = True, None  # Until its answer says who may write.
            current.commands(1, self._sink.max_len)  # While the server is at work.
        answers = self._answers(pipe, deadline)
        if self._fence is not None:
            answers, watched = answers[:-2], answers[-2:]
            pipe.watches = self._fence_keys.of(name) if self._fence.is_ours(watched) else None
        *queued, outcome = answers
        if outcome is None:
            pipe.watches = None
            pipe.confirmed.discard(self._fence_keys.of(name))
            raise RetryableError(f"{self._where}: its claim has changed; asking who may write")
        if not isinstance(outcome, list):
            # The first refusal is the reason; that nothing was carried out only follows from it.
            refusals = (reply for reply in [*queued, outcome] if isinstance(reply, Exception))
            raise next(refusals)
        self._confirm_mark(current, outcome[len(step) :])
        current.rejections += [
            self._rejection(step, row, *self._refusal(str(answer)))
            for row, answer in enumerate(outcome[: len(step)])
            if isinstance(answer, Exception)
        ]

    def _mark(self, current: RedisBatch) -> list[bytes]:
        """Return what leaves a mark behind the rows of the next step, in the same transaction."""
        del current
        return []

    def _confirm_mark(self, current: RedisBatch, answers: Sequence[Any]) -> None:
        """Take note that a step is durable with its mark, and whether the former one was lost."""
        self._raise_first(answers)
        if current.marks and answers:
            *former, last = current.marks
            if former and not answers[0]:
                current.lost = former[0]
            current.marks = [last]

    def _guarded(self, stream: str) -> RedisPipeline:
        """Return the pipe to a stream whose server refuses what comes after a newer claim."""
        pipe = self._pipe(stream)
        key = self._fence_keys.of(stream)
        if self._fence is not None and pipe.watches != key:
            pipe.watches = None
            # All on this connection: another one would watch nothing.
            ask = partial(self._ask_on, pipe)
            self._fence.take(key, ask, is_confirmed=key in pipe.confirmed)
            pipe.confirmed.add(key)
            pipe.watches = key
        return pipe

    def _refusal(self, answer: str) -> tuple[str, str]:
        """Return the kind and the reason of a rejection; ``{name!r}`` stands for the stream."""
        kind, advice = error_codes.refusal_of(answer) or ("refused", "see the server's log")
        return kind, f"{self._where}: stream {{name!r}}: {answer}; {advice}"

    def _rejection(self, messages: Messages, row: int, kind: str, reason: str) -> Rejection:
        text = reason.replace("{name!r}", repr(messages.topics[row].as_py()))
        return Rejection(messages.event_rows[row].as_py(), kind, text)

    def _answers(self, pipe: RedisPipeline, deadline: float) -> list[Any]:
        patience = min(deadline, time.monotonic() + self._sink.send_timeout_secs)
        try:
            return pipe.answers(patience)
        except UnansweredError:
            if self._abandoned:
                raise RetryableError(f"{self._where}: asked to end before an answer") from None
            late = (
                f"the batch is not written after {self._sink.batch_timeout_secs} s"
                if patience == deadline
                else f"no answer after {self._sink.send_timeout_secs} s"
            )
            raise RetryableError(f"{self._where}: {late}; {self._prospect(pipe)}") from None

    def _prospect(self, pipe: RedisPipeline) -> str:
        """Return how it goes on after a late answer; a server that was replaced is left."""
        moved = False
        with suppress(self._redis.RedisError, self._redis.RedisClusterException, OSError):
            moved = self._servers.moved(pipe.stream)
        if not moved:
            return "check that the server is not busy or stopped (we go on waiting for this answer)"
        # Whatever the old server may still carry out is not what the new one holds.
        self._drop()
        return "another server has taken its place; we go on there"

    def _ask(self, stream: str, *commands: bytes) -> list[Any]:
        return self._ask_on(self._pipe(stream), commands)

    def _ask_on(self, pipe: RedisPipeline, commands: Sequence[bytes]) -> list[Any]:
        """Return the answers to whole commands on one connection; no step is under way there."""
        if pipe.is_waiting:
            self._answers(pipe, math.inf)  # To what somebody asked, and did not wait for.
        pipe.is_step = False
        pipe.send(commands, len(commands))
        return self._answers(pipe, math.inf)

    def _pipe(self, stream: str) -> RedisPipeline:
        pipes = self._pipes.values()
        if not any(pipe.is_waiting for pipe in pipes) and any(pipe.is_broken for pipe in pipes):
            self._drop()
        connection = None if self._abandoned else self._servers.connection(stream)
        if self._abandoned:  # Perhaps while it connected.
            raise RetryableError(f"{self._where}: asked to end before this was sent")
        if id(connection) not in self._pipes:
            self._pipes[id(connection)] = RedisPipeline(connection, lambda: self._abandoned)
        pipe = self._pipes[id(connection)]
        pipe.stream = stream
        return pipe

    def _attempt(self, call: Callable[[], Any]) -> Any:
        """Call the server, and turn its errors into those that the engine acts on."""
        try:
            return call()
        except DeltaForgeError:
            raise
        except (self._redis.RedisError, self._redis.RedisClusterException, OSError) as error:
            self._drop()
            failure = error_codes.to_error(
                error, self._where, self._secrets, is_cluster=self._is_cluster
            )
            raise self._named(failure, error) from error

    def _named(self, failure: DeltaForgeError, error: BaseException) -> DeltaForgeError:
        """Return an error, or a clearer one where something else answers in Redis's place."""
        if error_codes.code_of(error) or not isinstance(failure, (AccessError, RetryableError)):
            return failure
        found = other_server("Redis", self._sink.address().hosts)
        if found is None:
            return failure
        return WrongServerError(f"redis sink {self._sink.id}: uri: {found}; correct 'uri'")

    def _try_out(self) -> None:
        info, *answers = self._ask("", entries.command("INFO", "memory"), MULTI, EXEC)
        self._raise_first(answers)
        policy = error_codes.eviction(info)
        if policy is not None:
            log.warning(
                "redis may throw away whole streams when memory is short; set noeviction",
                extra={"sink": self._sink.id, "maxmemory_policy": policy},
            )

    def _raise_first(self, answers: Sequence[Any]) -> None:
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer

    def _drop(self) -> None:
        self._pipes.clear()
        self._servers.forget()

    def reach(self) -> None:
        """Find out whether the server answers and we may write; see ``Reachable``."""
        self._attempt(self._try_out)

    def _look(self, pipeline: str) -> None:
        try:
            self.reach()
        except RetryableError as error:
            log.warning(
                "redis is away; the first write goes on trying",
                extra={"pipeline": pipeline, "sink": self._sink.id, "error": str(error)},
            )
