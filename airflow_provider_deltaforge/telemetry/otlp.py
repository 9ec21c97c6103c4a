"""Sends metrics to OpenTelemetry, as its standard environment variables say.

The SDK's own instruments cannot give histograms that somebody else has counted: here they are made
of the Prometheus metrics, as data points that the SDK's exporter sends.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_deltaforge import __version__
from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.telemetry.redaction import redacted

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_TEMPORALITY = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
_INTERVAL, _INTERVAL_MS = "OTEL_METRIC_EXPORT_INTERVAL", 60_000
_PROTOCOL = "http/protobuf"
_LAST_S = 3.0

SILENT = {"OTEL_METRICS_EXPORTER": "none"}
"""The environment of a process whose metrics another one sends."""

_log = logging.getLogger(__name__)


def is_wanted(environment: Mapping[str, str] | None = None) -> bool:
    """Return whether the environment names where to send metrics, and nothing speaks against it."""
    found = os.environ if environment is None else environment
    off = found.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporters = found.get("OTEL_METRICS_EXPORTER", "otlp").split(",")
    named = any(found.get(name, "").strip() for name in _ENDPOINTS)
    return named and not off and "otlp" in (exporter.strip() for exporter in exporters)


def of_drivers() -> dict[str, str]:
    """Return more of the environment of drivers whose metrics this process sends."""
    return SILENT if is_wanted() else {}


@contextmanager
def pushing(collect: Callable[[], Iterable[Any]]) -> Iterator[bool]:
    """Send metrics now and then while the block runs, if the environment says where.

    What keeps them from being sent is logged, and holds nothing up. Yields whether they are sent.

    Args:
        collect: returns families of ``prometheus_client``; may raise a DeltaForgeError.
    """
    push = _opened(collect) if is_wanted() else None
    if push is None:
        yield False
        return
    push.start()
    try:
        yield True
    finally:
        push.close()


def _opened(collect: Callable[[], Iterable[Any]]) -> "MetricsPush | None":
    protocol = next((os.environ[name] for name in _PROTOCOLS if os.environ.get(name)), _PROTOCOL)
    if protocol != _PROTOCOL:
        _log.warning("metrics are not sent: %s must be %s", _PROTOCOLS[1], _PROTOCOL)
        return None
    if os.environ.get(_TEMPORALITY, "cumulative").lower() != "cumulative":
        _log.warning("metrics are not sent: %s must be cumulative", _TEMPORALITY)
        return None
    interval = os.environ.get(_INTERVAL, "")
    if interval and not (interval.isdecimal() and int(interval) > 0):
        _log.warning("metrics are not sent: %s must be a number of milliseconds", _INTERVAL)
        return None
    try:
        return MetricsPush(collect, int(interval or _INTERVAL_MS) / 1000)
    except ImportError:
        _log.warning(
            "metrics are not sent to OpenTelemetry: install airflow-provider-deltaforge[otel], or "
            "set OTEL_METRICS_EXPORTER=none"
        )
    except Exception as error:  # noqa: BLE001 - of settings that only the exporter reads
        _log.warning("metrics are not sent: OTEL_…: %s", redacted(str(error)))
    return None


class MetricsPush:
    """Sends what it collects, in a thread of its own.

    Args:
        collect: see ``pushing``.
        every_s: between two times.

    Raises:
        ImportError: the ``otel`` extra is missing.
    """

    def __init__(self, collect: Callable[[], Iterable[Any]], every_s: float) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        self._collect, self._every_s = collect, every_s
        self._exporter = OTLPMetricExporter()
        self._resource = _resource()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="opentelemetry", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def close(self) -> None:
        """Send once more, within a few seconds, and end."""
        self._over.set()
        self._thread.join(_LAST_S)
        with suppress(Exception):
            self._exporter.shutdown()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self._send()
        self._send()

    def _send(self) -> None:
        try:
            data = metrics_data(self._collect(), self._resource, time.time_ns())
            self._exporter.export(data)  # It logs what it could not send.
        except DeltaForgeError as error:
            _log.warning("metrics are not sent: %s", redacted(str(error)))
        except Exception as error:  # noqa: BLE001 - metrics hold nothing up
            _log.warning("metrics are not sent: %s: %s", type(error).__name__, redacted(str(error)))


def _resource() -> Any:
    from opentelemetry.sdk.resources import Resource

    named = "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    own = {
        "service.version": __version__,
        "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
    }
    if not named and not os.environ.get("OTEL_SERVICE_NAME"):
        own["service.name"] = "deltaforge"
    return Resource.create(own)


def metrics_data(families: Iterable[Any], resource: Any, now_ns: int) -> Any:
    """Return what the SDK's exporter sends.

    Args:
        families: of ``prometheus_client``.
        resource: who sends.
        now_ns: the time of the values, ns since the epoch.
    """
    from opentelemetry.sdk.metrics import export
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    scope = InstrumentationScope("airflow_provider_deltaforge", __version__)
    metrics = [_metric(export, family, now_ns) for family in families]
    of_scope = export.ScopeMetrics(scope, [metric for metric in metrics if metric is not None], "")
    return export.MetricsData([export.ResourceMetrics(resource, [of_scope], "")])


def _metric(export: Any, family: Any, now_ns: int) -> Any:
    cumulative = export.AggregationTemporality.CUMULATIVE
    if family.type == "histogram":
        data = export.Histogram(list(_histograms(export, family, now_ns)), cumulative)
    else:
        points = [
            export.NumberDataPoint(dict(sample.labels), 0, now_ns, float(sample.value))
            for sample in family.samples
            if not sample.name.endswith("_created")
        ]
        is_counter = family.type == "counter"
        data = export.Sum(points, cumulative, True) if is_counter else export.Gauge(points)  # noqa: FBT003
    return export.Metric(family.name, family.documentation, "", data) if data.data_points else None


@dataclass(slots=True)
class _Buckets:
    bounds: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    total: float = 0.0


def _histograms(export: Any, family: Any, now_ns: int) -> Iterator[Any]:
    """Yield a data point for each series; Prometheus counts what lies below a bound."""
    series: dict[tuple[tuple[str, str], ...], _Buckets] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        found = series.setdefault(tuple(labels.items()), _Buckets())
        if sample.name.endswith("_bucket"):
            found.counts.append(int(sample.value))
            if sample.labels["le"] != "+Inf":
                found.bounds.append(float(sample.labels["le"]))
        elif sample.name.endswith("_sum"):
            found.total = sample.value
    for labels_of, found in series.items():
        below = [0, *found.counts[:-1]]
        counts = [upto - before for upto, before in zip(found.counts, below, strict=True)]
        none: Any = None  # Nobody knows the least and the greatest.
        yield export.HistogramDataPoint(
            attributes=dict(labels_of),
            start_time_unix_nano=0,
            time_unix_nano=now_ns,
            count=sum(counts),
            sum=found.total,
            bucket_counts=counts,
            explicit_bounds=found.bounds,
            min=none,
            max=none,
        )
