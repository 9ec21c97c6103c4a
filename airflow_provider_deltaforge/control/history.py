"""Rate, lag and latency of a pipeline over the last day, as points of a curve."""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.history import HOURS_KEPT, History, MinuteSample
from airflow_provider_deltaforge.storage.records.stats import Latency

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
_EPOCH = re.compile(r"\d{1,11}", re.ASCII)
_STEPS_S = (60, 300, 900, 3600)
_POINTS = 360
"""As many as a curve needs; a step that was asked for may make more of them."""
_KEPT_S = (HOURS_KEPT - 2) * 3600


@dataclass(frozen=True, slots=True)
class HistoryRange:
    """A part of a history; seconds, those since the epoch being whole steps."""

    since_s: int
    until_s: int
    step_s: int

    @classmethod
    def of(cls, since: str, step: str, now_s: float | None = None) -> "HistoryRange":
        """Check what a person wrote.

        Args:
            since: how long ago (``6h``, ``30m``, ``1d``), a time in ISO 8601, UTC if it names no
                zone, or seconds since the epoch. More than a day ago, nothing is kept.
            step: between two points, whole minutes (``60s``, ``5m``); empty: as fits the range.
            now_s: seconds since the epoch; None: the present.

        Raises:
            SpecError: one of the two is nothing of that kind.
        """
        now_s = time.time() if now_s is None else now_s
        since_s = max(epoch_seconds(since, now_s), now_s - _KEPT_S)
        if since_s > now_s:
            raise SpecError(f"since: {since!r} is still to come; write how long ago, such as 6h")
        step_s = _step_s(step) if step else _fitting_step_s(now_s - since_s)
        first = int(since_s // step_s) * step_s
        return cls(first, (int(now_s // step_s) + 1) * step_s, step_s)


def history(store: Store, name: str, asked: HistoryRange) -> dict[str, Any]:
    """Return what a pipeline did, point by point.

    Every step of the range has a point; while no driver worked its numbers are None.

    Raises:
        SpecError: there is no such pipeline.
        RetryableError: the store is away.
    """
    progress = existing(store, name).progress()
    samples = {sample.minute: sample for sample in History(store, name).samples()}
    if progress is not None and progress.minute is not None:
        samples[progress.minute.minute] = progress.minute
    by_step: dict[int, list[MinuteSample]] = {}
    for minute in sorted(samples):
        at_s = minute * 60
        if asked.since_s <= at_s < asked.until_s:
            by_step.setdefault(at_s - at_s % asked.step_s, []).append(samples[minute])
    steps = range(asked.since_s, asked.until_s, asked.step_s)
    return {
        "pipeline": name,
        "since": _timestamp(asked.since_s),
        "until": _timestamp(asked.until_s),
        "step_s": asked.step_s,
        "points": [_point(at_s, by_step.get(at_s, ())) for at_s in steps],
    }


def _point(at_s: int, samples: Iterable[MinuteSample]) -> dict[str, Any]:
    joined = list(samples)
    latency = Latency()
    for sample in joined:
        latency.add(sample.latency)
    seconds = sum(sample.seconds for sample in joined)
    events = sum(sample.events for sample in joined)
    nbytes = sum(sample.bytes for sample in joined)
    lags = [sample.lag_max_ms for sample in joined if sample.lag_max_ms is not None]
    last = joined[-1] if joined else None
    return {
        "at": _timestamp(at_s),
        "status": last.status if last is not None else None,
        "events": events if joined else None,
        "events_per_s": _rate(events, seconds),
        "bytes_per_s": _rate(nbytes, seconds),
        "lag_ms": last.lag_ms if last is not None else None,
        "lag_max_ms": max(lags, default=None),
        "latency_p50_ms": _quantile_ms(latency, 0.5),
        "latency_p95_ms": _quantile_ms(latency, 0.95),
        "latency_p99_ms": _quantile_ms(latency, 0.99),
        "errors": sum(sample.errors for sample in joined) if joined else None,
        "dead_letters": sum(sample.dead_letters for sample in joined) if joined else None,
    }


def _rate(count: int, seconds: float) -> float | None:
    return round(count / seconds, 3) if seconds else None


def _quantile_ms(latency: Latency, share: float) -> float | None:
    """Return a quantile, inside its bucket by proportion; above the last bound, that bound."""
    wanted = share * sum(latency.counts)
    if not wanted:
        return None
    below, lower_s = 0, 0.0
    for count, upper_s in zip(latency.counts, latency.buckets_s, strict=False):
        if count and below + count >= wanted:
            return round(1000 * (lower_s + (upper_s - lower_s) * (wanted - below) / count), 3)
        below, lower_s = below + count, upper_s
    return round(1000 * lower_s, 3)


def epoch_seconds(text: str, now_s: float) -> float:
    """Return the time that a person means, in seconds since the epoch; see ``HistoryRange.of``.

    Raises:
        SpecError: it is no time.
    """
    if (duration := _DURATION.fullmatch(text)) is not None:
        return now_s - int(duration[1]) * _UNITS_S[duration[2]]
    if _EPOCH.fullmatch(text):
        return float(text)
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=timezone.utc)
        return moment.timestamp()
    except (ValueError, OverflowError):
        raise SpecError(
            f"since: {text!r} is no time; write how long ago (6h, 30m), a time such as "
            "2026-05-01T12:00:00Z, or seconds since the epoch"
        ) from None


def _step_s(text: str) -> int:
    duration = _DURATION.fullmatch(text)
    seconds = int(duration[1]) * _UNITS_S[duration[2]] if duration is not None else 0
    if seconds == 0 or seconds % 60 or seconds > _KEPT_S:
        raise SpecError(f"step: {text!r} is not made of whole minutes; write 60s, 5m or 1h")
    return seconds


def _fitting_step_s(range_s: float) -> int:
    return next(step for step in _STEPS_S if range_s <= step * _POINTS or step == _STEPS_S[-1])


def _timestamp(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, timezone.utc).isoformat().replace("+00:00", "Z")
