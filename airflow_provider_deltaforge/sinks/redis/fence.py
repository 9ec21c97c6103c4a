"""A key beside the streams that holds whose writers may write; each step of a writer watches it.

``WATCH`` is in force, and the key was seen to hold our claim, before the transaction of a step is
sent. So a step that arrives after somebody else has claimed the sink is not carried out, whenever
it was sent and wherever it lay in between. The key is watched again in the same breath as each
step, so that this costs no round trip of its own.
"""

from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sinks.contract import WriterClaim
from airflow_provider_deltaforge.sinks.redis import entries

_MULTI, _EXEC = entries.command("MULTI"), entries.command("EXEC")
_ATTEMPTS = 100

Ask = Callable[[Sequence[bytes]], list[Any]]
"""Sends whole commands over a connection to the server that holds the key; returns the answers."""


class RedisFence:
    """Keeps one sink's keys for one connection's thread.

    Args:
        claim: the right to write.
        where: names the sink in messages for people.
    """

    def __init__(self, claim: WriterClaim, where: str) -> None:
        self._claim = claim
        self._where = where
        self.token = claim.token.encode()

    def watch(self, key: str) -> list[bytes]:
        """Return the commands that watch a key and ask for it; they have two answers."""
        return [entries.command("WATCH", key), entries.command("GET", key)]

    def is_ours(self, answers: Sequence[Any]) -> bool:
        """Return whether, by the answers to ``watch``, we may write.

        Raises:
            redis.RedisError: the server refuses the question.
        """
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return bool(answers[1] == self.token)

    def take(self, key: str, ask: Ask, *, is_confirmed: bool = False) -> None:
        """Watch a key that holds our claim; claim it first if need be.

        Between looking who has it and writing, be it ourselves into it or entries, the state store
        is asked: a writer that was frozen there finds the key changed when it wakes up. It is asked
        also if the key is ours by then: a server that came back with older data may hold a claim
        that was replaced.

        Args:
            key: the key.
            ask: asks over one connection, the same each time.
            is_confirmed: the store was asked since this connection was opened.

        Raises:
            FencedError: a newer epoch has begun.
            RetryableError: the state store is away.
        """
        for _ in range(_ATTEMPTS):
            is_ours = self.is_ours(ask(self.watch(key)))
            if not (is_ours and is_confirmed):
                self._claim.confirm()
            if is_ours:
                return
            put = entries.command("SET", key, self.token)
            answers = ask([_MULTI, put, _EXEC])
            refused = next((answer for answer in answers if isinstance(answer, Exception)), None)
            if refused is not None:
                raise refused
        raise RetryableError(
            f"{self._where}: key {key!r} changes all the time; does another pipeline of this name, "
            "with a state store of its own, write there? Rename one"
        )


class FenceKeys:
    """The keys that say whose writers may write to a sink; on a cluster one in each slot.

    Args:
        pipeline: the pipeline's name.
        sink: the sink's id.
        slot_of: returns the slot of a stream; None outside clusters.
    """

    def __init__(self, pipeline: str, sink: str, slot_of: Callable[[str], int] | None) -> None:
        self._name = f"{pipeline}:{sink}"
        self._slot_of = slot_of
        self._tags: dict[int, str] = {}

    def of(self, stream: str) -> str:
        """Return the key that guards a stream, in its slot of a cluster."""
        if self._slot_of is None:
            return f"_deltaforge:fence:{self._name}"
        slot = self._slot_of(stream)
        if slot not in self._tags:
            self._tags[slot] = _tag_in(slot, self._slot_of)
        return f"_deltaforge:fence:{{{self._tags[slot]}}}:{self._name}"


def _tag_in(slot: int, slot_of: Callable[[str], int]) -> str:
    """Return a hash tag that lies in a slot: always the same one."""
    number = 0
    while slot_of(str(number)) != slot:
        number += 1
    return str(number)
