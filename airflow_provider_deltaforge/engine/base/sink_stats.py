"""What a lane knows of its sinks."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from airflow_provider_deltaforge.engine.base.last_error import LastError
from airflow_provider_deltaforge.engine.base.required_sinks import RequiredSinks
from airflow_provider_deltaforge.errors import PositionLostError, RetryableError
from airflow_provider_deltaforge.storage.records.stats import SinkProgress

SinkStatus = Literal["running", "behind", "catching_up", "given_up"]
"""``running``: it takes every batch with the others; else the lane goes on without it."""


_MOMENT_S = 2.0
"""Between two batches, a sink that is caught up may lack the newer one for so long."""

_CATCHES_UP = "behind, and commit_policy waits until {} caught up"
_NEEDED = "given up, but commit_policy needs it; `deltaforge sinks resume` lets it go on"


@dataclass(slots=True)
class SinkStats:
    """What a lane knows of one sink."""

    counted: SinkProgress = field(default_factory=SinkProgress)
    """Its numbers and its position; how it stands is judged by ``report``."""
    last_error: LastError | None = None
    status: SinkStatus = "running"
    status_since_ms: int | None = None
    lacks_ms: int | None = None
    """When the oldest event was committed that a sink lacks which is behind."""
    rewind: str | None = None
    """What of the log it is given again, in words."""
    former_s: float = 0.0
    """For how long former lanes have caught it up since it fell behind."""
    caught_up_since_s: float | None = None
    """Since when this lane does, by the monotonic clock."""

    @property
    def behind_s(self) -> float:
        """For how long lanes have caught it up since it fell behind."""
        since_s = self.caught_up_since_s
        return self.former_s + (0.0 if since_s is None else time.monotonic() - since_s)

    def joins(self) -> None:
        """Note that it goes with the others."""
        self.status_since_ms = self.last_error = self.lacks_ms = self.caught_up_since_s = None
        self.former_s = 0.0

    def report(self, *, begins: bool) -> SinkProgress:
        """Return a copy of its numbers, with how it stands.

        Args:
            begins: where the stream begins is not durable yet.
        """
        report = self.counted.model_copy()
        if self.status == "running" and self.last_error is None:
            report.status = "starting" if begins else "running"
            return report
        report.status = "blocked" if self.status == "running" else self.status
        if self.last_error is not None:
            report.since_ms = self.last_error.since_ms
            report.reason = self.last_error.reason
            report.error_class = self.last_error.error_class
        if self.status != "running":
            report.since_ms = self.status_since_ms
            report.reason = report.reason or self.rewind
        if self.status in ("behind", "catching_up"):
            report.behind_s = round(self.behind_s, 3)
        if self.lacks_ms is not None:
            report.lag_ms = max(0, int(time.time() * 1000) - self.lacks_ms)
        return report


class CatchUpWait:
    """A batch that every sink of the lane has taken, and that needs sinks which are behind.

    Written by the delivery thread, read by any.
    """

    def __init__(self) -> None:
        self._begun: tuple[int, float] | None = None
        """By the clock, in ms, and monotonic."""

    def goes_on(self) -> None:
        """Note that the lane waits."""
        self._begun = self._begun or (int(time.time() * 1000), time.monotonic())

    def ends(self) -> None:
        """Note that it does not, or not any more."""
        self._begun = None

    @property
    def since_ms(self) -> int | None:
        """Since when the lane waits; None if it does not, or only for a moment."""
        since_ms, since_s = self._begun or (None, 0.0)
        return since_ms if time.monotonic() - since_s >= _MOMENT_S else None


def held_up(
    sinks: Mapping[str, SinkStats], policy: RequiredSinks | None, waits_since_ms: int | None
) -> tuple[str, LastError] | None:
    """Return the sink that a lane waits for, and why, if the lane cannot go on without it.

    Needed ones come first, and what a person has to mend before what may end by itself. Where all
    that go with the lane are well, and do not suffice, others are missing: those that are behind,
    or, if they would not do either, those that were given up.

    Args:
        sinks: by id.
        policy: which ones are waited for; None: all.
        waits_since_ms: since when the lane waits for sinks that are behind; None: it goes on with
            what they hold.
    """
    going = {name: state.last_error for name, state in sinks.items() if state.status == "running"}
    errors = {name: error for name, error in sorted(going.items()) if error is not None}
    required = frozenset() if policy is None else policy.required
    if policy is not None and policy.holds(going.keys() - errors.keys()):
        return None
    if not errors:
        missing = sorted(name for name, state in sinks.items() if state.status == "given_up")
        behind = sorted(sinks.keys() - going.keys() - set(missing))
        if policy is not None and behind and policy.holds([*going, *behind]):
            return None if waits_since_ms is None else _catches_up(sinks, behind, waits_since_ms)
        if policy is None or not missing:
            return None
        since_ms = max(sinks[name].status_since_ms or 0 for name in missing)
        lost = LastError(_NEEDED, PositionLostError.error_class, since_ms)
        return f"sink {', '.join(missing)}", lost
    passing = RetryableError.error_class
    name = min(errors, key=lambda n: (n not in required, errors[n].error_class == passing))
    return f"sink {name}", errors[name]


def _catches_up(
    sinks: Mapping[str, SinkStats], behind: Sequence[str], since_ms: int
) -> tuple[str, LastError]:
    """Return sinks that a lane waits for while they are behind, with what keeps them from more."""
    errors = {name: sinks[name].last_error for name in behind}
    why = "; ".join(f"{name}: {error.reason}" for name, error in errors.items() if error)
    reason = _CATCHES_UP.format("it has" if len(behind) == 1 else "enough of them have")
    reason = f"{reason} ({why})" if why else reason
    return f"sink {', '.join(behind)}", LastError(reason, RetryableError.error_class, since_ms)
