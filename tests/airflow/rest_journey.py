"""One journey over REST: a pipeline, copies beside its stream, a backfill, and what it all left.

Its Airflow also reads the DAGs of ``service``: the same service then has its components killed.
"""

import contextlib
import json
import secrets
import signal
import time
from collections import Counter
from datetime import date, datetime, timedelta, timezone

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.launching.local import LocalBackend, jobs_directory
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from tests.airflow.service.stage import DAGS, Stage, stage_environment, unpause
from tests.architecture.probe import CHECKOUT
from tests.e2e import shop
from tests.servers import airflow
from tests.sinks.kafka_reader import read_topic

PIPELINE, COPY, ARRIVED = "orders_pipeline", "orders_resnapshot", "orders_arrived"
DAYS = [date(2026, 1, 5), date(2026, 1, 6)]
# Rows that no writer touches, an equal number for each day.
OLD_ORDERS = range(401, 581)
TOPICS = [f"shop.{table}" for table in shop.TABLES]
GRANTS = "SELECT, RELOAD, REPLICATION SLAVE, REPLICATION CLIENT"
PATIENCE_S = 900
_POOL = "/pools/default_pool"


class Journey:
    """A real Airflow, MySQL, Kafka and Spark, and everything that happened between them."""

    def __init__(self, place, server, kafka, metadata):
        self.place = place
        self.metadata = metadata
        self.server = server
        self.dsn = f"sqlite:///{place}/state.db"
        self.jobs = jobs_directory(self.dsn)
        self.backend = LocalBackend(self.jobs)
        self.secret = f"planted-{secrets.token_hex(8)}"
        self.brokers = f"{kafka.host}:{kafka.port}"
        self.variables = {
            "MYSQL_DSN": f"mysql://planted:{self.secret}@{server.host}:{server.port}/",
            "KAFKA_BROKERS": self.brokers,
        }
        self.env = {
            **self.variables,
            "DELTAFORGE_ORDERS_WINDOW_S": "15",
            "DELTAFORGE_ORDERS_MASTER": "local[2]",
            "DELTAFORGE_ORDERS_CHANGED": "changed",
            "DELTAFORGE_ORDERS_ARRIVED_S": "10",
            **stage_environment(place),
        }

    def start(self):
        """Start Airflow on our DAGs, and fill the shop."""
        self._fill()
        dags = self.place / "dags"
        dags.mkdir()
        for name, folder in {"examples": CHECKOUT / "dags", "supervised": DAGS}.items():
            (dags / name).symlink_to(folder)
        self.airflow = airflow.start(self.place, dags=dags, env=self.env, metadata=self.metadata)
        self.rest, self.home = self.airflow.rest, self.airflow.home
        self.store = StoreLocation.from_dsn(self.dsn).create()

    def stage(self):
        """Return where streams are supervised and their supervisors killed."""
        unpause(self.airflow)
        return Stage(self.place, self.airflow, self.dsn, self.place / "holds")

    def end(self):
        """Leave no process."""
        try:
            with contextlib.suppress(SpecError):  # Nothing was applied.
                pipelines.stop(self.store, "orders", self.backend)
        finally:
            self.store.close()
            self.airflow.stop()

    def status(self):
        return status(self.store, "orders", self.backend)

    def running_again(self):
        """Wait until the stream runs, whatever it made way for; return its status."""
        told = []

        def runs():
            told.append(self.status())
            return told[-1].status == "running"

        _wait_until(runs)
        return told[-1]

    def first_run(self):
        """Let the schedule run the pipeline until its stream is watched; return the run."""
        self.rest.wait_for_dag(PIPELINE)
        self.rest.wait_for_dag(COPY)
        self.rest.wait_for_dag(ARRIVED)
        self.rest.unpause(ARRIVED)
        # Airflow starts the watchers of a DAG that it finds unpaused when it reads its file.
        self.rest.parse_again(ARRIVED)
        self.rest.unpause(PIPELINE)
        _wait_until(lambda: self.rest.runs(PIPELINE))
        run = self.rest.runs(PIPELINE)[0]["dag_run_id"]
        self.rest.wait_task(PIPELINE, run, "stream", ["deferred"], PATIENCE_S)
        _wait_until(lambda: self.status().status == "running")
        self.pool = self._pools_of_waiting_tasks()
        return run

    def _pools_of_waiting_tasks(self):
        """Return the pool while its tasks do nothing but wait, by whether it counts them.

        Nobody schedules meanwhile. Airflow 3.3 does not know psycopg's error as that of a lock
        that another holds: its scheduler ends where a pool is changed while it locks the pools.
        """

        def only_waits(pool):
            return pool["deferred_slots"] and not pool["running_slots"] + pool["queued_slots"]

        while True:
            _wait_until(lambda: only_waits(self.rest.get(_POOL)))
            self.airflow.kill("scheduler", signal.SIGTERM)
            pools = {counts: self._changed_pool(counts) for counts in (True, False)}
            self.airflow.start_again("scheduler")
            if all(map(only_waits, pools.values())):  # The window was not over.
                return pools

    def _changed_pool(self, counts_deferred):
        masks = "update_mask=include_deferred&update_mask=slots"
        self.rest.patch(f"{_POOL}?{masks}", {"include_deferred": counts_deferred, "slots": 128})
        return self.rest.get(_POOL)

    def run_by_hand(self):
        """Ask for a run with a form, which begins when the present window is over."""
        return self.rest.trigger(PIPELINE, {"mode": "never"}, run_id="by-hand")

    def next_run(self):
        """Wait until the schedule runs the pipeline again."""

        def scheduled():
            return [run for run in self.rest.runs(PIPELINE) if run["run_type"] == "scheduled"]

        _wait_until(lambda: len(scheduled()) > 1)

    def copy(self, conf):
        """Copy again what a form asks for; return the run."""
        run = self.rest.trigger(COPY, conf)
        assert self.rest.wait_run(COPY, run, patience_s=PATIENCE_S) == "success"
        return run

    def backfill(self):
        """Copy each of the past days; return the runs, oldest interval first."""
        first, last = (
            datetime.combine(day, datetime.min.time(), timezone.utc) for day in (DAYS[0], DAYS[-1])
        )
        self.rest.backfill(COPY, first, last)
        return self.wait_for_runs("backfill")

    def wait_for_runs(self, run_type):
        """Wait until all copies that were made in this way succeeded; return their runs."""
        runs = [r["dag_run_id"] for r in self.rest.runs(COPY) if r["run_type"] == run_type]
        for run in runs:
            state = self.rest.wait_run(COPY, run, patience_s=PATIENCE_S)
            assert state == "success", self.rest.log(COPY, run, "snapshot")
        return sorted(runs)

    def stop(self):
        """Let the stream catch up, stop it for good, and read what Kafka holds."""
        _wait_until(self._caught_up)
        self.rest.pause(PIPELINE)
        # A paused DAG begins no task; one that is under way could start the stream again.
        _wait_until(lambda: not self._tasks("running", "queued"))
        pipelines.stop(self.store, "orders", self.backend)
        self.events = [
            json.loads(read.value) for topic in TOPICS for read in read_topic(self.brokers, topic)
        ]

    def copies(self, table):
        """Return how often each row of a table came as a copy, by id."""
        return Counter(
            event["after"]["id"]
            for event in self.events
            if event["op"] == "r" and event["source"]["table"] == table
        )

    def arrived(self):
        """Return what each run got that rows had scheduled; wait until none is under way."""
        while True:
            runs = self.rest.runs(ARRIVED)
            states = [self.rest.wait_run(ARRIVED, run["dag_run_id"]) for run in runs]
            # A run that is queued when its DAG is paused stays queued.
            self.rest.pause(ARRIVED)
            if len(self.rest.runs(ARRIVED)) == len(runs):
                break
            self.rest.unpause(ARRIVED)
        assert {*states} == {"success"}, runs
        assert {run["run_type"] for run in runs} == {"asset_triggered"}
        return [self.rest.xcom(ARRIVED, run["dag_run_id"], "report") for run in runs]

    def _tasks(self, *states):
        path = f"/dags/{PIPELINE}/dagRuns/~/taskInstances"
        return self.rest.get(path, state=list(states))["task_instances"]

    def _fill(self):
        shop.create(self.server, "shop", orders=600)
        with shop.connect(self.server, "shop") as connection, connection.cursor() as cursor:
            cursor.execute("DROP USER IF EXISTS planted")
            cursor.execute("CREATE USER planted IDENTIFIED BY %s", (self.secret,))
            cursor.execute(f"GRANT {GRANTS} ON *.* TO planted")
            for order in OLD_ORDERS:
                noon = datetime.combine(day_of(order), datetime.min.time()) + timedelta(hours=12)
                cursor.execute("UPDATE orders SET changed = %s WHERE id = %s", (noon, order))
            connection.commit()

    def _caught_up(self):
        document = pipelines.existing(self.store, "orders").document()
        source = load(document, self.variables).spec.source
        at = Checkpoints(self.store, "orders", source.id).load().get("shop-kafka")
        return at is not None and source.compare(at, source.head()) >= 0


def _wait_until(condition):
    """Wait for something that is asked of a server, which may be busy."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s"
        time.sleep(1)


def day_of(order):
    """Return the day on which an old order changed."""
    return DAYS[order % len(DAYS)]
