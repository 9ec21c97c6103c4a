"""The writer that delivers exactly once: the position lies beside the entries.

A hash holds who may write, the number of the last step and the cursor behind it. The script that
adds entries compares the first two and sets the last two, all in one step of the server. So a
writer that lost an answer asks again and learns how much of the step is held; one that was replaced
is refused; and a server that lost its memory is noticed.

A step ends in front of an entry that is refused. Only the next step meets it as its first one,
writes nothing and says so: the cursor goes past it when it is set aside, and called again without.
"""

import hashlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns.binary_columns import id_bytes
from airflow_provider_deltaforge.errors import FatalError, FencedError, RetryableError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.position_contract import SinkPosition
from airflow_provider_deltaforge.sinks.redis import entries, error_codes
from airflow_provider_deltaforge.sinks.redis.sink import RedisSink
from airflow_provider_deltaforge.sinks.redis.slots import cursor_key, tag_of
from airflow_provider_deltaforge.sinks.redis.writer import EXEC, MULTI, RedisWriter

_ANY_EVENT = bytes(16)

# KEYS: the cursor, whose writers may write, then the streams. ARGV: who writes, for whom (nothing
# where nobody claims), the number of this step, the cursor behind
# it, what stands around an event's id in a cursor inside of it, about how many entries a stream
# keeps (0: all), how many words a message has, and these: which of the streams, and the values of
# the fields. A table of them per entry would cost a quarter more.
# Whether a key is a stream is asked before anything is written; memory and disk can only refuse
# the first entry. A step ends in front of a later entry that is refused: the cursor must not pass
# it before somebody has stored it, and what was added cannot be undone. Each answer tells where the
# step has ended, also to a writer that lost the first one.
_CHECK = """
local refused = {'refused'}
for i = FIRST, #KEYS do
  local length = redis.pcall('XLEN', KEYS[i])
  if type(length) == 'table' and length['err'] then
    if not string.find(length['err'], 'WRONGTYPE') then return length end
    refused[#refused + 1] = i - FIRST
    refused[#refused + 1] = length['err']
  end
end
if #refused > 1 then return refused end
local add, most, words = redis.pcall, tonumber(ARGV[7]), tonumber(ARGV[8])
""".strip()

_ADD = """
for i = 9, #ARGV, words do
  local key, event, id, name = KEYS[ARGV[i] + FIRST], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local more = words == 5 and ARGV[i + 4] ~= '' and ARGV[i + 4]
  local answer
  if not more and most == 0 then
    answer = add('XADD', key, '*', 'event', event, 'event_id', id,
      'idempotency_key', id, 'df-key', name)
  elseif not more then
    answer = add('XADD', key, 'MAXLEN', '~', most, '*', 'event', event, 'event_id', id,
      'idempotency_key', id, 'df-key', name)
  elseif most == 0 then
    answer = add('XADD', key, '*', 'event', event, 'event_id', id,
      'idempotency_key', id, 'df-key', name, 'df-headers', more)
  else
    answer = add('XADD', key, 'MAXLEN', '~', most, '*', 'event', event, 'event_id', id,
      'idempotency_key', id, 'df-key', name, 'df-headers', more)
  end
""".strip()


def check(first: int) -> str:
    """Return what ends a script if a key is no stream, before anything is written.

    Args:
        first: which of the keys is the first stream; all from there on are streams.
    """
    return _CHECK.replace("FIRST", str(first))


def add(first: int) -> str:
    """Return what adds entries, from the ninth argument on; an answer's fate is to follow."""
    return _ADD.replace("FIRST", str(first))


WRITE = f"""
local held = redis.call('HMGET', KEYS[1], 'owner', 'step', 'cursor')
if not held[1] then return {{'lost'}} end
if held[1] ~= ARGV[1] then return {{'fenced'}} end
if ARGV[2] ~= '' and redis.call('GET', KEYS[2]) ~= ARGV[2] then return {{'fenced'}} end
local step = tonumber(held[2] or '0')
if step == tonumber(ARGV[3]) then return {{'held', held[3]}} end
if step ~= tonumber(ARGV[3]) - 1 then return {{'lost'}} end
{check(3)}
local cursor = ARGV[4]
{add(3)}
  if type(answer) == 'table' and answer['err'] then
    if i == 9 then return answer end
    cursor = ARGV[5] .. string.gsub(ARGV[i - words + 2], '-', '') .. ARGV[6]
    break
  end
end
redis.call('HSET', KEYS[1], 'step', ARGV[3], 'cursor', cursor)
return {{'written', cursor}}
""".strip()

WRITE_SHA = hashlib.sha1(WRITE.encode(), usedforsecurity=False).hexdigest()
"""How Redis names the script once it knows it."""


class RedisOnceWriter(RedisWriter):
    """Live connections of one sink; see ``ExactlyOnceWriter``."""

    has_expired = False

    def __init__(self, sink: RedisSink, pipeline: str) -> None:
        is_cluster = sink.address().kind == "cluster"
        tag = tag_of(sink.stream) if is_cluster else None
        self._key = cursor_key(pipeline, sink.id, tag)
        self._owner = ""
        self._steps: int | None = None
        self._held: bytes | None = None
        self._cursor: SinkPosition | None = None
        super().__init__(sink, pipeline)

    def recover(self) -> SinkPosition | None:
        """Shut former writers out and return what is durable; see ``ExactlyOnceWriter``."""
        self._drop()
        self._steps, self._held = None, None
        self._cursor = self._attempt(self._take_over)
        return self._cursor

    def begin(self, cursor: SinkPosition) -> None:
        """Hold a position before the first entry; see ``BeginsEmpty``."""
        if self._steps is None:
            raise FatalError(f"{self._where}: begin before recover; report this as a defect")
        deadline = time.monotonic() + self._sink.batch_timeout_secs
        self._attempt(partial(self._begin, cursor, self._steps + 1, deadline))

    def write_once(
        self, messages: Messages, before: SinkPosition, after: SinkPosition
    ) -> Sequence[Rejection]:
        """Write entries and cursor in one step, or a few; see ``ExactlyOnceWriter``."""
        if self._steps is None:
            raise FatalError(f"{self._where}: write_once before recover; report this as a defect")
        deadline = time.monotonic() + self._sink.batch_timeout_secs
        self._settle(deadline)
        _, unfit = self._fitting(messages)
        refused: list[Rejection] = [*unfit, *self._misplaced(messages)]
        first, count = self._lacking(messages), len(messages)
        if not first and self._is_inside(before):
            raise self._fenced(b"cut")
        while not refused and (first < count or self._cursor != after):
            last = next(entries.spans(messages, first), (first, first))[1]
            step = messages.slice(first, last - first)
            cursor = after if last == count else replace(before, event_id=_last_id(step))
            refused = self._attempt(partial(self._write_step, step, before, cursor, deadline))
            first = self._lacking(messages) if self._cursor != after else count
        if refused:
            self._step_back(messages, refused, before, deadline)
        return refused

    def _step_back(
        self,
        messages: Messages,
        refused: Sequence[Rejection],
        before: SinkPosition,
        deadline: float,
    ) -> None:
        """Move the cursor in front of events with a later message that was refused.

        Such an event is set aside as a whole, and nobody would find its message again. What is
        written of it stays: an entry cannot be taken back.
        """
        rows, lost = messages.event_rows, {rejection.event_row for rejection in refused}
        row = held = _last_row(messages, self._held)
        while row >= 0 and rows[row].as_py() in lost:
            row -= 1
        if row == held:
            return
        event_id = messages.event_ids[row].as_py() if row >= 0 else None
        cursor = before if event_id is None else replace(before, event_id=event_id)
        self._attempt(partial(self._begin, cursor, (self._steps or 0) + 1, deadline))
        self._held = event_id

    def _begin(self, cursor: SinkPosition, number: int, deadline: float) -> None:
        fence, guard = self._guard()
        state: list[bytes | str | int] = [self._owner, fence, number, cursor.as_text()]
        state += _around(cursor)
        head = entries.command("EVALSHA", WRITE_SHA, 2, self._key, guard, *state, 0, 1)
        answer = self._run_script(head, b"", deadline)
        self._refuse_other_kind(answer)
        if isinstance(answer, Exception):
            raise answer
        if answer[0] in {b"lost", b"fenced"}:
            raise self._fenced(answer[0])
        self._steps, self._cursor = number, cursor

    def _lacking(self, messages: Messages) -> int:
        """Return the first message that no former step wrote; called again, there may be fewer."""
        return _last_row(messages, self._held) + 1

    def _is_inside(self, before: SinkPosition) -> bool:
        """Return whether we wrote something behind ``before`` that it does not know."""
        cursor = self._cursor
        if self._held is None or cursor is None or cursor.event_id is None:
            return False
        return cursor.position == before.position and cursor.event_id != before.event_id

    def _take_over(self) -> SinkPosition | None:
        """Name ourselves the only writer: from then on the script refuses all others."""
        self._refuse_eviction()
        pipe = self._guarded(self._key)
        pipe.watches = None  # The transaction below uses it up.
        self._owner = uuid.uuid4().hex  # What we sent before is refused as well.
        load = entries.command("SCRIPT", "LOAD", WRITE)
        owner = entries.command("HSET", self._key, "owner", self._owner)
        look = entries.command("HMGET", self._key, "step", "cursor")
        answers = self._ask_on(pipe, [load, MULTI, owner, look, EXEC])
        inner = answers[-1] if isinstance(answers[-1], list) else []
        for answer in inner:
            self._refuse_other_kind(answer)
        self._raise_first([*answers, *inner])
        if not inner:  # Watched by the claim.
            raise RetryableError(f"{self._where}: its claim has changed; asking who may write")
        step, cursor = answers[-1][1]
        self._steps = int(step or 0)
        return (
            None
            if cursor is None
            else SinkPosition.from_text(cursor, f"{self._where}: {self._key}")
        )

    def _refuse_eviction(self) -> None:
        [info] = self._ask(self._key, entries.command("INFO", "memory"))
        policy = error_codes.eviction(info)
        if policy is not None:
            raise FatalError(
                f"{self._where}: maxmemory-policy {policy} may throw away streams and the position "
                "beside them; set noeviction, or leave exactly_once out"
            )

    def _refuse_other_kind(self, answer: Any) -> None:
        """Fail if the cursor's key is no hash; the script itself reports the key of a stream."""
        if isinstance(answer, Exception) and error_codes.code_of(answer) == "WRONGTYPE":
            raise FatalError(
                f"{self._where}: key {self._key!r} must hold our position, and holds something "
                "else; rename or delete it, then start again"
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

    def _write_step(
        self, step: Messages, before: SinkPosition, after: SinkPosition, deadline: float
    ) -> list[Rejection]:
        """Carry out one step, or learn that it was, up to ``after`` or to what is refused."""
        number = (self._steps or 0) + 1
        names, numbers = entries.streams(step)
        words, body = entries.arguments(step, numbers) if len(step) else (1, b"")
        fence, guard = self._guard()
        where: list[bytes | str | int] = [2 + len(names), self._key, guard, *names]
        state: list[bytes | str | int] = [self._owner, fence, number, after.as_text()]
        state += _around(before)
        state += [self._sink.max_len or 0, words]
        more = words * len(step)
        head = entries.command("EVALSHA", WRITE_SHA, *where, *state, more=more)
        answer = self._run_script(head, body, deadline)
        self._refuse_other_kind(answer)
        if isinstance(answer, Exception):
            return self._refused_first(step, answer)
        word, *rest = answer
        if word == b"refused":
            pairs = dict(zip(rest[::2], map(bytes.decode, rest[1::2]), strict=True))
            return self._refused(step, pairs, numbers.to_pylist())
        if word in {b"lost", b"fenced"}:
            raise self._fenced(word)
        self._reached(step, before, after, rest[0])
        self._steps = number
        return []

    def _reached(
        self, step: Messages, before: SinkPosition, after: SinkPosition, text: bytes
    ) -> None:
        """Note where a step has ended, as the server answers."""
        cursor = SinkPosition.from_text(text, f"{self._where}: {self._key}")
        if cursor == after:
            last = len(step) - 1
        else:
            last = _last_row(step, cursor.event_id)
            if last < 0 or cursor.position != before.position:
                raise self._fenced(b"lost")
        self._cursor = cursor
        if last >= 0:
            self._held = step.event_ids[last].as_py()

    def _guard(self) -> tuple[bytes, str]:
        """Return for whom we write, and the key that says who may."""
        return b"" if self._fence is None else self._fence.token, self._fence_keys.of(self._key)

    def _fenced(self, word: bytes) -> FencedError:
        self._steps = None
        return FencedError(f"{self._where}: {_FENCED[word]}")

    def _run_script(
        self, head: bytes, body: memoryview | bytes, deadline: float, script: str = WRITE
    ) -> Any:
        for _ in range(2):
            pipe = self._pipe(self._key)  # The one of before may be gone.
            pipe.send([head, body], 1)
            [answer] = self._answers(pipe, deadline)
            if not isinstance(answer, self._redis.exceptions.NoScriptError):
                break
            self._ask(self._key, entries.command("SCRIPT", "LOAD", script))
        return answer

    def _refused_first(self, step: Messages, answer: Exception) -> list[Rejection]:
        """Return what is refused of a step whose first entry was; nothing of it is written."""
        refusal = error_codes.refusal_of(answer)
        if refusal is None:
            raise answer
        # A stream that takes no entry takes none of the others, but each is too large by itself.
        alike = pc.equal(step.topics.indices, step.topics.indices[0])
        rows = pc.indices_nonzero(alike).to_pylist() if refusal[0] == "routing" else [0]
        return [self._rejection(step, row, *self._refusal(str(answer))) for row in rows]

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


def _last_row(messages: Messages, event_id: bytes | None) -> int:
    """Return where an event's last message is; -1 if it is not there."""
    if event_id is None:
        return -1
    same = (id_bytes(messages.event_ids) == np.frombuffer(event_id, np.uint8)).all(axis=1)
    found = np.flatnonzero(same)
    return int(found[-1]) if len(found) else -1


def _around(before: SinkPosition) -> tuple[bytes, bytes]:
    """Return what stands around an event's id in a cursor that lies behind ``before``."""
    text = replace(before, event_id=_ANY_EVENT).as_text()
    front, _, back = text.rpartition(_ANY_EVENT.hex().encode())
    return front, back


_FENCED = {
    b"cut": "it holds a part of a delivery that is cut otherwise now",
    b"fenced": "another writer has taken over this sink",
    b"lost": "the server no longer holds what it held: it lost data, or was restored",
}
