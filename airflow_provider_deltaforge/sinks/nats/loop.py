"""An event loop in a thread of its own, for a client that only speaks asyncio.

Between two writes it answers the server's pings and notices a lost connection.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

Result = TypeVar("Result")

_END_S = 1.0


class EventLoopThread:
    """Runs one coroutine at a time for the thread that writes.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._running: Future[Any] | None = None
        self._given_up = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return what ``work`` returns.

        Raises:
            CancelledError: ``give_up`` was called.
        """
        with self._lock:
            if self._given_up or not self._thread.is_alive():
                work.close()
                raise CancelledError
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._running = future
        try:
            return future.result()
        finally:
            self._running = None

    def give_up(self) -> None:
        """Cancel what runs, and refuse what comes. Called from another thread."""
        with self._lock:
            self._given_up = True
            if self._running is not None:
                self._running.cancel()

    def close(self, last: Coroutine[Any, Any, object]) -> None:
        """Run ``last`` and end the thread, both within a few seconds."""
        if not self._thread.is_alive():
            last.close()
            return
        self.give_up()
        ending = asyncio.run_coroutine_threadsafe(asyncio.wait_for(last, _END_S), self._loop)
        ending.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
        self._thread.join(3 * _END_S)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=_END_S))
        self._loop.close()
