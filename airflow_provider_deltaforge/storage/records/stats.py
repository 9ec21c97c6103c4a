"""What a lane counts: stored with its heartbeat, and read by status, page, CLI and metrics.

A new number is a field here and what raises it, mostly in ``engine.base.lane_stats``. Records are
copied whole, into ``status --json`` and ``/readyz``, too, unless ``control.status`` names it in
``_NOT_SHOWN``. It is shown where a line chooses it: ``control.metrics`` (``/metrics``),
``page/overview.js`` (the page), ``cli.views`` (``status``).
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from airflow_provider_deltaforge.spec.settings import Settings

LATENCY_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

EVENTS_BUCKETS = (1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 100_000)
BYTES_BUCKETS = tuple(4**power for power in range(4, 14))  # 256 bytes to 64 MiB.


class Counts(Settings):
    """Numbers that only rise; each is 0 where nothing was counted yet.

    A number that a later release counts is passed over.
    """

    model_config = ConfigDict(extra="ignore", frozen=False)

    def add(self, other: "Counts") -> None:
        """Add what was counted elsewhere, number by number."""
        for name in type(self).model_fields:
            setattr(self, name, _sum(getattr(self, name), getattr(other, name)))


class Latency(Counts):
    """A histogram of seconds."""

    buckets_s: list[float] = Field(default_factory=lambda: list(LATENCY_BUCKETS_S))
    """Upper bounds; one bucket more has none."""
    counts: list[int] = Field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS_S) + 1))
    sum_s: float = 0.0

    @classmethod
    def within(cls, buckets_s: Sequence[float]) -> "Latency":
        """Return an empty histogram."""
        return cls(buckets_s=list(buckets_s), counts=[0] * (len(buckets_s) + 1))

    def add(self, other: Counts) -> None:
        """Add another histogram; nothing is known of another release's buckets."""
        if isinstance(other, Latency) and other.buckets_s == self.buckets_s:
            self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
            self.sum_s += other.sum_s


class Sizes(Counts):
    """A histogram of whole numbers."""

    buckets: list[int]
    """Upper bounds; one bucket more has none."""
    counts: list[int]
    sum: int = 0

    @classmethod
    def within(cls, buckets: Sequence[int]) -> "Sizes":
        """Return an empty histogram."""
        return cls(buckets=list(buckets), counts=[0] * (len(buckets) + 1))

    def note(self, size: int) -> None:
        """Count one size. Its owner keeps two threads from using a histogram at once."""
        self.counts[bisect_left(self.buckets, size)] += 1
        self.sum += size

    def add(self, other: Counts) -> None:
        """Add another histogram; nothing is known of another release's buckets."""
        if isinstance(other, Sizes) and other.buckets == self.buckets:
            self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
            self.sum += other.sum


class TableCounts(Counts):
    """Change events of one table."""

    events: dict[str, int] = Field(default_factory=dict)
    """By operation; ``r`` is the snapshot."""
    durable: int = 0
    """Those that ``position`` covers, and those of finished chunks of copies: in every sink that is
    not behind, and not delivered again."""


class ProcessorCounts(Counts):
    """What one processor did."""

    events_in: int = 0
    events_out: int = 0
    errors: int = 0
    """Events refused, and calls that failed."""
    counts: dict[str, int] = Field(default_factory=dict)
    """What it counts itself, by names that it chooses."""
    latency: Latency = Field(default_factory=Latency)
    """Of calls, one for each batch."""


class DeadLetterSeries(Counts):
    """Events set aside for one reason at one place."""

    sink: str
    processor: str
    error_kind: str
    count: int


class DeadLetterCounts(Counts):
    """What became of events that were refused."""

    events: list[DeadLetterSeries] = Field(default_factory=list)
    """Those that are durable in the queue, by who refused them and why."""
    evicted: int = 0
    rejected: int = 0
    expired: int = 0
    replayed: int = 0
    write_failures: int = 0
    max_entries: int | None = None
    """What the queue may hold; None where the pipeline has none."""
    entries: int | None = None
    """What it holds; in a status only, since not the driver alone empties it."""

    @model_serializer(mode="wrap")
    def _without_unknown(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if value is not None}


class DataDriftCounts(Counts):
    """Where rows differ from what the catalog says of their tables."""

    batches: int = 0
    """In which any did."""
    tables: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Events of tables of which any did, by full name and drift type."""


SinkWord = Literal["starting", "running", "blocked", "behind", "catching_up", "given_up", "failed"]
"""``starting``: its first position is not durable yet. ``behind``, ``catching_up`` and
``given_up``: the pipeline goes on without it."""

PipelineWord = Literal["paused", "stopped", "lost"]
"""Those of the whole pipeline, which a status shows for its sinks as well."""


class SinkProgress(Settings):
    """How one sink is doing."""

    model_config = ConfigDict(frozen=False)

    status: SinkWord | PipelineWord = "running"
    since_ms: int | None = None
    reason: str | None = None
    error_class: str | None = None
    position: dict[str, Any] | None = None
    checkpoint_ms: int | None = None
    lag_ms: int | None = None
    """How long ago the oldest event was committed that it lacks; of a sink that is behind."""
    behind_s: float | None = None
    """For how long it has been caught up since it fell behind: pauses do not count."""
    events: int = 0
    bytes: int = 0
    batches: int = 0
    retries: int = 0

    def counted(self) -> dict[str, int]:
        """Return the fields that a successor goes on counting from."""
        judged = {"status", "since_ms", "reason", "error_class", "lag_ms", "behind_s"}
        return self.model_dump(exclude=judged | {"position", "checkpoint_ms"})


class ArchiveProgress(Settings):
    """How the archive of the log is doing."""

    model_config = ConfigDict(frozen=False)

    position: dict[str, Any] | None = None
    """Up to where it holds the log."""
    written_ms: int | None = None
    """When something was written last."""
    rows: int = 0
    bytes: int = 0
    files: int = 0
    holes: int = 0
    """Stretches of the log that it lacks."""
    lag_ms: int | None = None
    """How long ago the oldest change was committed that waits to be written."""
    since_ms: int | None = None
    reason: str | None = None
    """Why it cannot be written."""


class Stats(Settings):
    """What a lane has counted, its predecessors included, and how far it is."""

    model_config = ConfigDict(frozen=False)

    position: dict[str, Any] | None = None
    """What every sink holds but those that are behind."""
    lag_ms: int | None = None
    """Age of the last event at its delivery."""
    events: int = 0
    bytes: int = 0
    batches: int = 0
    sinks: dict[str, SinkProgress] = Field(default_factory=dict)
    """By id."""
    tables: dict[str, TableCounts] = Field(default_factory=dict)
    """By full name."""
    transaction_splits: int = 0
    source_reconnects: int = 0
    last_commit_ms: int | None = None
    """When the last event was committed in the source."""
    latency: Latency = Field(default_factory=Latency)
    """Of events, from their commit in the source until every sink holds them."""
    checkpoints: int = 0
    batch_events: Sizes = Field(default_factory=partial(Sizes.within, EVENTS_BUCKETS))
    """Of batches that every sink has taken."""
    batch_bytes: Sizes = Field(default_factory=partial(Sizes.within, BYTES_BUCKETS))
    processors: dict[str, ProcessorCounts] = Field(default_factory=dict)
    """By id."""
    dlq: DeadLetterCounts = Field(default_factory=DeadLetterCounts)
    data_drift: DataDriftCounts = Field(default_factory=DataDriftCounts)
    archive: ArchiveProgress | None = None
    """None where the pipeline has none."""
    has_run: bool = False
    """Its driver has delivered, or could have, since it opened the log."""
    has_ended: bool = False
    """Its lane has said how it ended: everything that it counted is here."""
    count_gaps: int = 0
    """How many lanes were killed before they could say so, of every generation: what they delivered
    since their last heartbeat is counted nowhere."""

    def fields(self) -> dict[str, Any]:
        """Return the fields of this record alone, for another one that holds them, too."""
        return {name: getattr(self, name) for name in Stats.model_fields}

    def counted(self) -> dict[str, Any]:
        """Return the fields that a successor goes on counting from."""
        fields = self.fields()
        del fields["position"], fields["lag_ms"], fields["data_drift"]
        return fields


def count_gaps(former: Stats | None) -> dict[str, Any]:
    """Return the fields that say what a successor cannot know of what was counted before it.

    Args:
        former: what was stored last; None: nothing.
    """
    if former is None:
        return {"count_gaps": 0, "has_ended": True}
    return {"count_gaps": former.count_gaps + (not former.has_ended), "has_ended": True}


def _sum(counted: Any, more: Any) -> Any:
    if isinstance(counted, Counts):
        counted.add(more)
    elif isinstance(counted, dict):
        for key, value in more.items():
            counted[key] = _sum(counted[key], value) if key in counted else value
    elif isinstance(counted, int | float) and isinstance(more, int | float):
        return counted + more
    return counted
