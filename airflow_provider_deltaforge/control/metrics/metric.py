"""What a metric is: its name, and how its values are read from a pipeline's status.

Only what a driver reported is exported: a metric that always says zero is a lie.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from airflow_provider_deltaforge.control.status import PipelineStatus
from airflow_provider_deltaforge.storage.records.measurements import (
    OTHER_TABLES,
    TABLES_MAX,
    Gauges,
    MeasuredCounts,
    Measurements,
)
from airflow_provider_deltaforge.storage.records.stats import Latency, Sizes, TableCounts
from airflow_provider_deltaforge.storage.records.verifications import VerificationSummary

PREFIX = "deltaforge_"
OF_ALL = ("pipeline", "tenant")
"""The labels that every metric of a pipeline begins with."""

Value = float | Latency | Sizes | None
Sample = tuple[Sequence[str], Value]
"""The values of further labels, and a number or histogram; None is left out."""


@dataclass(frozen=True)
class Observed:
    """One pipeline, as its driver and the state store show it.

    Attributes:
        status: its status.
        measured: what its driver measures beside; None before the first driver.
        verified: what the last verification found; None before the first.
    """

    status: PipelineStatus
    measured: Measurements | None = None
    verified: VerificationSummary | None = None

    @cached_property
    def counts(self) -> MeasuredCounts:
        """What its drivers have counted."""
        return self.measured.counts if self.measured is not None else MeasuredCounts()

    @cached_property
    def gauges(self) -> Gauges:
        """How its driver is; nothing of one that is gone."""
        lives = self.measured is not None and self.status.alive
        return self.measured.gauges if lives and self.measured is not None else Gauges()

    @cached_property
    def tables(self) -> dict[str, TableCounts]:
        """Events of the first tables by name, and of all others together."""
        shown: dict[str, TableCounts] = {}
        for number, (name, counts) in enumerate(self.status.tables.items()):
            if number < TABLES_MAX:
                shown[name] = counts
            else:
                shown.setdefault(OTHER_TABLES, TableCounts()).add(counts)
        return shown


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric of pipelines.

    Attributes:
        name: without prefix; a counter's is shown with ``_total`` behind it.
        kind: of the metric.
        description: one line.
        labels: those behind ``pipeline`` and ``tenant``.
        samples: its values of one pipeline.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    description: str
    labels: tuple[str, ...]
    samples: Callable[[Observed], Iterable[Sample]]

    @property
    def full_name(self) -> str:
        """The name as Prometheus shows it."""
        return f"{PREFIX}{self.name}{'_total' * (self.kind == 'counter')}"

    def family(self, observed: Iterable[Observed]) -> Metric:
        """Return the metric with its values of every pipeline."""
        labels = [*OF_ALL, *self.labels]
        of_kind = {
            "counter": CounterMetricFamily,
            "gauge": GaugeMetricFamily,
            "histogram": HistogramMetricFamily,
        }
        family = of_kind[self.kind](f"{PREFIX}{self.name}", self.description, labels=labels)
        for pipeline in observed:
            names = [pipeline.status.name, pipeline.status.tenant]
            for more, value in self.samples(pipeline):
                if isinstance(value, Latency | Sizes):
                    family.add_metric([*names, *more], *_buckets(value))
                elif value is not None:
                    family.add_metric([*names, *more], value)
        return family

    def lines(self, observed: Iterable[Observed]) -> Iterator[str]:
        """Yield the metric in Prometheus' text format; nothing without a value.

        A scrape of many pipelines has some hundred thousand lines: through families each costs
        several times as much.
        """
        found = [line for pipeline in observed for line in self._lines(pipeline)]
        if found:
            text = self.description.replace("\\", "\\\\").replace("\n", "\\n")
            yield f"# HELP {self.full_name} {text}\n# TYPE {self.full_name} {self.kind}\n"
            yield from found

    def _lines(self, observed: Observed) -> Iterator[str]:
        status, name = observed.status, self.full_name
        names = (*OF_ALL, *self.labels)
        for more, value in self.samples(observed):
            values = (status.name, status.tenant, *more)
            labels = ",".join(
                f'{label}="{_escaped(text)}"' for label, text in zip(names, values, strict=True)
            )
            if isinstance(value, Latency | Sizes):
                buckets, total = _buckets(value)
                for bound, count in buckets:
                    yield f'{name}_bucket{{{labels},le="{bound}"}} {count}\n'
                yield f"{name}_count{{{labels}}} {buckets[-1][1]}\n"
                yield f"{name}_sum{{{labels}}} {total}\n"
            elif value is not None:
                yield f"{name}{{{labels}}} {float(value)}\n"


def counter(name: str, description: str, value: Callable[[Observed], float | None]) -> MetricRow:
    """Return a metric that only rises, with one value of each pipeline."""
    return MetricRow(name, "counter", description, (), lambda observed: [((), value(observed))])


def gauge(name: str, description: str, value: Callable[[Observed], float | None]) -> MetricRow:
    """Return a metric with one value of each pipeline."""
    return MetricRow(name, "gauge", description, (), lambda observed: [((), value(observed))])


def seconds(ms: int | None) -> float | None:
    """Return milliseconds as seconds."""
    return None if ms is None else ms / 1000


def _escaped(text: str) -> str:
    if "\\" in text or "\n" in text or '"' in text:
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return text


def _buckets(found: Latency | Sizes) -> tuple[list[tuple[str, float]], float]:
    if isinstance(found, Latency):
        bounds, total = [*map(str, found.buckets_s)], found.sum_s
    else:
        bounds, total = [*map(str, found.buckets)], float(found.sum)
    return list(zip([*bounds, "+Inf"], accumulate(found.counts), strict=True)), total


def filled(rows: Iterable[MetricRow], observed: Sequence[Observed]) -> Iterator[Metric]:
    """Yield each metric with its values; one without any is left out."""
    for row in rows:
        family = row.family(observed)
        if family.samples:
            yield family
