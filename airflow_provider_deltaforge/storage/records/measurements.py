"""What a driver measures beside what it counts in ``stats``: latencies, queues, clients, processes.

Nobody but the metrics reads it, so that it is stored apart from the progress: every few seconds, in
the transaction of a heartbeat. A new number is a field here, what raises it (mostly
``engine.base.measurements``), and a row in ``control.metrics``.
"""

import logging
from bisect import bisect_left
from functools import partial
from typing import Literal

from pydantic import ConfigDict, Field

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.spec.settings import Settings
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Put, Store
from airflow_provider_deltaforge.storage.records.record import Record
from airflow_provider_deltaforge.storage.records.stats import Counts, Latency

_log = logging.getLogger(__name__)

TABLES_MAX = 50
SENSING_BUCKETS_S = (0.000_001, 0.000_01, 0.000_1, 0.001, 0.01, 0.1)
OTHER_TABLES = "other"
"""Stands for every table behind the first ``TABLES_MAX``; names of tables have a dot."""


class TableLatency(Counts):
    """How long the changes of one table were on their way."""

    delivered: Latency = Field(default_factory=Latency)
    """From the commit in the source until every sink holds them."""
    read: Latency = Field(default_factory=Latency)
    """From the commit in the source until they were read and decoded."""


class SinkMeasurements(Counts):
    """What writing to one sink took."""

    latency: Latency = Field(default_factory=Latency)
    """Of writes, one for each batch, until they were durable."""
    errors: dict[str, int] = Field(default_factory=dict)
    """Writes that failed, by error class."""
    reconnects: int = 0
    """Times that it took a batch again after a failure."""
    timeouts: int = 0
    """Batches that took longer than ``sink_batch_deadline_secs``."""
    counts: dict[str, int] = Field(default_factory=dict)
    """What its client counts itself; see ``sinks.contract.CountsWork``."""
    encoding: dict[str, int] = Field(default_factory=dict)
    """What its encoding counts itself; see ``encodings.contract.EncoderRequest``."""


class SensingCounts(Counts):
    """What schema sensing did with one table's rows, or with one of its JSON columns."""

    events: int = 0
    evolutions: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    drifted: int = 0
    """Events with fields or types that the warm-up did not see, of those that were looked at."""
    latency: Latency = Field(default_factory=partial(Latency.within, SENSING_BUCKETS_S))
    """Of events that were looked at; those of one batch count as their average."""

    def measure(self, events: int, seconds: float) -> None:
        """Count that so many events together took so long."""
        slot = bisect_left(self.latency.buckets_s, seconds / events)
        self.latency.counts[slot] += events
        self.latency.sum_s += seconds


class MeasuredCounts(Counts):
    """Numbers that only rise, while drivers of one generation follow each other."""

    source_bytes: int = 0
    """Of log that was decoded, whether or not it holds changes of captured tables."""
    source_errors: dict[str, int] = Field(default_factory=dict)
    """Reads that failed, by error class."""
    schema_cache_hits: int = 0
    """Tables of decoded segments whose schema was known."""
    schema_cache_misses: int = 0
    panics: int = 0
    """Ends of a lane by an error that nobody foresaw."""
    tables: dict[str, TableLatency] = Field(default_factory=dict)
    """By full name, or ``OTHER_TABLES``."""
    stages: dict[str, dict[str, Latency]] = Field(default_factory=dict)
    """Of batches, by stage, and by what made the batch full."""
    sinks: dict[str, SinkMeasurements] = Field(default_factory=dict)
    """By id."""
    sensing: dict[str, SensingCounts] = Field(default_factory=dict)
    """By full name, ``shop.orders:metadata`` for a JSON column, or ``OTHER_TABLES``."""


class LogRetention(Settings):
    """What the source keeps of its log for a pipeline, and for how long; None: nobody knows."""

    kept_bytes: int | None = None
    """Of log that the server keeps back for our slot."""
    behind_bytes: int | None = None
    """Of log from our position to its end."""
    left_bytes: int | None = None
    """That may still be written before the server drops what we need."""
    left_s: float | None = None
    """Until the server may drop what we need, at the earliest."""
    keeps_s: float | None = None
    """For how long the server keeps its log by its settings; None: for ever, or until a size."""


class ProcessMeasurements(Settings):
    """One process of a driver."""

    rss_bytes: int
    cpu_s: float
    open_fds: int | None = None
    threads: int
    started_s: float
    """Since the epoch."""


class SinkGauges(Settings):
    """What one sink holds at the moment."""

    buffer_messages: int = 0
    """Given to its client, and not durable yet."""
    buffer_bytes: int = 0
    client: dict[str, int] = Field(default_factory=dict)
    """What its client measures itself."""


class Gauges(Settings):
    """How a driver was when it wrote this."""

    idle_s: float | None = None
    """Since the last change was read."""
    table_lag_ms: dict[str, int] = Field(default_factory=dict)
    """Age of each table's last change at its delivery."""
    channel_depth: dict[str, int] = Field(default_factory=dict)
    """What waits between two stages."""
    sensed_tables: int | None = None
    """Tables and JSON columns that have a sensed schema; None while nothing is sensed."""
    dynamic_maps: int | None = None
    """Objects in them that are maps."""
    sinks: dict[str, SinkGauges] = Field(default_factory=dict)
    processes: dict[str, ProcessMeasurements] = Field(default_factory=dict)
    """By role: ``lane`` carries the events, ``jvm`` is Spark's driver on the same machine."""
    retention: LogRetention | None = None


class Measurements(Record):
    """What the driver of the present epoch has measured, those before it included."""

    model_config = ConfigDict(extra="ignore")

    v: Literal[1] = 1
    generation: int
    version: str = ""
    """The driver's release."""
    required: list[str] = Field(default_factory=list)
    """Sinks without which the pipeline does not go on."""
    pushes: bool = False
    """Its driver sends its metrics to OpenTelemetry by itself."""
    counts: MeasuredCounts = Field(default_factory=MeasuredCounts)
    gauges: Gauges = Field(default_factory=Gauges)


def put(pipeline: str, measured: Measurements) -> Put:
    """Return the write that renews the record, for a fenced transaction."""
    return Put(names.MEASUREMENTS, pipeline, measured.model_dump_json().encode())


def measurements(store: Store, pipeline: str) -> Measurements | None:
    """Return what was measured last, or None."""
    text = store.get(names.MEASUREMENTS, pipeline)
    return None if text is None else _read(pipeline, text)


def all_measurements(store: Store) -> dict[str, Measurements]:
    """Return what was measured of every pipeline, by name."""
    found = {name: _read(name, text) for name, text in store.items(names.MEASUREMENTS)}
    return {name: measured for name, measured in found.items() if measured is not None}


def _read(pipeline: str, text: bytes) -> Measurements | None:
    try:
        return Measurements.from_stored(text, f"the measurements of pipeline {pipeline!r}")
    except FatalError as error:  # No pipeline stops for its metrics: they begin anew.
        _log.warning("passed over: %s", error)
        return None
