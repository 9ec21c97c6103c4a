"""The main job: Airflow runs preflight, snapshot and stream of a MySQL into Kafka, on Spark."""

import json
import secrets
from collections import Counter

import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.launch_local import LocalBackend
from airflow_provider_deltaforge.control.places import jobs_directory
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.snapshots import Snapshots
from tests.airflow import dag_run
from tests.control.bench import wait_until
from tests.demo import airflow_run
from tests.e2e import shop
from tests.oracle.mysql_history import history, name_of, table_rows
from tests.oracle.readers import seen_in
from tests.oracle.verdict import judge
from tests.sinks.kafka_reader import read_topic

TOPICS = [f"shop.{table}" for table in shop.TABLES]
GRANTS = "SELECT, RELOAD, REPLICATION SLAVE, REPLICATION CLIENT"


class MainJob:
    """One run of the example DAG, and what it left behind."""

    def __init__(self, place, server, kafka):
        self.server = server
        self.home = place / "airflow"
        self.dsn = f"sqlite:///{place}/state.db"
        self.jobs = jobs_directory(self.dsn)
        self.secret = f"planted-{secrets.token_hex(8)}"
        self.brokers = f"{kafka.host}:{kafka.port}"
        self.variables = {
            "MYSQL_DSN": f"mysql://planted:{self.secret}@{server.host}:{server.port}/",
            "KAFKA_BROKERS": self.brokers,
            "DELTAFORGE_ORDERS_WINDOW_S": "8",
            "DELTAFORGE_ORDERS_MASTER": "local[2]",
        }
        self.env = airflow_run.environment(self.home, place / "state.db", self.variables)

    def run(self):
        """Run the DAG while rows change, and stop the stream once it has caught up."""
        shop.create(self.server, "shop", orders=600)
        with shop.connect(self.server) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE USER planted IDENTIFIED BY %s", (self.secret,))
            cursor.execute(f"GRANT {GRANTS} ON *.* TO planted")
        airflow_run.prepare(self.env)
        with shop.Writers(self.server, "shop", pause_s=0.01):
            self.dag_log = airflow_run.run_dag("orders_pipeline", self.env)
            self.xcoms, self.mirrors = dag_run.told(self.env)
        shop.settle()
        self.store = StoreLocation.from_dsn(self.dsn).open()
        backend = LocalBackend(self.jobs)
        try:
            self.after_window = status(self.store, "orders", backend)
            wait_until(self._caught_up, 90)
        finally:
            pipelines.stop(self.store, "orders", backend)
        self.stopped = status(self.store, "orders", backend)
        self.events = [
            json.loads(read.value) for topic in TOPICS for read in read_topic(self.brokers, topic)
        ]

    def _caught_up(self):
        source = load(pipelines.existing(self.store, "orders").document(), self.variables)
        source = source.spec.source
        at = Checkpoints(self.store, "orders", source.id).load().get("shop-kafka")
        return at is not None and source.compare(at, source.head()) >= 0

    def copied(self):
        """Return the rows that the snapshot brought, by table."""
        return Counter(
            f"{event['source']['db']}.{event['source']['table']}"
            for event in self.events
            if event["op"] == "r"
        )


@pytest.fixture(scope="module")
def job(tmp_path_factory, mysql_server, kafka_server):
    ran = MainJob(tmp_path_factory.mktemp("main_job"), mysql_server, kafka_server)
    ran.run()
    yield ran
    ran.store.close()


pytestmark = [pytest.mark.airflow, pytest.mark.spark]


def test_every_task_succeeds_and_the_stream_outlives_the_run(job):
    assert dag_run.task_states(job.home) == dict.fromkeys(
        ["preflight", "snapshot", "stream"], "success"
    )
    assert job.after_window.status == "running"
    assert job.after_window.generation == 2


def test_the_oracle_finds_nothing_wrong(job):
    start = Snapshots(job.store, "orders").current().start_position
    truth = history(job.server, "shop", start)
    seen = seen_in((json.dumps(event) for event in job.events), name_of)

    assert len(truth) > 1000, "the writers did nothing"
    assert judge(truth, seen, table_rows(job.server, "shop", shop.TABLES)) == []


def test_the_xcom_of_the_snapshot_counts_what_kafka_holds(job):
    counts = job.xcoms["snapshot", "return_value"]

    assert counts["finished"] is True
    assert {table: told["rows"] for table, told in counts["tables"].items()} == job.copied()
    assert min(job.copied().values()) > 100
    for told in counts["tables"].values():
        assert told["chunks_done"] == told["chunks"] > 0


def test_the_mirror_variable_says_the_same(job):
    mirror = json.loads(job.mirrors["deltaforge_orders"])

    assert mirror["snapshot"] == job.xcoms["snapshot", "return_value"]


def test_the_xcom_of_the_stream_tells_how_its_window_ended(job):
    summary = job.xcoms["stream", "return_value"]

    streamed = sum(event["op"] != "r" for event in job.events)
    assert summary["status"] == "running"
    assert 0 <= summary["events"] <= streamed
    assert job.stopped.events == streamed
    assert job.xcoms["stream", "driver"]["name"] == "df-orders-g2"


def test_the_xcom_of_the_preflight_holds_every_finding(job):
    findings = job.xcoms["preflight", "return_value"]

    assert findings
    assert {finding["verdict"] for finding in findings} <= {"ok", "warn"}


def test_a_stopped_pipeline_says_so_sinks_included(job):
    assert job.stopped.status == "stopped"
    assert {sink["status"] for sink in job.stopped.sinks.values()} == {"stopped"}


def test_the_password_is_nowhere_a_person_or_a_log_could_show_it(job):
    assert dag_run.files_with(job.home, job.secret) == []
    assert dag_run.columns_with(job.home, job.secret) == []
    assert job.secret not in json.dumps([list(job.xcoms.values()), job.mirrors])
    assert dag_run.files_with(job.jobs, job.secret) == []
    assert dag_run.files_with(job.jobs.parent, job.secret) == []
    logs = sorted(path.parent.name for path in job.jobs.glob("*/driver.log"))
    assert logs == ["df-orders-g1", "df-orders-g2"]
