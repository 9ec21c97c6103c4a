"""Work that goes on in threads beside what a test does."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

_JOIN_S = 60.0

Self = TypeVar("Self", bound="Background")


class Background:
    """Threads that work until the block ends: then ``_over`` is set.

    Args:
        work: what each of them does.
    """

    def __init__(self, work: Sequence[Callable[[], None]]) -> None:
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(each,), daemon=True) for each in work
        ]
        self.failures: list[BaseException] = []
        """What ended some of them before the block did."""

    def __enter__(self: Self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(_JOIN_S)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.failures.append(error)
            raise
