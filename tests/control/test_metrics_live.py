"""Every metric that the pages name comes out of pipelines that run, and none that they do not."""

import json
import re
import shutil
import subprocess
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from airflow_provider_deltaforge.api.access import on_this_machine
from airflow_provider_deltaforge.api.app import create_app
from airflow_provider_deltaforge.api.context import ApiContext
from airflow_provider_deltaforge.api.server import serving
from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.launching.local import LocalBackend
from airflow_provider_deltaforge.control.metrics import PREFIX
from airflow_provider_deltaforge.control.verification import VerificationRun
from airflow_provider_deltaforge.engine.base.tuning import Tuning
from airflow_provider_deltaforge.engine.verify.options import VerifyOptions
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from tests.control import metrics_page
from tests.engine.driving import Driving
from tests.engine.real_run import RealRun
from tests.servers import sql
from tests.servers.process import HOST, free_port
from tests.sources.mysql.reading import fresh_database
from tests.waiting import wait_for

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
SUFFIX = re.compile(r"_(bucket|sum|count|total)$")
NAME = re.compile(r"\bdeltaforge_[a-z0-9_]+\b")

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: live, tenant: acme}}
spec:
  source:
    type: mysql
    config:
      {{id: live, dsn: "mysql://df:df-secret@{mysql}/live", tables: [live.*],
       outbox: {{tables: [outbox]}}}}
  processors:
    - {{type: outbox, topic: live.outbox}}
    - {{type: filter, ops: [create, read]}}
    - {{type: mask, rules: [{{columns: [live.orders.v], action: redact}}]}}
    - {{type: javascript, id: odd, inline: "{script}"}}
  journal: {{enabled: true}}
  archive: {{directory: "{archive}", flush_secs: 1}}
  schema_sensing: {{enabled: true, sampling: {{warmup_events: 1, sample_rate: 2}}}}
  sinks:
    - type: kafka
      config:
        id: kafka
        brokers: "{kafka}"
        topic: "live.${{after.topic}}"
        exactly_once: true
        encoding: {{type: avro, schema_registry_url: "{registry}"}}
    - type: http
      config: {{id: away, url: "http://{away}/", required: false, connect_timeout_secs: 1}}
"""
PROMISED = """
pipelines pipeline_status pipeline_info pipeline_pauses pipeline_resumes build_info panics
source_events source_bytes source_reconnects source_errors source_lag_seconds
source_table_lag_seconds source_schema_cache_hits source_schema_cache_misses source_idle_seconds
snapshot_rows batch_events batch_bytes bytes stage_latency_seconds e2e_latency_seconds
processor_latency_seconds processor_errors processor_events_in processor_events_out
outbox_transformed outbox_dropped filter_dropped sink_events sink_batch sink_errors
sink_latency_seconds sink_bytes sink_routing_errors sink_reconnects sink_checkpoint_status
sink_last_checkpoint_ts sink_txn_commits sink_txn_aborts kafka_produce_retries
kafka_producer_queue_messages kafka_producer_queue_bytes coordinator_sink_timeout checkpoints
last_checkpoint_ts pipeline_evolutions schema_events schema_evolutions
schema_sensing_cache_hits schema_sensing_cache_misses schema_sensing_seconds schema_drift_detected
schema_tables_total schema_dynamic_maps_total avro_encode avro_schema_registrations
avro_encode_failure dlq_events dlq_entries dlq_saturation_ratio dlq_evicted dlq_rejected
dlq_write_failures pipeline_channel_depth api_requests
"""
"""Of the documents, counters without ``_total``; those of sinks that are refused are left out."""
ODD = (
    "function processBatch(es) { for (const e of es) if (e.after && e.after.id === 2) "
    "e.after.extra = 1; return es; }"
)
STATEMENTS = (
    "INSERT INTO orders VALUES (1, 'orders', 'x')",
    "INSERT INTO orders VALUES (2, 'orders', 'x')",
    "INSERT INTO orders VALUES (3, 'no/topic', 'x')",
    "UPDATE orders SET v = 'filtered' WHERE id = 1",
    "INSERT INTO outbox VALUES (1, 'order', '1', 'created', '{}')",
    "UPDATE outbox SET event_type = 'no insert'",
)


class Live:
    """A pipeline through all that has metrics of its own, driven by a thread of the test."""

    def __init__(self, document, location):
        self.name, self.tuning = "live", Tuning(measure_s=0.3, retention_s=0.3)
        self.location, self.store = location, location.open()
        pipelines.apply(self.store, document)
        changes = {"desired": "running", "generation": 1}
        control = pipelines.existing(self.store, self.name)
        control.update(lambda old: old.model_copy(update=changes))
        self.driving = Driving(self)

    def end(self):
        pipelines.ask_to_stop(self.store, self.name)
        self.driving.end()


@pytest.fixture(scope="module")
def url(tmp_path_factory, mysql_server, kafka_server, schema_registry_server, postgres_server):
    """The address of a server whose two pipelines have met everything."""
    place = tmp_path_factory.mktemp("live")
    text = "varchar(20)"
    fresh_database(
        mysql_server,
        "live",
        f"CREATE TABLE orders (id int PRIMARY KEY, topic {text}, v {text})",
        f"CREATE TABLE outbox (id int PRIMARY KEY, aggregate_type {text}, aggregate_id {text}, "
        f"event_type {text}, payload json)",
    )
    document = DOCUMENT.format(
        mysql=f"{mysql_server.host}:{mysql_server.port}",
        kafka=kafka_server.url,
        registry=schema_registry_server.url,
        away=f"{HOST}:{free_port()}",
        script=ODD,
        archive=place / "archive",
    )
    location = StoreLocation.from_dsn(f"sqlite:///{place / 'state.db'}")
    initial = {"snapshot": {"mode": "initial"}}
    # So late that a change waits whenever the test looks.
    late = {"archive": {"directory": str(place / "archive"), "flush_secs": 3600}}
    slot = RealRun(postgres_server, place, settings=initial, location=location, more=late)
    slot.insert(1)
    slot.start()
    live = Live(document, location)
    jobs = LocalBackend(place / "jobs")
    context = ApiContext(lambda: closing(location.open()), jobs, None, on_this_machine())
    try:
        with serving(create_app(context), "127.0.0.1:0") as url:
            wait_for("the stream", lambda: series(url).get("pipeline_status", {}).get("live") == 1)
            sql.execute(mysql_server, *STATEMENTS, database="live")
            wait_for("the copy", lambda: Snapshots(slot.store, slot.name).finished())
            slot.insert(2)  # Behind the copy, which has one row.
            verified = VerificationRun(slot.store, slot.name, VerifyOptions(), "test")
            verified.begin()
            assert verified.run().verdict == "equal"
            expected = metrics_page.names()
            missing = lambda: sorted(expected - scraped(url).keys())  # noqa: E731
            with suppress(AssertionError):
                wait_for("every metric", lambda: not missing(), patience_s=60)
            lacking = missing()
            assert lacking == []
            yield url
    finally:
        live.end()
        slot.stop()


def scraped(url):
    """Return what a server shows: families by name."""
    text = httpx.get(f"{url}/metrics", timeout=60).text
    return {family.name: family for family in text_string_to_metric_families(text)}


def series(url):
    """Return the values of each metric by its pipeline, of those with one of a pipeline."""
    return {
        name.removeprefix(PREFIX): {s.labels.get("pipeline"): s.value for s in family.samples}
        for name, family in scraped(url).items()
    }


def test_the_table_names_what_pipelines_that_run_show_and_nothing_else(url):
    found = scraped(url)
    assert found.keys() == metrics_page.names()
    for metrics in metrics_page.rows().values():
        for name, kind, labels, _ in metrics:
            family = found[f"{PREFIX}{name}"]
            assert family.type == kind
            shown = {label for sample in family.samples for label in sample.labels} - {"le"}
            assert shown - {"pipeline", "tenant"} == {*labels}, name


def test_the_names_that_the_documents_promise_exist(url):
    assert {f"{PREFIX}{name}" for name in PROMISED.split()} - scraped(url).keys() == set()


def test_the_page_is_made_of_the_rows():
    page = metrics_page.PAGE.read_text(encoding="utf-8")
    assert page == metrics_page.page(), "run python -m tests.control.metrics_page"


def test_numbers_are_those_of_what_happened(url):
    live = {name: values["live"] for name, values in series(url).items() if "live" in values}
    assert live["dlq_entries"] >= 1
    assert live["source_retention_left_seconds"] > 0
    assert live["source_log_behind_bytes"] >= 0
    events = {
        (sample.labels["table"], sample.labels["op"]): sample.value
        for sample in scraped(url)["deltaforge_source_events"].samples
        if sample.labels["pipeline"] == sample.labels["source"] == "live"
    }
    assert events["live.orders", "c"] == 3
    (copied,) = series(url)["snapshot_rows"].values()
    assert copied == 1
    (kept,) = series(url)["source_log_kept_bytes"].values()
    assert kept > 0
    assert live["sink_txn_commits"] >= 1


@pytest.mark.parametrize("file", ["dashboard.json", "alerts.yaml", "alerts_test.yaml"])
def test_what_dashboard_and_rules_name_exists(url, file):
    named = {SUFFIX.sub("", name) for name in NAME.findall((MONITORING / file).read_text())}
    known = {SUFFIX.sub("", name) for name in scraped(url)}
    assert len(named) >= 20
    assert named - known == set()


def test_queries_of_the_dashboard_are_promql(tmp_path):
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    queries = [
        target["expr"].replace("$__rate_interval", "5m")
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]
    rules = [{"record": f"query{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert len(rules) > 40
    promtool("check", "rules", str(file))


def test_every_rule_fires_when_it_should_and_only_then():
    promtool("check", "rules", "alerts.yaml")
    promtool("test", "rules", "alerts_test.yaml")
    (group,) = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    tested = (MONITORING / "alerts_test.yaml").read_text()
    assert [rule["alert"] for rule in group["rules"] if rule["alert"] not in tested] == []


def promtool(*words):
    program = shutil.which("promtool")
    assert program is not None, "promtool is missing: apt-get install prometheus"
    done = subprocess.run(
        [program, *words], cwd=MONITORING, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
