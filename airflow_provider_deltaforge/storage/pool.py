"""Open connections that nobody uses at the moment."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

C = TypeVar("C")

_inherited: list[Any] = []
"""Connections of a parent process; kept, because to close one here would disturb the parent."""


class Pool(Generic[C]):
    """Hands each user a connection of their own and keeps a few for the next.

    Args:
        connect: opens a connection.
        disconnect: closes one.
        idle_max: how many unused connections stay open.
        is_usable: asked before an unused connection is lent; one that is not is closed.
    """

    def __init__(
        self,
        connect: Callable[[], C],
        disconnect: Callable[[C], None],
        idle_max: int = 4,
        is_usable: Callable[[C], bool] = lambda _: True,
    ) -> None:
        self._connect = connect
        self._disconnect = disconnect
        self._is_usable = is_usable
        self._idle_max = idle_max
        self._idle: list[C] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @contextmanager
    def connection(self) -> Iterator[C]:
        """Lend a connection; one whose block raised is closed, never lent again."""
        taken = self._take()
        try:
            yield taken
        except BaseException:
            self._disconnect(taken)
            raise
        self._give_back(taken)

    def drain(self) -> None:
        """Close every unused connection."""
        self._leave_parents_alone()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            self._disconnect(connection)

    def _take(self) -> C:
        self._leave_parents_alone()
        while (unused := self._pop()) is not None:
            if self._is_usable(unused):
                return unused
            self._disconnect(unused)
        return self._connect()

    def _pop(self) -> C | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _give_back(self, connection: C) -> None:
        with self._lock:
            if len(self._idle) < self._idle_max:
                self._idle.append(connection)
                return
        self._disconnect(connection)

    def _leave_parents_alone(self) -> None:
        if self._pid == os.getpid():
            return
        # A lock that was held at the fork stays held in the child for ever: take a new one.
        self._lock = threading.Lock()
        _inherited.extend(self._idle)
        self._idle = []
        self._pid = os.getpid()
