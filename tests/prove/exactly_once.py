"""Every border of a stream, every sink that delivers exactly once, every victim: nothing twice."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from airflow_provider_deltaforge.engine.borders import Border
from tests.engine.exact_run import PLACES, exact_run
from tests.engine.spark_kills import Victim, run_cell
from tests.prove.report import Report
from tests.servers import kafka, nats, redis
from tests.servers.process import Server

BORDERS = (
    Border.START_POSITION_STORED,
    Border.BATCH_RENDERED,
    Border.SINK_WRITTEN,
    Border.CHECKPOINT_STORED,
    Border.SOURCE_ACKNOWLEDGED,
)
VICTIMS = (Victim.PROCESS, Victim.WORKER, Victim.JVM, Victim.APPLICATION)
_SERVERS: dict[str, Callable[[Path], Server]] = {
    "kafka": kafka.start,
    "nats": nats.start,
    "redis": redis.start,
}


def prove(seeds: int, report: Report) -> bool:
    """Run the matrix; say whether every cell held."""
    directory = Path(tempfile.mkdtemp(prefix="deltaforge-exactly-once-"))
    wanted = [
        (seed, kind, victim, border)
        for seed in range(seeds)
        for kind in sorted(PLACES)
        for victim in VICTIMS
        for border in BORDERS
        if report.wants(
            f"{kind}/{border.value}/{victim.value}",
            sink=kind,
            border=border.value,
            victim=victim.value,
            seed=seed,
        )
    ]
    wrong = 0
    columns = (TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn())
    kinds = {kind for _, kind, _, _ in wanted}
    with _started(kinds, directory) as servers, Progress(*columns, TimeRemainingColumn()) as bar:
        task = bar.add_task("exactly once", total=len(wanted))
        for number, (seed, kind, victim, border) in enumerate(wanted):
            bar.update(task, description=f"{kind} / {border.value} / {victim.value}")
            home = directory / f"cell{number}"
            make = partial(exact_run, kind, servers[kind].dsn())
            cell = run_cell(border, victim, home, None, seed, make)
            report.add({"sink": kind, **cell.as_dict()})
            if cell.wrong:
                wrong += 1
                told = "\n  ".join(line[-2000:] for line in cell.wrong)
                bar.console.print(f"{kind}/{border.value}, kept in {home}:\n  {told}", markup=False)
            else:
                shutil.rmtree(home, ignore_errors=True)
            bar.advance(task)
    report.write(complete=True)
    if not wrong:
        shutil.rmtree(directory, ignore_errors=True)
    return not wrong


@contextlib.contextmanager
def _started(kinds: set[str], directory: Path) -> Iterator[dict[str, Server]]:
    with contextlib.ExitStack() as stack:
        servers = {}
        for kind in sorted(kinds):
            servers[kind] = _SERVERS[kind](directory / kind)
            stack.callback(servers[kind].stop)
        yield servers
