import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from airflow_provider_deltaforge.api.health import create_app
from airflow_provider_deltaforge.api.server import serving
from airflow_provider_deltaforge.control.metrics import Observed
from airflow_provider_deltaforge.control.status import PipelineStatus
from airflow_provider_deltaforge.errors import AccessError, RetryableError, SpecError

RUNNING = PipelineStatus(
    name="orders",
    status="running",
    desired="running",
    generation=3,
    heartbeat_age_s=0.5,
    lag_ms=40,
    events=7,
    bytes=700,
    restarts=2,
    restarts_total=4,
    source_id="shop",
    sinks={"kafka": {"events": 7, "bytes": 650, "retries": 1, "error_class": None}},
    tables={"shop.orders": {"events": {"c": 5, "u": 2}}},
    processors={
        name: {
            "events_in": 9,
            "events_out": 7,
            "errors": 1,
            "counts": counts,
            "latency": {"buckets_s": [0.001, 0.01], "counts": [2, 3, 1], "sum_s": 0.5},
        }
        for name, counts in {
            "box": {"transformed": 4, "dropped:non_insert": 2, "strict_missing_fields": 1},
            "few": {"dropped": 5, "masked:a.b.c": 3},
        }.items()
    },
    dlq={
        "entries": 3,
        "max_entries": 4,
        "evicted": 6,
        "events": [{"sink": "", "processor": "box", "error_kind": "processor", "count": 9}],
    },
)


@pytest.fixture
def pipelines():
    return [RUNNING]


@pytest.fixture
def url(pipelines):
    with serving(create_app(lambda _: [*map(Observed, pipelines)]), "127.0.0.1:0") as url:
        yield url


def test_a_running_pipeline_is_healthy(url):
    assert httpx.get(f"{url}/healthz").text == "ok"
    assert httpx.get(f"{url}/health").json() == {"status": "healthy", "pipelines": 1}


@pytest.mark.parametrize("word", ["failed", "lost"])
def test_a_dead_pipeline_is_unhealthy(url, pipelines, word):
    pipelines[:] = [RUNNING.model_copy(update={"status": word})]

    answer = httpx.get(f"{url}/healthz")
    assert (answer.status_code, answer.text) == (503, "orders")
    answer = httpx.get(f"{url}/health")
    assert answer.status_code == 503
    assert answer.json() == {"status": "unhealthy", "failed_pipelines": ["orders"]}


@pytest.mark.parametrize("path", ["ready", "readyz"])
def test_ready_gives_the_details(url, path):
    answer = httpx.get(f"{url}/{path}")

    assert answer.status_code == 200
    assert answer.json()["pipelines"][0]["sinks"]["kafka"]["retries"] == 1


@pytest.mark.parametrize(
    ("word", "has_run", "code"),
    [
        ("failed", True, 503),
        ("lost", True, 503),
        ("starting", False, 503),
        ("pending", False, 503),
        ("blocked", False, 503),
        ("blocked", True, 200),
        ("snapshotting", False, 200),
        ("paused", True, 200),
    ],
)
def test_ready_is_what_does_its_work_or_rests_as_asked(url, pipelines, word, has_run, code):
    pipelines[:] = [RUNNING.model_copy(update={"status": word, "has_run": has_run})]

    answer = httpx.get(f"{url}/readyz")
    assert answer.status_code == code
    assert answer.json()["status"] == ("ready" if code == 200 else "not_ready")
    assert answer.json()["pipelines"][0]["name"] == "orders"


def test_metrics_are_what_the_driver_reported(url):
    text = httpx.get(f"{url}/metrics").text
    samples = {
        (sample.name, *sorted(filter(None, sample.labels.values()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }

    assert samples["deltaforge_pipeline_status", "orders"] == 1
    assert samples["deltaforge_source_lag_seconds", "orders"] == 0.04
    assert samples["deltaforge_bytes_total", "orders"] == 700
    assert samples["deltaforge_sink_events_total", "kafka", "orders"] == 7
    assert samples["deltaforge_source_events_total", "orders", "shop", "shop.orders", "u"] == 2
    assert samples["deltaforge_pipeline_restarts_total", "orders"] == 4
    assert samples["deltaforge_processor_events_in_total", "box", "orders"] == 9
    assert samples["deltaforge_processor_errors_total", "few", "orders"] == 1
    assert samples["deltaforge_outbox_transformed_total", "box", "orders"] == 4
    assert samples["deltaforge_outbox_dropped_total", "box", "non_insert", "orders"] == 2
    assert samples["deltaforge_filter_dropped_total", "few", "orders"] == 5
    assert samples["deltaforge_outbox_dropped_total", "box", "orders", "strict_missing_fields"] == 1
    counted = "deltaforge_processor_counts_total"
    assert samples[counted, "few", "masked:a.b.c", "orders"] == 3
    buckets = "deltaforge_processor_latency_seconds_bucket"
    found = [samples[(buckets, *sorted((le, "box", "orders")))] for le in ("0.001", "0.01", "+Inf")]
    assert found == [2, 5, 6]
    assert samples["deltaforge_processor_latency_seconds_sum", "box", "orders"] == 0.5
    assert samples["deltaforge_dlq_entries", "orders"] == 3
    assert samples["deltaforge_dlq_saturation_ratio", "orders"] == 0.75
    assert samples["deltaforge_dlq_evicted_total", "orders"] == 6
    assert samples["deltaforge_dlq_events_total", "box", "orders", "processor"] == 9


def test_a_store_that_is_away_is_not_healthy():
    def look(_):
        raise RetryableError("connection refused")

    with serving(create_app(look), "127.0.0.1:0") as url:
        assert httpx.get(f"{url}/healthz").status_code == 503
        answer = httpx.get(f"{url}/readyz")
        assert (answer.status_code, answer.json()["status"]) == (503, "unknown")


SAID = "cannot open postgresql://deltaforge:s3cret@db/store"


@pytest.mark.parametrize("error", [RetryableError(SAID), AccessError(SAID), SpecError(SAID)])
@pytest.mark.parametrize("path", ["/healthz", "/health", "/ready", "/readyz", "/metrics"])
def test_whatever_is_wrong_with_the_store_is_shown_without_a_secret(capfd, error, path):
    def look(_):
        raise error

    with serving(create_app(look), "127.0.0.1:0") as url:
        answer = httpx.get(f"{url}{path}")

    assert answer.status_code == 503
    assert "cannot open" in answer.text
    assert "s3cret" not in answer.text
    assert "Traceback" not in "".join(capfd.readouterr())


def test_a_taken_port_is_refused_with_what_to_do(url):
    port = url.rpartition(":")[2]

    with (
        pytest.raises(SpecError, match="another --api-addr"),
        serving(create_app(lambda _: []), f"127.0.0.1:{port}"),
    ):
        pass


def test_a_malformed_address_is_refused():
    with pytest.raises(SpecError, match="host:port"), serving(create_app(lambda _: []), "8080"):
        pass
