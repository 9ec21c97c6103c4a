"""Every border of a stream from MySQL into every sink that delivers exactly once.

Without Spark, on it, and with one sink away for a while.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.e2e.exact_kills import VICTIMS
from tests.e2e.exact_shop import run_chain
from tests.prove.report import Report
from tests.servers import kafka, mysql, nats, postgres, redis
from tests.servers.process import Server

_SINKS: dict[str, Callable[[Path], Server]] = {
    "kafka": kafka.start,
    "nats": nats.start,
    "redis": redis.start,
}
_SOURCES: dict[str, Callable[[Path], Server]] = {"mysql": mysql.start, "postgres": postgres.start}


def prove(seeds: int, report: Report) -> bool:
    """Run the chains over MySQL; say whether every sink of every one held."""
    return run_chains(seeds, report, "mysql", VICTIMS)


def run_chains(seeds: int, report: Report, source: str, places: Collection[str]) -> bool:
    """Run the chains over any source; say whether every sink of every one held.

    Args:
        seeds: chains of each place.
        report: gets them.
        source: of ``tests.e2e.exact_sources.SHOPS``.
        places: of ``VICTIMS``.
    """
    directory = Path(tempfile.mkdtemp(prefix="deltaforge-exactly-once-"))
    wanted = [
        (seed, place)
        for seed in range(seeds)
        for place in places
        if report.wants(f"{place}/{seed}", place=place, seed=seed)
    ]
    wrong = 0
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn())
    with _started(directory, source) as servers, Progress(*columns, TimeRemainingColumn()) as bar:
        task = bar.add_task("exactly once", total=len(wanted))
        for seed, place in wanted:
            bar.update(task, description=f"{place}, seed {seed}")
            home = directory / f"{place}{seed}"
            chain = run_chain(place, seed, home, servers, source=source)
            report.add(chain.as_dict())
            if chain.wrong:
                wrong += 1
                told = "\n  ".join(line[-2000:] for line in chain.wrong)
                bar.console.print(f"{place}, seed {seed}, kept in {home}:\n  {told}", markup=False)
            else:
                shutil.rmtree(home, ignore_errors=True)
            bar.advance(task)
    report.write(complete=True)
    if not wrong:
        shutil.rmtree(directory, ignore_errors=True)
    return not wrong


@contextlib.contextmanager
def _started(directory: Path, source: str) -> Iterator[dict[str, Server]]:
    with contextlib.ExitStack() as stack:
        servers = {}
        for kind, start in {**_SINKS, source: _SOURCES[source]}.items():
            servers[kind] = start(directory / kind)
            stack.callback(servers[kind].stop)
        yield servers
