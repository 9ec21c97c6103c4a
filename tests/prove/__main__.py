"""``python -m tests.prove all``, or areas by name: run long proofs and write what they found.

An area is one module of this package with ``SEEDS`` and ``units``; its result file is
``docs/proofs/<area>.json``. Units run on several workers at once, each with servers of its own.
"""

import argparse
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.prove.pool import Pool
from tests.prove.report import DIRECTORY, Report, units_missing
from tests.prove.soak import HOURS, WHOLE_HOURS
from tests.prove.unit import Case, Unit

AREAS = (
    "airflow_kills",
    "chaos",
    "compose",
    "ddl",
    "exactly_once",
    "kills",
    "long",
    "newcomer",
    "open_transaction",
    "seams",
    "soak",
    "turso_network",
    "verify",
)
_console = Console(stderr=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named areas, all without a name; return 1 if one found something wrong."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    asked = [name.replace("-", "_") for name in chosen.areas if name != "all"]
    unknown = sorted(set(asked) - set(AREAS))
    if unknown:
        parser.error(f"unknown area {unknown[0]!r} (known: all, {', '.join(AREAS)})")
    if chosen.hours is not None:
        if asked and "soak" not in asked:
            parser.error("--hours says how long soak goes on; name that area, too")
        os.environ[HOURS] = str(chosen.hours)
    try:
        reports, units = prepared(
            asked or AREAS, chosen.seeds, chosen.only, chosen.directory, resume=chosen.resume
        )
    except ValueError as error:
        parser.error(str(error))
    if chosen.forecast or not units:
        show_forecast(units, chosen.jobs)
        return 0
    return run(reports, units, chosen.jobs)


def prepared(
    names: Collection[str],
    seeds: int | None,
    only: Sequence[str],
    directory: Path = DIRECTORY,
    *,
    resume: bool,
) -> tuple[dict[str, Report], list[Unit]]:
    """Return the areas' reports, and the units that are to be run for them.

    Raises:
        ValueError: what is to be resumed was made with other code.
    """
    reports, units = {}, []
    for name in names:
        area = importlib.import_module(f"tests.prove.{name}")
        count = seeds_of(area, seeds)
        every = area.units(count)
        mine = [u for u in every if not only or any(part in f"{name}/{u.name}" for part in only)]
        if not mine:
            continue
        reports[name] = Report(
            name,
            count,
            [case for unit in mine for case in unit.cases],
            directory,
            whole=len(mine) == len(every) and count >= area.SEEDS,
            resume=resume,
            lacks=getattr(area, "lacking", lambda _: []),
        )
        units += units_missing(mine, reports[name])
    return reports, units


def seeds_of(area: ModuleType, asked: int | None) -> int:
    """Return how many seeds an area runs; one that needs a single run has no more."""
    whole: int = area.SEEDS
    return whole if asked is None or whole == 1 else asked


def run(reports: Mapping[str, Report], units: Sequence[Unit], jobs: int) -> int:
    """Run units, show how far they are, and return 1 if one found something wrong."""
    directory = Path(tempfile.mkdtemp(prefix="deltaforge-prove-"))
    clock = time.monotonic()
    wrong: list[str] = []
    signal.signal(signal.SIGTERM, _interrupt)
    columns = (
        TextColumn("{task.completed:.0f} of {task.total:.0f}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    total = sum(len(unit.cases) for unit in units)
    with Progress(*columns, console=_console) as bar:
        task = bar.add_task("", total=total)

        def add(unit: Unit, case: Case) -> None:
            reports[unit.area].add(case)
            if case["result"] == "wrong":
                wrong.append(f"{unit.area} {unit.name}")
            bar.advance(task)
            if not _console.is_terminal:
                seconds = time.monotonic() - clock
                words = f"{seconds:6.0f} s  {unit.area} {unit.name}: {case['result']}"
                _console.print(words, markup=False, highlight=False, soft_wrap=True)

        def told(text: str) -> None:
            bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

        pool = Pool(jobs, directory, add, told)

        def watch() -> None:
            left = f"about {pool.remaining_s() / 60:.0f} min left; {', '.join(pool.running())}"
            bar.update(task, description=left[:100])

        try:
            pool.run(units, watch)
        except KeyboardInterrupt:
            _console.print("interrupted; go on with --resume")
            return 130
    _summary(reports, time.monotonic() - clock)
    if wrong:
        _console.print(f"{len(wrong)} cases did not hold; their files are in {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if wrong else 0


def show_forecast(units: Sequence[Unit], jobs: int) -> None:
    """Print what is to be run, and about how long it takes on a quiet machine of two cores."""
    table = Table("area", "kind", "units", "seconds each", "minutes together")
    kinds: dict[tuple[str, str], list[Unit]] = {}
    for unit in units:
        kinds.setdefault((unit.area, unit.kind), []).append(unit)
    for (area, kind), mine in kinds.items():
        seconds = sum(unit.seconds for unit in mine)
        each = f"{seconds / len(mine):.0f}"
        table.add_row(area, kind, str(len(mine)), each, f"{seconds / 60:.1f}")
    whole = sum(unit.seconds for unit in units) / 60
    Console().print(table)
    print(f"{len(units)} units, about {whole / jobs:.0f} minutes with {jobs} jobs")


def _summary(reports: Mapping[str, Report], seconds: float) -> None:
    table = Table("area", "cases", "wrong", "complete", "file")
    for name, report in reports.items():
        wrong = sum(case["result"] == "wrong" for case in report.cases)
        cells = (str(len(report.cases)), str(wrong), "yes" if report.complete else "no")
        table.add_row(name, *cells, str(report.path))
    _console.print(table)
    _console.print(f"{seconds / 60:.1f} minutes")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev.sh prove", description=__doc__)
    parser.add_argument("areas", nargs="*", metavar="area", help=f"all, or of {', '.join(AREAS)}")
    parser.add_argument(
        "--seeds",
        type=_positive,
        metavar="n",
        help="runs of each case; without it as many as make each proof complete",
    )
    parser.add_argument(
        "--jobs",
        type=_positive,
        default=(os.cpu_count() or 2) + 1,
        metavar="n",
        help="how many run at once (cores and one more: most of them wait for servers)",
    )
    parser.add_argument(
        "--hours",
        type=_hours,
        metavar="n",
        help=f"how long soak goes on (a quarter of one; its proof takes {WHOLE_HOURS:g}, with "
        "--jobs 1)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="text",
        help="only units whose area/name holds this, such as turso or mysql/spark; repeatable",
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep the good cases of an interrupted run"
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=DIRECTORY,
        metavar="path",
        help="where the result files go; for trials",
    )
    parser.add_argument(
        "--forecast", action="store_true", help="only say what would be run, and how long"
    )
    return parser


def _interrupt(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


def _hours(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError("more than 0")
    return number


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
