"""When a driver that ended is started again: backoff inside a sliding budget.

One restarter only. ``deltaforge run`` and the stream operator decide here; Spark's own
``supervise`` stays off.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_deltaforge.errors import DeltaForgeError, FatalError, SpecError

DRAINED, SPEC, RETRYABLE, FATAL = 0, 2, 3, 4
"""Exit codes of a driver."""

RESTARTS_MAX = 20
"""How many restarts the record of a pipeline remembers, and a budget may hold."""

WAIT_MAX_S = 60.0
"""The longest wait before a restart."""

SILENCE_MAX_S = 20.0
"""How long a living process may be without a heartbeat before it counts as hung."""


def _error_classes(kind: type[DeltaForgeError]) -> frozenset[str]:
    below = (_error_classes(child) for child in kind.__subclasses__())
    return frozenset({kind.error_class}).union(*below)


HOPELESS = _error_classes(FatalError) | _error_classes(SpecError) | {"event"}
"""Error classes that no restart can cure.

Not ``internal``, an error nobody foresaw: it may be one of the moment, as when something that the
driver works with was killed.
"""


_TASK = re.compile(r"airflow:([^/]+)/([^/]+)/(.+)/(-?\d+)#(\d+)@\w+")


@dataclass(frozen=True, slots=True)
class Supervisor:
    """The Airflow task that supervises a pipeline."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: int
    try_number: int

    @classmethod
    def of(cls, owner: str | None) -> "Supervisor | None":
        """Return the task that an owner token names; None when it is no task's."""
        match = _TASK.fullmatch(owner or "")
        if match is None:
            return None
        dag_id, task_id, run_id, map_index, try_number = match.groups()
        return cls(dag_id, task_id, run_id, int(map_index), int(try_number))


class HangDetector:
    """Distinguishes a hung driver from one whose heartbeat could not be read for a moment.

    Seen without a pause for ``limit_s``; a store that was away makes one late look, not many.
    """

    def __init__(self, limit_s: float = SILENCE_MAX_S) -> None:
        self._limit_s = limit_s
        self._since: float | None = None

    def too_long(self, *, lost: bool) -> bool:
        """Note one look; return whether every look for ``limit_s`` found the driver lost."""
        if not lost:
            self._since = None
            return False
        if self._since is None:
            self._since = time.monotonic()
        return time.monotonic() - self._since >= self._limit_s


@dataclass(frozen=True, slots=True)
class RestartBudget:
    """At most ``restarts_max`` restarts within ``window_s``; waits double from ``wait_s``.

    Raises:
        ValueError: there can be no such budget.
    """

    restarts_max: int = 5
    window_s: float = 600.0
    wait_s: float = 1.0
    wait_max_s: float = WAIT_MAX_S

    def __post_init__(self) -> None:
        if not 0 <= self.restarts_max <= RESTARTS_MAX:
            raise ValueError(
                f"restarts_max must be from 0 to {RESTARTS_MAX}, got {self.restarts_max}"
            )

    def wait(self, restarted_at_ms: Sequence[int], now_ms: int) -> float | None:
        """Return the seconds to wait before the next restart, or None when the budget is spent.

        Args:
            restarted_at_ms: when earlier restarts happened, milliseconds since the epoch.
            now_ms: the present, same clock.
        """
        # One in the future was written before the clock was set back.
        recent = [
            moment for moment in restarted_at_ms if 0 <= now_ms - moment < self.window_s * 1000
        ]
        if len(recent) >= self.restarts_max:
            return None
        return float(min(self.wait_max_s, self.wait_s * 2 ** len(recent)))


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """What to do about a driver that ended.

    ``action`` is ``finished`` (it was asked to end), ``restart`` after ``wait_s``, or ``give_up``.
    """

    action: str
    reason: str
    error_class: str | None = None
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DriverExit:
    """How a driver ended: its exit code, and what it last said about itself."""

    exit_code: int | None
    error_class: str | None = None
    reason: str | None = None


def judge(
    ending: DriverExit,
    *,
    wanted: bool,
    restarted_at_ms: Sequence[int],
    now_ms: int,
    budget: RestartBudget,
) -> RestartDecision:
    """Decide about a driver that ended.

    Args:
        ending: how it ended.
        wanted: the control record still says that the pipeline is to run or be paused.
        restarted_at_ms: when this generation was restarted before.
        now_ms: milliseconds since the epoch.
        budget: how many restarts are allowed.
    """
    if not wanted:
        return RestartDecision("finished", "stopped as asked")
    reason = ending.reason or f"the driver ended with exit code {ending.exit_code}"
    hopeless = {SPEC: "spec", FATAL: "fatal"}.get(ending.exit_code or 0)
    if hopeless or ending.error_class in HOPELESS:
        return RestartDecision("give_up", reason, ending.error_class or hopeless)
    wait_s = budget.wait(restarted_at_ms, now_ms)
    if wait_s is None:
        spent = (
            f"{reason}; {budget.restarts_max} restarts within {budget.window_s:.0f} s did not help"
        )
        return RestartDecision("give_up", spent, ending.error_class or "retryable")
    return RestartDecision("restart", reason, ending.error_class, wait_s)
