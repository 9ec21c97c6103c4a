"""One connection, and the answers that are still to come on it."""

import time
from collections.abc import Callable, Sequence
from typing import Any

_GLANCE_S = 0.25


class UnansweredError(Exception):
    """The server did not answer in time. The question stands, and its answer may still come."""


class RedisPipeline:
    """Sends commands and collects their answers, over several attempts if need be.

    What was sent may be carried out long after a timeout. Sent again on another connection it
    could come behind what was sent later; so the answer is waited for on this one.

    Args:
        connection: the driver's, connected.
        given_up: asked while waiting; True ends it.

    Attributes:
        stream: one that the server at the other end holds.
        watches: the key that the server watches for the next transaction, and that was ours then.
        confirmed: keys for which the state store was asked behind the first look at them here.
        is_step: whether what was sent last is a step, and not only a question.
    """

    stream = ""
    watches: str | None = None
    is_step = False

    def __init__(self, connection: Any, given_up: Callable[[], bool]) -> None:
        import redis

        self._redis: Any = redis
        self._connection = connection
        self._given_up = given_up
        self.confirmed: set[str] = set()
        self._awaited = 0
        self._answers: list[Any] = []

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is still to come."""
        return self._awaited > 0

    @property
    def is_broken(self) -> bool:
        """Whether the server hung up since the last answer, as it does with idle clients.

        Only to be asked while no answer is awaited.
        """
        try:
            return bool(self._connection.can_read(0))
        except (self._redis.RedisError, OSError):
            return True

    def send(self, pieces: Sequence[Any], answers: int) -> None:
        """Send whole commands; ``answers`` is how many they have.

        Raises:
            redis.RedisError: nothing that ends with these pieces was carried out.
        """
        self._answers, self._awaited = [], answers
        try:
            self._connection.send_packed_command(pieces, check_health=False)
        except BaseException:
            self._awaited = 0
            raise

    def answers(self, deadline: float) -> list[Any]:
        """Return all answers to what was sent; errors of single commands are among them.

        Raises:
            UnansweredError: not all came until ``deadline``; ask again.
            redis.RedisError: the connection is broken, or the server takes nothing at all.
        """
        read, found = self._connection.read_response, self._answers
        while len(found) < self._awaited:
            try:
                found.append(read(timeout=_GLANCE_S, disconnect_on_error=False))
            except self._redis.TimeoutError:
                if self._given_up() or time.monotonic() >= deadline:
                    raise UnansweredError from None
            except self._redis.ResponseError as error:
                found.append(error)
            except BaseException:
                self._awaited = 0
                self._connection.disconnect()
                raise
        self._awaited, self._answers = 0, []
        return found
