"""What a pipeline did, minute by minute, kept for a day.

The minute that is not over lies in the driver's progress and goes on with the next driver; one that
is over is written with a heartbeat, in its transaction. A record holds the minutes of one hour, and
records are used again in a ring, so that a pipeline's history never takes more room.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Literal

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Put, Store
from airflow_provider_deltaforge.storage.records.record import Record
from airflow_provider_deltaforge.storage.records.stats import Counts, Latency, Stats

_log = logging.getLogger(__name__)

HOURS_KEPT = 26
"""Of which one is not over, and one is about to be written over."""

_BACKWARD_MAX = 5
"""A clock that is set back by so many minutes is waited for; by more, and it is believed."""


class MinuteSample(Counts):
    """What a pipeline did within one minute."""

    minute: int
    """Since the epoch, by the driver's clock."""
    seconds: float = 0.0
    """Of this minute in which a driver worked."""
    events: int = 0
    bytes: int = 0
    errors: int = 0
    """Writes of sinks that failed."""
    dead_letters: int = 0
    """Events set aside."""
    lag_ms: int | None = None
    """At the end of the minute."""
    lag_max_ms: int | None = None
    latency: Latency = Field(default_factory=Latency)
    """Of the minute's events, from their commit in the source until every sink holds them."""
    status: str = "running"
    """The last one of the minute."""

    @model_serializer(mode="wrap")
    def _without_zeros(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        shown = {key: value for key, value in dump(self).items() if value not in (0, None)}
        if not any(self.latency.counts):
            del shown["latency"]
        return shown


class HistoryHour(Record):
    """The minutes of one hour in which a driver worked."""

    model_config = ConfigDict(extra="ignore")

    v: Literal[1] = 1
    hour: int
    """Since the epoch."""
    samples: list[MinuteSample] = Field(default_factory=list)
    """By minute."""

    def with_samples(self, more: Iterable[MinuteSample]) -> "HistoryHour":
        """Return the hour with further minutes; one that it holds already is replaced."""
        by_minute = {sample.minute: sample for sample in [*self.samples, *more]}
        return self.model_copy(update={"samples": [by_minute[key] for key in sorted(by_minute)]})


class History:
    """The history of one pipeline in a store."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._pipeline = pipeline

    def samples(self) -> list[MinuteSample]:
        """Return every minute that is kept and over, by time."""
        found = self._store.items(names.HISTORY, f"{self._pipeline}/")
        hours = [hour for _, text in found if (hour := self._read(text)) is not None]
        return [
            sample
            for hour in sorted(hours, key=lambda hour: hour.hour)
            for sample in hour.samples
            if sample.minute // 60 == hour.hour
        ]

    def puts(self, samples: Sequence[MinuteSample]) -> list[Put]:
        """Return the writes that keep minutes, for a fenced transaction.

        Raises:
            RetryableError: the store is away.
        """
        by_hour = groupby(samples, key=lambda sample: sample.minute // 60)
        return [self._put(hour, list(group)) for hour, group in by_hour]

    def _put(self, hour: int, samples: list[MinuteSample]) -> Put:
        key = f"{self._pipeline}/{hour % HOURS_KEPT:02}"
        text = self._store.get(names.HISTORY, key)
        stored = self._read(text) if text is not None else None
        if stored is None or stored.hour != hour:
            stored = HistoryHour(hour=hour)
        record = stored.with_samples(samples)
        return Put(names.HISTORY, key, record.model_dump_json().encode())

    def _read(self, text: bytes) -> HistoryHour | None:
        try:
            return HistoryHour.from_stored(text, f"the history of pipeline {self._pipeline!r}")
        except FatalError as error:  # No pipeline stops for its history: the hour begins anew.
            _log.warning("passed over: %s", error)
            return None


class HistoryRecorder:
    """Makes minutes out of what a lane reports with each heartbeat. Used by one thread at a time.

    Args:
        history: of the pipeline.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._base = Stats()
        self._open: MinuteSample | None = None
        self._over: list[MinuteSample] = []
        self._heard_s: float | None = None

    def resume(self, former: MinuteSample | None, stats: Stats) -> None:
        """Go on with a former driver's minute, and count from these numbers."""
        self._open, self._base = former, stats

    def observe(self, stats: Stats, status: str) -> MinuteSample:
        """Return the minute that is not over, with what has happened since the last call."""
        heard_s = time.monotonic()
        elapsed_s = 0.0 if self._heard_s is None else heard_s - self._heard_s
        self._heard_s = heard_s
        sample = self._at(int(time.time()) // 60).model_copy(deep=True)
        sample.seconds = min(60.0, round(sample.seconds + elapsed_s, 1))
        sample.events += stats.events - self._base.events
        sample.bytes += stats.bytes - self._base.bytes
        sample.errors += _errors(stats) - _errors(self._base)
        sample.dead_letters += _set_aside(stats) - _set_aside(self._base)
        sample.latency.add(_since(stats.latency, self._base.latency))
        sample.lag_ms, sample.status = stats.lag_ms, status
        lags = [lag for lag in (sample.lag_max_ms, stats.lag_ms) if lag is not None]
        sample.lag_max_ms = max(lags, default=None)
        self._open, self._base = sample, stats
        return sample

    def writes(self) -> list[Put]:
        """Return what keeps the minutes that are over; ``stored`` once that is done.

        Raises:
            RetryableError: the store is away.
        """
        return self._history.puts(self._over) if self._over else []

    def stored(self) -> None:
        """Forget the minutes that are durable."""
        self._over.clear()

    def _at(self, minute: int) -> MinuteSample:
        """Return the sample of a minute; another one is over then."""
        present = self._open
        if present is None:
            return MinuteSample(minute=minute)
        if present.minute - _BACKWARD_MAX <= minute <= present.minute:
            return present
        self._over.append(present)
        # More than a day, and the ring would write over itself.
        del self._over[: -60 * (HOURS_KEPT - 2)]
        return MinuteSample(minute=minute)


def _errors(stats: Stats) -> int:
    return sum(sink.retries for sink in stats.sinks.values())


def _set_aside(stats: Stats) -> int:
    return sum(series.count for series in stats.dlq.events)


def _since(latency: Latency, base: Latency) -> Latency:
    """Return what a histogram has counted since."""
    if latency.buckets_s != base.buckets_s:
        return latency
    counts = [now - before for now, before in zip(latency.counts, base.counts, strict=True)]
    return Latency(counts=counts, sum_s=latency.sum_s - base.sum_s, buckets_s=latency.buckets_s)
