"""The threads in which requests are answered: of their own, and never waited for without end."""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, TypeVar

from airflow_provider_deltaforge.api.errors import ApiError

T = TypeVar("T")


class RequestThreads:
    """So many requests are answered at once; others wait for a while, and are turned away.

    A state store that hangs takes these threads, and none of the server that the API is mounted in.

    Args:
        count: of threads.
        wait_s: how long a request waits for one of them.
    """

    def __init__(self, count: int = 40, wait_s: float = 10.0) -> None:
        self._count, self._wait_s = count, wait_s
        self._limiters: tuple[Any, Any] | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """Return what a call returns that may block.

        Raises:
            ApiError: no thread was free in time.
        """
        import anyio.to_thread

        if self._limiters is None:
            self._limiters = anyio.CapacityLimiter(self._count), anyio.CapacityLimiter(math.inf)
        free, unlimited = self._limiters
        borrower = object()
        try:
            with anyio.fail_after(self._wait_s):
                await free.acquire_on_behalf_of(borrower)
        except TimeoutError as error:
            message = (
                f"{self._count} requests are being answered, and none was done within "
                f"{self._wait_s:.0f} s: the state store hangs, perhaps; ask again later"
            )
            raise ApiError(503, "BUSY", message) from error
        try:
            return await anyio.to_thread.run_sync(call, limiter=unlimited)
        finally:
            free.release_on_behalf_of(borrower)

    def answer(self, router: Any) -> Any:
        """Return a router whose routes are answered in these threads."""
        for route in router.routes:
            route.endpoint = self._in_thread(route.endpoint)
        return router

    def _in_thread(self, endpoint: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(endpoint):
            return endpoint

        @functools.wraps(endpoint)
        async def answer(**arguments: Any) -> Any:
            return await self.run(functools.partial(endpoint, **arguments))

        return answer
