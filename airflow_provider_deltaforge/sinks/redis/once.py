"""The writer that delivers exactly once: the position lies beside the entries.

A hash holds who may write, the number of the last step, the cursor behind it and what the step
refused. The script that adds entries compares the first two and sets the last three, all in one
step of the server. So a writer that lost an answer asks again and learns that the step is held, and
without which entries; one that was replaced is refused; and a server that lost its memory is
noticed.
"""

import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.errors import FatalError, FencedError
from airflow_provider_deltaforge.events.binary_columns import id_bytes
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import Cursor
from airflow_provider_deltaforge.sinks.redis import entries, replies, script
from airflow_provider_deltaforge.sinks.redis.sink import RedisSink
from airflow_provider_deltaforge.sinks.redis.slots import cursor_key, tag_of
from airflow_provider_deltaforge.sinks.redis.work import stretch
from airflow_provider_deltaforge.sinks.redis.writer import EXEC, MULTI, RedisWriter


class OnceWriter(RedisWriter):
    """Live connections of one sink; see ``ExactlyOnceWriter``."""

    def __init__(self, sink: RedisSink, pipeline: str) -> None:
        is_cluster = sink.address().kind == "cluster"
        tag = tag_of(sink.stream) if is_cluster else None
        self._key = cursor_key(pipeline, sink.id, tag)
        self._owner = ""
        self._steps: int | None = None
        self._held: bytes | None = None
        self._cursor: Cursor | None = None
        super().__init__(sink, pipeline)

    def recover(self) -> Cursor | None:
        """Shut former writers out and return what is durable; see ``ExactlyOnceWriter``."""
        self._drop()
        self._steps, self._held = None, None
        self._cursor = self._attempt(self._take_over)
        return self._cursor

    def write_once(self, messages: Messages, before: Cursor, after: Cursor) -> Sequence[Rejection]:
        """Write entries and cursor in one step, or a few; see ``ExactlyOnceWriter``."""
        if self._steps is None:
            raise FatalError(f"{self._where}: write_once before recover; report this as a defect")
        deadline = time.monotonic() + self._sink.batch_timeout_secs
        self._settle(deadline)
        _, unfit = self._fitting(messages)
        refused: list[Rejection] = [*unfit, *self._misplaced(messages)]
        first, count = self._lacking(messages), len(messages)
        while not refused and (first < count or self._cursor != after):
            last = next(entries.spans(messages, first), (first, first))[1]
            step = stretch(messages, first, last)
            cursor = after if last == count else Cursor(before.position, _last_id(step))
            refused = self._attempt(partial(self._write_step, step, cursor, deadline))
            first = last
        return refused

    def _lacking(self, messages: Messages) -> int:
        """Return the first message that no former step wrote; called again, there may be fewer."""
        if self._held is None:
            return 0
        held = np.frombuffer(self._held, np.uint8)
        found = np.flatnonzero((id_bytes(messages.event_ids) == held).all(axis=1))
        return int(found[-1]) + 1 if len(found) else 0

    def _take_over(self) -> Cursor | None:
        """Name ourselves the only writer: from then on the script refuses all others."""
        self._refuse_eviction()
        self._owner = uuid.uuid4().hex  # What we sent before is refused as well.
        load = entries.command("SCRIPT", "LOAD", script.WRITE)
        owner = entries.command("HSET", self._key, "owner", self._owner)
        look = entries.command("HMGET", self._key, "step", "cursor")
        answers = self._ask(self._key, load, MULTI, owner, look, EXEC)
        self._raise_first([*answers, *(answers[-1] if isinstance(answers[-1], list) else [])])
        step, cursor = answers[-1][1]
        self._steps = int(step or 0)
        return None if cursor is None else Cursor.from_text(cursor, f"{self._where}: {self._key}")

    def _refuse_eviction(self) -> None:
        [told] = self._ask(self._key, entries.command("INFO", "memory"))
        policy = replies.eviction(told)
        if policy is not None:
            raise FatalError(
                f"{self._where}: maxmemory-policy {policy} may throw away streams and the position "
                "beside them; set noeviction, or leave exactly_once out"
            )

    def _misplaced(self, messages: Messages) -> list[Rejection]:
        """Refuse streams that lie in another slot of a cluster than the cursor."""
        names = messages.topics.dictionary.to_pylist()
        slot = self._servers.slot
        wrong = [code for code, name in enumerate(names) if slot(name) != slot(self._key)]
        if not wrong:
            return []
        is_wrong = pc.is_in(messages.topics.indices, pa.array(wrong, pa.int32()))
        rows = pc.indices_nonzero(is_wrong).to_pylist()
        reason = (
            f"{self._where}: stream {{name!r}} lies in another hash slot than {self._key!r}; "
            "with exactly_once every stream needs the same hash tag"
        )
        return [self._rejection(messages, row, "routing", reason) for row in rows]

    def _write_step(self, step: Messages, cursor: Cursor, deadline: float) -> list[Rejection]:
        """Carry out one step, or learn that it was."""
        number = (self._steps or 0) + 1
        names, numbers = entries.streams(step)
        words, body = entries.arguments(step, numbers) if len(step) else (1, b"")
        where: list[bytes | str | int] = [1 + len(names), self._key, *names]
        state: list[bytes | str | int] = [self._owner, number, cursor.as_text()]
        state += [self._sink.max_len or 0, words]
        more = words * len(step)
        head = entries.command("EVALSHA", script.WRITE_SHA, *where, *state, more=more)
        answer = self._told(head, body, deadline)
        if isinstance(answer, Exception):
            meant = replies.refusal_of(answer)
            if meant is None:
                raise answer
            of_each = numbers.to_pylist()
            return self._refused(step, {of_each[0]: str(answer)}, of_each)
        word, *rest = answer
        if word in {b"lost", b"fenced"}:
            self._steps = None
            raise FencedError(f"{self._where}: {_FENCED[word]}")
        pairs = dict(zip(rest[::2], map(bytes.decode, rest[1::2]), strict=True))
        if word == b"refused":
            return self._refused(step, pairs, numbers.to_pylist())
        self._steps, self._cursor = number, cursor
        written = [row for row in range(len(step)) if row not in pairs]
        if written:
            self._held = step.event_ids[written[-1]].as_py()
        return self._refused(step, pairs, range(len(step)))

    def _told(self, head: bytes, body: memoryview | bytes, deadline: float) -> Any:
        line = self._line(self._key)
        for _ in range(2):
            line.send([head, body], 1)
            [answer] = self._answers(line, deadline)
            if not isinstance(answer, self._redis.exceptions.NoScriptError):
                break
            self._ask(self._key, entries.command("SCRIPT", "LOAD", script.WRITE))
        return answer

    def _refused(
        self, step: Messages, why: dict[int, str], of_each: Sequence[int]
    ) -> list[Rejection]:
        """Return a rejection for each message whose number in ``of_each`` has a reason."""
        return [
            self._rejection(step, row, *self._refusal(why[number]))
            for row, number in enumerate(of_each)
            if number in why
        ]


def _last_id(step: Messages) -> bytes:
    found: bytes = step.event_ids[len(step) - 1].as_py()
    return found


_FENCED = {
    b"fenced": "another writer has taken over this sink",
    b"lost": "the server no longer holds what it held: it lost data, or was restored",
}
