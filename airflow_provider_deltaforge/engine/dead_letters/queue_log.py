"""What the log says of a dead-letter queue: what was set aside, what was lost, how full it is."""

import logging
import time

_SAY_S = 10.0
_WARN, _ALARM = 0.8, 0.95

_log = logging.getLogger(__name__)


class QueueLog:
    """Gathers what happens, and says it now and then. Used by one thread.

    Args:
        pipeline: whose queue it is.
        overflow_policy: why something is lost.
    """

    def __init__(self, pipeline: str, overflow_policy: str) -> None:
        self._pipeline, self._overflow_policy = pipeline, overflow_policy
        self._stored = self._lost = 0
        self._said_at = self._level = 0.0

    def count(self, *, stored: int = 0, lost: int = 0) -> None:
        """Take note of entries."""
        self._stored += stored
        self._lost += lost

    def say(self) -> None:
        """Log what was not logged yet."""
        self._said_at = time.monotonic()
        stored, lost = self._stored, self._lost
        self._stored = self._lost = 0
        if stored:
            _log.warning(
                "pipeline %s: events set aside: %s; see `deltaforge dlq list %s`",
                self._pipeline,
                stored,
                self._pipeline,
            )
        if lost:
            _log.error(
                "pipeline %s: the dead-letter queue is full; events lost: %s (%s)",
                self._pipeline,
                lost,
                self._overflow_policy,
            )

    def say_now_and_then(self) -> None:
        """Log it, unless something was logged a moment ago."""
        if time.monotonic() - self._said_at >= _SAY_S:
            self.say()

    def fills(self, ratio: float) -> None:
        """Warn of a queue that fills, at each level once."""
        level = _ALARM if ratio >= _ALARM else _WARN if ratio >= _WARN else 0.0
        if level > self._level:
            _log.log(
                logging.ERROR if level == _ALARM else logging.WARNING,
                "pipeline %s: the dead-letter queue is %s%% full",
                self._pipeline,
                int(ratio * 100),
            )
        self._level = level
