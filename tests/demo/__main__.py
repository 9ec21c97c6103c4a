"""``python -m tests.demo``: MariaDB, Airflow and Spark on this machine, then a report.

Starts a database of its own with a small shop in it, runs the example DAG (preflight, snapshot,
stream) while a writer changes rows, and compares the sink with the source at the end. Nothing is
left running.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.launch_local import LocalBackend
from airflow_provider_deltaforge.control.places import jobs_directory
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.storage.location import StoreLocation
from tests.demo import airflow_run, report, shop, watching
from tests.demo.steps import step
from tests.servers import mariadb
from tests.servers.process import Server

HERE = Path(__file__).parent
AFTERWARDS_S = 10
TOPICS = [f"shop.{table}" for table in report.TABLES]


@dataclass(frozen=True)
class Plan:
    """Where everything of one demo lies."""

    scratch: Path
    output: Path
    seconds: int
    kafka: bool

    @property
    def store(self) -> Path:
        """Return the state store's file."""
        return self.scratch / "state.db"

    @property
    def document(self) -> Path:
        """Return the pipeline document."""
        return HERE / ("shop_kafka.yaml" if self.kafka else "shop.yaml")


def main() -> int:
    """Run the demo and return the exit code."""
    options = argparse.ArgumentParser(prog="dev.sh demo", description=__doc__)
    options.add_argument("--kafka", action="store_true", help="to a Kafka broker instead of files")
    options.add_argument("--seconds", type=int, default=20, help="how long to stream (default 20)")
    options.add_argument("--output", type=Path, default=Path(".deltaforge/demo"))
    asked = options.parse_args()
    console = Console()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    output = asked.output.absolute()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="deltaforge-demo-") as scratch:
        try:
            return run(console, Plan(Path(scratch), output, asked.seconds, asked.kafka))
        except KeyboardInterrupt:
            console.print("stopped")
            return 130
        except (airflow_run.DagError, DeltaForgeError) as error:
            _keep_logs(Path(scratch), output)
            console.print(f"[bold red]the demo failed[/]; logs are in {output}")
            console.print(str(error), markup=False, highlight=False)
            return 1


def run(console: Console, plan: Plan) -> int:
    """Start everything, run the DAG, report; whatever happens, stop everything."""
    with ExitStack() as stack:
        title = f"MariaDB with {shop.CUSTOMERS:,} customers and {shop.ORDERS:,} orders"
        with step(console, title):
            server = mariadb.start(plan.scratch / "mariadb")
            stack.callback(server.stop)
            shop.fill(server)
        variables = {"MYSQL_DSN": server.dsn("shop"), **_sink_variables(console, plan, stack)}
        env = airflow_run.environment(
            plan.scratch / "airflow",
            plan.store,
            {
                **variables,
                "DELTAFORGE_ORDERS_DOCUMENT": str(plan.document),
                "DELTAFORGE_ORDERS_WINDOW_S": str(plan.seconds),
            },
        )
        with step(console, "an Airflow of its own"):
            airflow_run.prepare(env)
        stack.callback(_stop_stream, plan)
        arrivals = _arrivals(plan, variables)
        arrivals.start()
        stack.callback(arrivals.stop)
        writer = shop.Writer(server)
        writer.start()
        stack.callback(writer.stop)
        with step(
            console,
            "Airflow runs the DAG while rows change",
            lambda: f"{_words(plan)}; {sum(arrivals.counts.values()):,} events arrived",
        ):
            airflow_run.run_dag("orders_pipeline", env)
        with step(console, "the stream goes on without Airflow"):
            time.sleep(AFTERWARDS_S)
        with step(console, "the last change has arrived, the stream is stopped"):
            writer.stop()
            _settle(server, arrivals)
            _stop_stream(plan)
            arrivals.stop()
        tables = {name: shop.rows_of(server, name) for name in report.TABLES}
        place = f"topics {', '.join(TOPICS)}" if plan.kafka else f"{plan.output}/*.jsonl"
        return 0 if report.show(console, arrivals, tables, place) else 1


def _sink_variables(console: Console, plan: Plan, stack: ExitStack) -> dict[str, str]:
    if not plan.kafka:
        return {"DEMO_OUTPUT": str(plan.output)}
    from tests.servers import kafka

    with step(console, "a Kafka broker"):
        broker = kafka.start(plan.scratch / "kafka")
    stack.callback(broker.stop)
    return {"KAFKA_BROKERS": f"{broker.host}:{broker.port}"}


def _arrivals(plan: Plan, variables: dict[str, str]) -> watching.Arrivals:
    if plan.kafka:
        return watching.topics(variables["KAFKA_BROKERS"], TOPICS)
    return watching.files(plan.output)


def _words(plan: Plan) -> str:
    """Return where the DAG is, from the state store: the snapshot is generation 1, then 2."""
    if not plan.store.exists():
        return "1/3 preflight"
    store = StoreLocation.from_dsn(f"sqlite:///{plan.store}").open()
    try:
        present = status(store, "shop")
    except DeltaForgeError:
        return "1/3 preflight"
    finally:
        store.close()
    task = "2/3 snapshot" if present.generation < 2 else "3/3 stream"
    return f"{task} is {present.status}"


def _settle(server: Server, arrivals: watching.Arrivals, patience_s: float = 20) -> None:
    """Wait until the sink holds the writer's last change; the report says so if it never does."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        now = {name: shop.rows_of(server, name) for name in report.TABLES}
        states = {name: dict(arrivals.state.get(name, {})) for name in report.TABLES}
        if not any(report.differences(now[name], states[name]) for name in report.TABLES):
            return
        time.sleep(0.3)


def _stop_stream(plan: Plan) -> None:
    """Drain and end the driver, if there is one."""
    if not plan.store.exists():
        return
    dsn = f"sqlite:///{plan.store}"
    store = StoreLocation.from_dsn(dsn).open()
    try:
        if "shop" in pipelines.Control.list_pipelines(store):
            pipelines.stop(store, "shop", LocalBackend(jobs_directory(dsn)), 15)
    finally:
        store.close()


def _keep_logs(scratch: Path, output: Path) -> None:
    for log in (*scratch.glob("airflow/*.log"), *scratch.glob("jobs/*/driver.log")):
        shutil.copy(log, output / f"{log.parent.name}-{log.name}")


if __name__ == "__main__":
    sys.exit(main())
