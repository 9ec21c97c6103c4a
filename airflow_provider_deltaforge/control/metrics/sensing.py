"""Metrics of schema sensing. JSON columns are labelled like tables, ``shop.orders:metadata``."""

from collections.abc import Callable, Iterator

from airflow_provider_deltaforge.control.metrics.metric import (
    MetricRow,
    Observed,
    Sample,
    Value,
    counter,
    gauge,
)
from airflow_provider_deltaforge.storage.records.measurements import SensingCounts


def _of_tables(value: Callable[[SensingCounts], Value]) -> Callable[[Observed], Iterator[Sample]]:
    def samples(observed: Observed) -> Iterator[Sample]:
        for table, counts in observed.counts.sensing.items():
            yield (table,), value(counts)

    return samples


def _evolutions(observed: Observed) -> float | None:
    found = observed.counts.sensing.values()
    return sum(counts.evolutions for counts in found) if found else None


def _of_table(name: str, description: str, value: Callable[[SensingCounts], Value]) -> MetricRow:
    return MetricRow(name, "counter", description, ("table",), _of_tables(value))


_HITS = "Events looked at whose structure was known."
_MISSES = "Events looked at whose structure was new, or not kept."

ROWS: tuple[MetricRow, ...] = (
    counter("pipeline_evolutions", "Sensed schemas that became other ones.", _evolutions),
    _of_table("schema_events", "Events observed by schema sensing.", lambda c: c.events),
    _of_table("schema_evolutions", "Times that the schema became another.", lambda c: c.evolutions),
    _of_table("schema_sensing_cache_hits", _HITS, lambda c: c.cache_hits),
    _of_table("schema_sensing_cache_misses", _MISSES, lambda c: c.cache_misses),
    _of_table("schema_cache_hits", _HITS, lambda c: c.cache_hits),
    _of_table("schema_cache_misses", _MISSES, lambda c: c.cache_misses),
    MetricRow(
        "schema_sensing_seconds",
        "histogram",
        "Time for one event that was looked at, as the average of its batch.",
        ("table",),
        _of_tables(lambda counts: counts.latency),
    ),
    gauge(
        "schema_tables_total",
        "Tables and JSON columns that have a sensed schema.",
        lambda observed: observed.gauges.sensed_tables,
    ),
    gauge(
        "schema_dynamic_maps_total",
        "Objects in them that are maps, whose keys are data.",
        lambda observed: observed.gauges.dynamic_maps,
    ),
)
