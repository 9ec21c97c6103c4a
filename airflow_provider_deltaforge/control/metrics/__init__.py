"""The metrics of a state store's pipelines, whoever started their drivers.

A new metric is a row in one of the modules here; ``docs/reference/metrics.md`` is made of them.
"""

import os
import platform
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from airflow_provider_deltaforge import __version__
from airflow_provider_deltaforge.control.metrics import (
    drift,
    pipelines,
    processors,
    sensing,
    sinks,
    sources,
    verification,
)
from airflow_provider_deltaforge.control.metrics.metric import PREFIX, MetricRow, Observed, filled
from airflow_provider_deltaforge.control.status import PipelineStatus
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.measurements import all_measurements, measurements
from airflow_provider_deltaforge.storage.records.verifications import Verifications

__all__ = [
    "OF_STORE",
    "PREFIX",
    "ROWS",
    "MetricRow",
    "Observed",
    "exposition",
    "families",
    "observe",
    "without_pushing",
]

ROWS: tuple[MetricRow, ...] = (
    *pipelines.ROWS,
    *sources.ROWS,
    *sinks.ROWS,
    *processors.ROWS,
    *sensing.ROWS,
    *drift.ROWS,
    *verification.ROWS,
)
"""Every metric of pipelines."""

OF_STORE = (
    ("build_info", "gauge", "Always 1.", ("version", "commit", "build_date", "python")),
    ("pipelines", "counter", "Drivers started for the pipelines there are, also again.", ()),
)
"""The metrics without a pipeline: name, kind, description, labels."""


def observe(store: Store, found: Sequence[PipelineStatus]) -> list[Observed]:
    """Return pipelines of a store with what their drivers measure.

    Raises:
        RetryableError: the store is away.
    """
    if len(found) == 1:
        name = found[0].name
        return [Observed(found[0], measurements(store, name), Verifications(store, name).summary())]
    measured = all_measurements(store) if found else {}
    return [
        Observed(
            present,
            measured.get(present.name),
            Verifications(store, present.name).summary(),
        )
        for present in found
    ]


def without_pushing(observed: Sequence[Observed]) -> list[Observed]:
    """Return the pipelines whose driver does not send its metrics to OpenTelemetry by itself."""
    return [
        each
        for each in observed
        if each.measured is None or not (each.measured.pushes and each.status.alive)
    ]


def families(observed: Sequence[Observed]) -> Iterator[Metric]:
    """Yield every metric that has values."""
    yield from _of_store(observed)
    yield from filled(ROWS, observed)


def exposition(observed: Sequence[Observed]) -> bytes:
    """Return every metric that has values, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Collector(list(_of_store(observed))))
    text: bytes = generate_latest(registry)
    return text + "".join(line for row in ROWS for line in row.lines(observed)).encode()


def _of_store(observed: Sequence[Observed]) -> Iterator[Metric]:
    (_, _, description, labels), (_, _, starts, _) = OF_STORE
    build = GaugeMetricFamily(f"{PREFIX}build_info", description, labels=labels)
    # Whoever builds an image knows these two.
    commit, date = (os.environ.get(f"DELTAFORGE_BUILD_{name}", "") for name in ("COMMIT", "DATE"))
    build.add_metric([__version__, commit, date, platform.python_version()], 1)
    yield build
    count = sum(each.status.generation + each.status.restarts_total for each in observed)
    yield CounterMetricFamily(f"{PREFIX}pipelines", starts, value=count)


class _Collector:
    def __init__(self, found: Sequence[Metric]) -> None:
        self._found = found

    def collect(self) -> Sequence[Metric]:
        """Return the families, as prometheus_client asks."""
        return self._found
