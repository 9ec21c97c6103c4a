"""Metrics sent by OTLP over HTTP, to a receiver that decodes what it is given."""

import gzip
import os
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from airflow_provider_deltaforge.api.access import on_this_machine
from airflow_provider_deltaforge.api.context import ApiContext
from airflow_provider_deltaforge.cli.rest import fleet_metrics
from airflow_provider_deltaforge.control.metrics import families, observe, without_pushing
from airflow_provider_deltaforge.control.push import pushing_pipeline
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.telemetry import otlp
from tests.engine.driving import Driving
from tests.engine.in_process import InProcess
from tests.waiting import wait_until


class Receiver:
    """An OTLP/HTTP receiver."""

    def __init__(self):
        self.requests, self.headers, self.paths, self.status = [], [], [], 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                request = ExportMetricsServiceRequest()
                request.ParseFromString(body)
                receiver.headers.append({key.lower(): each for key, each in self.headers.items()})
                receiver.paths.append(self.path)
                receiver.requests.append(request)
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def metrics(self):
        """Return every metric of the last request, by name."""
        (of_resource,) = self.requests[-1].resource_metrics
        (of_scope,) = of_resource.scope_metrics
        return {metric.name: metric for metric in of_scope.metrics}

    def resource(self):
        (of_resource,) = self.requests[-1].resource_metrics
        return {each.key: each.value.string_value for each in of_resource.resource.attributes}

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver(monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    receiver = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    yield receiver
    receiver.close()


def collected():
    counted = CounterMetricFamily("deltaforge_bytes", "Bytes.", labels=["pipeline"])
    counted.add_metric(["orders"], 7)
    lag = GaugeMetricFamily("deltaforge_lag", "Lag.", labels=["pipeline"])
    lag.add_metric(["orders"], 0.5)
    waits = HistogramMetricFamily("deltaforge_waits", "Waits.", labels=["pipeline"])
    waits.add_metric(["orders"], [("0.1", 2), ("1.0", 5), ("+Inf", 6)], 4.5)
    waits.add_metric(["items"], [("0.1", 0), ("1.0", 0), ("+Inf", 1)], 9.0)
    return [counted, lag, waits, GaugeMetricFamily("deltaforge_none", "Nothing.")]


def attributes(point):
    return {each.key: each.value.string_value for each in point.attributes}


def test_counters_gauges_and_histograms_arrive_as_what_they_are(receiver, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    with otlp.pushing(collected) as sends:
        assert sends
        wait_until(lambda: len(receiver.requests) >= 2)
    metrics = receiver.metrics()

    assert {*metrics} == {"deltaforge_bytes", "deltaforge_lag", "deltaforge_waits"}
    counted = metrics["deltaforge_bytes"].sum
    assert (counted.is_monotonic, counted.aggregation_temporality) == (True, 2)
    assert counted.data_points[0].as_double == 7
    assert attributes(counted.data_points[0]) == {"pipeline": "orders"}
    assert metrics["deltaforge_lag"].gauge.data_points[0].as_double == 0.5
    orders, items = metrics["deltaforge_waits"].histogram.data_points
    assert (orders.count, orders.sum, [*orders.explicit_bounds]) == (6, 4.5, [0.1, 1.0])
    assert ([*orders.bucket_counts], [*items.bucket_counts]) == ([2, 3, 1], [0, 0, 1])
    assert receiver.headers[-1]["authorization"] == "Bearer secret"
    assert receiver.paths[-1] == "/v1/metrics"
    resource = receiver.resource()
    assert (resource["service.name"], resource["deployment.environment"]) == ("deltaforge", "test")


def test_who_sends_has_the_name_that_the_environment_gives_it(receiver, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "cdc")
    with otlp.pushing(collected):
        pass
    assert receiver.resource()["service.name"] == "cdc"  # Sent at the end, too.


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OTEL_SDK_DISABLED", "true", ""),
        ("OTEL_METRICS_EXPORTER", "none", ""),
        ("OTEL_METRICS_EXPORTER", "prometheus", ""),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "", ""),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL must be http/"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "soon", "OTEL_METRIC_EXPORT_INTERVAL must be a number"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta", "must be cumulative"),
    ],
)
def test_what_the_environment_forbids_is_not_sent(receiver, monkeypatch, caplog, name, value, said):
    monkeypatch.setenv(name, value)
    with otlp.pushing(collected) as sends:
        assert not sends
    assert receiver.requests == []
    assert said in caplog.text


def test_nothing_that_goes_wrong_holds_anything_up(receiver, caplog):
    receiver.status = 400
    asked = []

    def away():
        asked.append(1)
        if len(asked) == 1:
            raise RetryableError("mysql://u:secret@host is away")
        return collected()

    with otlp.pushing(away):
        wait_until(lambda: len(receiver.requests) >= 2)
    assert "is away" in caplog.text
    assert "secret" not in caplog.text


def test_a_driver_sends_its_own_pipeline_and_serve_leaves_it_out(receiver):
    pipeline = InProcess()
    pipeline.begin_at(out=0)
    with pushing_pipeline(pipeline.name, pipeline.location) as pushes:
        driving = Driving(pipeline, pushes_metrics=pushes)
        sent = "deltaforge_e2e_latency_seconds"
        wait_until(lambda: receiver.requests and sent in receiver.metrics())
        observed = observe(pipeline.store, [status(pipeline.store, pipeline.name)])
        assert without_pushing(observed) == []
        assert {family.name for family in families(observed)} <= receiver.metrics().keys()
        pipeline.want("stopped")
        assert driving.end().why == "stopped"
    (point,) = receiver.metrics()["deltaforge_pipeline_status"].gauge.data_points
    assert point.as_double == 0
    observed = observe(pipeline.store, [status(pipeline.store, pipeline.name)])
    assert without_pushing(observed) == observed  # Nobody else says now that it is stopped.


def test_drivers_of_who_sends_do_not_send(receiver):
    assert otlp.is_wanted()
    assert not otlp.is_wanted({**os.environ, **otlp.of_drivers()})


def test_serve_sends_every_pipeline_of_its_store_and_its_own_requests(receiver):
    pipeline = InProcess()
    context = ApiContext(lambda: nullcontext(pipeline.store), None, None, on_this_machine())
    context.request_counts.note({"method": "GET"}, 200, 0.1)
    with otlp.pushing(fleet_metrics(context)):
        pass
    (point,) = receiver.metrics()["deltaforge_pipeline_status"].gauge.data_points
    assert attributes(point) == {"pipeline": pipeline.name, "tenant": "tests"}
    (point,) = receiver.metrics()["deltaforge_api_requests"].sum.data_points
    assert attributes(point) == {"method": "GET", "route": "other", "status": "200"}
