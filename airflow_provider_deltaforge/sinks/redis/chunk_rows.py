"""The writer of snapshots for a sink that delivers exactly once: a chunk's rows in one step.

A hash beside the position holds a field for each chunk. The script that adds the entries sets it
in the same step, and adds nothing if it is there. The mark behind the rows (``RowMarks``) is set in
that step, too: a server that loses the rows lacks it, whenever that was.
"""

import hashlib
import secrets
import time
from collections.abc import Sequence
from functools import partial

from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.chunk_rows import ChunkMark, WrittenChunk
from airflow_provider_deltaforge.sinks.redis import entries
from airflow_provider_deltaforge.sinks.redis.once import RedisOnceWriter, add, check
from airflow_provider_deltaforge.sinks.redis.row_marks import rows_key
from airflow_provider_deltaforge.sinks.redis.writer import RedisBatch

_KEPT_S = 30 * 86_400
"""A snapshot that did not go on for so long repeats the rows of a chunk that was under way."""

# KEYS: the hash, whose writers may write, the marks of rows, then the streams. ARGV: for whom
# (nothing where nobody claims), the chunk, the text of its mark, for how long the hash is kept,
# then two that are unused and what the script of positions has from the seventh on. An entry behind
# the first one is refused by a stream only that has given its last possible id.
WRITE_CHUNK = f"""
if ARGV[1] ~= '' and redis.call('GET', KEYS[2]) ~= ARGV[1] then return {{'fenced'}} end
local held = redis.call('HGET', KEYS[1], ARGV[2])
if held then
  redis.call('SADD', KEYS[3], ARGV[2])
  return {{'held', held}}
end
{check(4)}
{add(4)}
  if type(answer) == 'table' and answer['err'] then
    if i == 9 then return answer end
    return {{'torn', answer['err']}}
  end
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
redis.call('SADD', KEYS[3], ARGV[2])
return {{'written'}}
""".strip()

_SHA = hashlib.sha1(WRITE_CHUNK.encode(), usedforsecurity=False).hexdigest()


class RedisChunkWriter(RedisOnceWriter):
    """Live connections of one sink; see ``ChunkWriter``."""

    def write_chunk(self, messages: Messages, mark: ChunkMark) -> WrittenChunk:
        """Write a chunk's entries and its mark in one step; see ``ChunkWriter``."""
        self.row_mark = None
        if not len(messages) and mark.is_first:
            return WrittenChunk(mark.text)
        deadline = time.monotonic() + self._sink.batch_timeout_secs
        self._settle(deadline)
        unfit: Sequence[Rejection] = ()
        if len(messages):
            unfit = [*self._fitting(messages)[1], *self._misplaced(messages)]
        if unfit:
            return WrittenChunk(None, unfit)
        write = partial(self._write_chunk, messages, mark, deadline)
        written: WrittenChunk = self._attempt(write)
        return written

    def _write_chunk(self, messages: Messages, mark: ChunkMark, deadline: float) -> WrittenChunk:
        pipe = self._guarded(self._key)
        token, guard = self._guard()
        names, numbers = entries.streams(messages)
        words, body = entries.arguments(messages, numbers) if len(messages) else (1, b"")
        keys: list[bytes | str | int] = [3 + len(names), f"{self._key}:chunks", guard]
        keys += [rows_key(self._key), *names]
        state: list[bytes | str | int] = [token, mark.name, mark.text, _KEPT_S, "", ""]
        state += [self._sink.max_len or 0, words]
        more = words * len(messages)
        head = entries.command("EVALSHA", _SHA, *keys, *state, more=more)
        answer = self._run_script(head, body, deadline, WRITE_CHUNK)
        self._refuse_other_kind(answer)
        if isinstance(answer, Exception):
            return WrittenChunk(None, self._refused_first(messages, answer))
        word, *rest = answer
        if word == b"refused":
            pairs = dict(zip(rest[::2], map(bytes.decode, rest[1::2]), strict=True))
            return WrittenChunk(None, self._refused(messages, pairs, numbers.to_pylist()))
        if word == b"fenced":
            pipe.watches = None
            pipe.confirmed.discard(guard)
            raise RetryableError(f"{self._where}: its claim has changed; asking who may write")
        if word == b"torn":
            why = rest[0].decode(errors="replace")
            raise FatalError(f"{self._where}: a part of a chunk was refused: {why}")
        self.row_mark = mark.name
        return WrittenChunk(rest[0].decode() if rest else mark.text)

    def _mark(self, current: RedisBatch) -> list[bytes]:
        """Leave a mark with each step of rows that are not written as a whole chunk.

        It takes the place of the step's before, whose answer was perhaps lost; where there is none
        to be removed, the server has lost that step.
        """
        slot, key = self._servers.slot, rows_key(self._key)
        if slot(current.steps[0].topics[0].as_py()) != slot(self._key):
            current.marks = None
        if current.marks is None:
            return []
        former = entries.command("SREM", key, *(current.marks or ("",)))
        current.marks.append(secrets.token_hex(6))
        return [former, entries.command("SADD", key, current.marks[-1])]
