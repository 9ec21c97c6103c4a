"""``python -m tests.demo``: an embedded database, Airflow and Spark on this machine, then a report.

Fills a shop in a Turso file, starts an Airflow of its own, and has it run the example DAG
(preflight, snapshot, stream) while a writer changes rows. What arrived is compared with the shop
row by row. Nothing is left running.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import turso
from rich.console import Console

from airflow_provider_deltaforge.errors import DeltaForgeError
from tests.demo import report, shop
from tests.demo.arrivals import ENVELOPES, TABLES, Arrivals, Rows
from tests.demo.dag_run import DagError, DagRun, end_airflow, start_airflow
from tests.demo.ending import Endings, Stopped, keep_logs, only_one, stop_stream
from tests.demo.showing import Line, Show
from tests.servers.airflow_rest import RestError
from tests.servers.process import ServerError

DOCUMENT = Path(__file__).parent / "shop.yaml"
FOREVER_S = 6 * 3600
FAILURES = (DagError, DeltaForgeError, ServerError, RestError, httpx.HTTPError, turso.Error)
_SETTLE_S = 180.0
_UI_PAUSE_S = 0.2
_STOPPED = "stopped; nothing is left running"
_RESULTS = ("shop.db*", "logs", *ENVELOPES)


@dataclass(frozen=True)
class Plan:
    """Where everything of one demo lies, and how long it streams."""

    output: Path
    seconds: int
    ui: bool

    @property
    def scratch(self) -> Path:
        """Return what goes away at the end."""
        return self.output / "run"

    @property
    def store(self) -> Path:
        """Return the state store's file."""
        return self.scratch / "state.db"

    @property
    def database(self) -> Path:
        """Return the shop's file."""
        return self.output / "shop.db"

    def variables(self) -> dict[str, str]:
        """Return what the document and the DAG ask of the environment."""
        return {
            "SHOP_DB": str(self.database),
            "SHOP_OUTPUT": str(self.output),
            "DELTAFORGE_ORDERS_DOCUMENT": str(DOCUMENT),
            "DELTAFORGE_ORDERS_WINDOW_S": str(FOREVER_S if self.ui else self.seconds),
            "DELTAFORGE_ORDERS_MASTER": "local[2]",
        }


def main() -> int:
    """Run the demo and return the exit code."""
    options = argparse.ArgumentParser(prog="dev.sh demo", description=__doc__)
    options.add_argument("--ui", action="store_true", help="leave Airflow running until Ctrl-C")
    options.add_argument("--seconds", type=int, default=20, help="how long to stream (default 20)")
    options.add_argument("--output", type=Path, default=Path(".deltaforge/demo"))
    asked = options.parse_args()
    plan = Plan(asked.output.absolute(), asked.seconds, asked.ui)
    show, endings = Show(Console()), Endings()
    _keep_to_itself()
    try:
        with (
            only_one(plan.output, plan.scratch, plan.store),
            _cleared(show, plan, endings) as stack,
        ):
            equal = _run(show, plan, stack, endings)
        if plan.ui:
            show.console.print(_STOPPED)
    except Stopped as stopped:
        show.console.print(_STOPPED)
        return stopped.exit_code
    except FAILURES as error:
        show.console.print("[bold red]the demo failed[/]")
        show.console.print(str(error), markup=False, highlight=False)
        return 1
    return 0 if equal else 1


def _keep_to_itself() -> None:
    """Let nothing that this machine is configured for reach into the demo."""
    # Else the drivers' places would be those of other pipelines.
    os.environ.pop("DELTAFORGE_JOBS", None)
    without_proxy = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, (without_proxy, "127.0.0.1,localhost")))


@contextmanager
def _cleared(show: Show, plan: Plan, endings: Endings) -> Iterator[ExitStack]:
    """Clear the place, and put everything away afterwards whatever happens."""
    shutil.rmtree(plan.scratch, ignore_errors=True)
    for old in (path for name in _RESULTS for path in plan.output.glob(name)):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    plan.scratch.mkdir()
    stack = ExitStack()
    stack.callback(shutil.rmtree, plan.scratch, ignore_errors=True)
    try:
        yield stack
    except Stopped:
        show.console.print("stopping …")
        raise
    except FAILURES:
        show.console.print(f"the logs are in {keep_logs(plan.scratch, plan.output)}")
        raise
    finally:
        endings.be_deaf()
        stack.close()


def _run(show: Show, plan: Plan, stack: ExitStack, endings: Endings) -> bool:
    """Start everything, run the DAG, report; say whether the output equals the source."""
    title = f"a shop with {shop.CUSTOMERS:,} customers and {shop.ORDERS:,} orders in a Turso file"
    with show.step(title):
        shop.fill(plan.database)
    stack.callback(stop_stream, plan.store)
    with show.step("Airflow: scheduler, triggerer, DAG processor, API server"):
        service = start_airflow(plan.scratch, plan.store, plan.variables())
        stack.callback(end_airflow, service)
    run, arrivals, writer = DagRun(service), Arrivals(plan.output), shop.Writer(plan.database)
    stack.callback(arrivals.stop)
    stack.callback(writer.stop)
    arrivals.start()
    writer.start()
    with show.step("the DAG is read and let loose"):
        run.begin()
    _tell_addresses(show, run)
    with show.step("Airflow runs the DAG while rows change", lambda: _lines(run, arrivals, writer)):
        run.follow(lambda: writer.check() or (plan.ui and arrivals.streamed_for(plan.seconds)))
    if plan.ui:
        return _stay(show, plan, run, arrivals, writer)
    run.pause()
    with show.step("Airflow is killed, the stream goes on without it"):
        end_airflow(service)
    writer.stop()
    tables = _settled(show, plan, arrivals)
    endings.be_deaf()
    with show.step("the stream is drained and ended"):
        stack.close()
    equal = report.show(show.console, arrivals, tables, writer.commits)
    _tell_next(show, plan)
    return equal


def _stay(show: Show, plan: Plan, run: DagRun, arrivals: Arrivals, writer: shop.Writer) -> bool:
    """Report, and go on until somebody asks to end."""
    with writer.still():
        tables = _settled(show, plan, arrivals)
        equal = report.show(show.console, arrivals, tables, writer.commits)
    writer.pause_s = _UI_PAUSE_S
    _tell_next(show, plan)
    _tell_addresses(show, run)
    show.console.print("[bold]Everything goes on; Ctrl-C stops it.[/]")
    try:
        with show.step("streaming", lambda: _lines(run, arrivals, writer)):
            run.follow(lambda: bool(writer.check()), patience_s=2 * FOREVER_S)
    except Stopped:
        show.console.print("stopping …")
    return equal


def _settled(show: Show, plan: Plan, arrivals: Arrivals) -> dict[str, Rows]:
    """Wait until the output holds what the shop does; the report says so if it never does."""
    tables = {name: shop.rows_of(plan.database, name) for name in TABLES}
    deadline = time.monotonic() + _SETTLE_S
    with show.step("the last change has arrived"):
        while any(arrivals.differences(name, rows) for name, rows in tables.items()):
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
    return tables


def _lines(run: DagRun, arrivals: Arrivals, writer: shop.Writer) -> list[Line]:
    """Return where everything is, for people who wait."""
    more = {
        "snapshot": f"{arrivals.events('r'):,} rows copied",
        "stream": f"{arrivals.events('cud'):,} changes arrived",
    }
    tasks = [
        (name, state, more.get(name, "") if state else "") for name, state in run.tasks.items()
    ]
    return [("writer", "running", f"{len(writer.commits):,} changes committed"), *tasks]


def _tell_addresses(show: Show, run: DagRun) -> None:
    show.console.print(f"  the run    {run.url}", highlight=False, soft_wrap=True)
    if run.page is not None:
        show.console.print(f"  DeltaForge {run.page}", highlight=False, soft_wrap=True)


def _tell_next(show: Show, plan: Plan) -> None:
    place = os.path.relpath(plan.output)
    tell = partial(show.console.print, highlight=False, soft_wrap=True)
    tell(f"\nThe output lies in {place}: native, debezium, cloudevents; one file per table")
    tell(f"  head -n 1 {place}/native/orders.jsonl")
    if not plan.ui:
        tell("  ./dev.sh demo --ui       the same run in the Airflow UI")
    tell("  dags/orders_pipeline.py  the DAG; tests/demo/shop.yaml is its document")
    tell(f"[dim]{show.elapsed_s:.0f} s in all[/]")


if __name__ == "__main__":
    sys.exit(main())
