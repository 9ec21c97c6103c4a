"""Whether a driver still speaks, by the clock of the process that listens.

A heartbeat is a token that changes: a counter, with the driver's own time beside it. Two machines'
clocks are never compared. This process remembers when it first saw the latest token of each
driver; as long as the driver speaks, the token is another one at the next look. What is remembered
belongs to the process, so that looks through different connections to one store add up.
"""

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

_KEPT_MAX = 4096


@dataclass(frozen=True, slots=True)
class LastHeard:
    """What this process has heard of one driver.

    Attributes:
        silence_s: for how long it knows that nothing new came.
        is_sure: it has heard the driver speak, or shares its machine's clock; else it has only
            found what may have been said long ago.
    """

    silence_s: float = 0.0
    is_sure: bool = False


@dataclass(slots=True)
class _Latest:
    token: Hashable
    since_s: float
    changed: bool = False


class Heartbeats:
    """Remembers tokens. Every method may be called from any thread.

    Args:
        clock: seconds that only ever grow, whatever happens to the time of day.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        """Asked for the present."""
        self._latest: dict[tuple[str, Hashable], _Latest] = {}
        self._lock = threading.Lock()

    def now(self) -> float:
        """Return the present; ask before the token is read that ``hear`` is given."""
        return self.clock()

    def hear(self, where: str, driver: Hashable, token: Hashable, asked_s: float) -> LastHeard:
        """Note the token of a driver that was read after ``asked_s``.

        Args:
            where: what was asked; see ``forget``.
            driver: the process that speaks there.
            token: another one for each heartbeat.
            asked_s: from ``now``.
        """
        key = (where, driver)
        with self._lock:
            known = self._latest.pop(key, None)
            if known is None or known.token != token:
                # Noted after it was read and judged by when it was asked for: a process that was
                # frozen in between must not take its own absence for the driver's.
                known = _Latest(token, self.clock(), known is not None)
            self._latest[key] = known  # The latest to be asked for are kept.
            while len(self._latest) > _KEPT_MAX:
                del self._latest[next(iter(self._latest))]
            return LastHeard(max(0.0, asked_s - known.since_s), is_sure=known.changed)

    def forget(self, where: str) -> None:
        """Begin anew with all that speak there: it was away, so that nothing could be heard."""
        with self._lock:
            for key in [key for key in self._latest if key[0] == where]:
                del self._latest[key]


HEARTBEATS = Heartbeats()
"""What this process has heard."""
