"""What a lane knows of its sinks."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from airflow_provider_deltaforge.engine.base.last_error import LastError
from airflow_provider_deltaforge.engine.base.required_sinks import RequiredSinks
from airflow_provider_deltaforge.errors import PositionLostError, RetryableError
from airflow_provider_deltaforge.storage.records.stats import SinkProgress

SinkStatus = Literal["running", "behind", "catching_up", "given_up"]
"""``running``: it takes every batch with the others; else the lane goes on without it."""


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


def held_up(
    sinks: Mapping[str, SinkStats], policy: RequiredSinks | None
) -> tuple[str, LastError] | None:
    """Return the sink that a lane waits for, and why, if the lane cannot go on without it.

    Needed ones come first, and what a person has to mend before what may end by itself. Where all
    that go with the lane are well, and do not suffice, those that were given up are missing.

    Args:
        sinks: by id.
        policy: which ones are waited for; None: all.
    """
    going = {name: state.last_error for name, state in sinks.items() if state.status == "running"}
    errors = {name: error for name, error in sorted(going.items()) if error is not None}
    required = frozenset() if policy is None else policy.required
    if policy is not None and policy.holds(going.keys() - errors.keys()):
        return None
    if not errors:
        missing = sorted(name for name, state in sinks.items() if state.status == "given_up")
        if policy is None or not missing:
            return None
        since_ms = max(sinks[name].status_since_ms or 0 for name in missing)
        lost = LastError(_NEEDED, PositionLostError.error_class, since_ms)
        return f"sink {', '.join(missing)}", lost
    passing = RetryableError.error_class
    name = min(errors, key=lambda n: (n not in required, errors[n].error_class == passing))
    return f"sink {name}", errors[name]
