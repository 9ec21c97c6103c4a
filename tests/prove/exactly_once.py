"""Every border of a stream, every sink that delivers exactly once, without Spark and on it."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.e2e.exact_shop import VICTIMS, run_chain
from tests.prove.report import Report
from tests.servers import kafka, mysql, nats, redis
from tests.servers.process import Server

_SERVERS: dict[str, Callable[[Path], Server]] = {
    "kafka": kafka.start,
    "mysql": mysql.start,
    "nats": nats.start,
    "redis": redis.start,
}


def prove(seeds: int, report: Report) -> bool:
    """Run the chains; say whether every sink of every one held."""
    directory = Path(tempfile.mkdtemp(prefix="deltaforge-exactly-once-"))
    wanted = [
        (seed, place)
        for seed in range(seeds)
        for place in VICTIMS
        if report.wants(f"{place}/{seed}", place=place, seed=seed)
    ]
    wrong = 0
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn())
    with _started(directory) as servers, Progress(*columns, TimeRemainingColumn()) as bar:
        task = bar.add_task("exactly once", total=len(wanted))
        for seed, place in wanted:
            bar.update(task, description=f"{place}, seed {seed}")
            home = directory / f"{place}{seed}"
            chain = run_chain(place, seed, home, servers)
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
def _started(directory: Path) -> Iterator[dict[str, Server]]:
    with contextlib.ExitStack() as stack:
        servers = {}
        for kind, start in _SERVERS.items():
            servers[kind] = start(directory / kind)
            stack.callback(servers[kind].stop)
        yield servers
