"""Every persistence border against every victim on Spark, judged by the oracle."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from airflow_provider_deltaforge.engine.borders import Border
from tests.engine.lagging_borders import OF_LAGGARDS, OF_REPLAYS
from tests.engine.scripted_run import ScriptedRun
from tests.engine.spark_kills import ON_SPARK, Cell, Victim, possible, run_cell, stage
from tests.prove.report import Report

_NOT_POSSIBLE = "not possible: the Python application itself crosses this border"


def prove(seeds: int, report: Report) -> bool:
    """Run the matrix over a scripted source; say whether every cell held."""
    return run_matrix(seeds, report)


def run_matrix(seeds: int, report: Report, make: Callable[..., ScriptedRun] = ScriptedRun) -> bool:
    """Run the matrix over any source; say whether every cell held.

    Args:
        seeds: runs of each cell.
        report: gets the cells.
        make: makes the pipeline's run; takes what ``ScriptedRun`` takes.
    """
    directory = Path(tempfile.mkdtemp(prefix="deltaforge-kills-"))
    cells = [
        (seed, victim, border)
        for seed in range(seeds)
        for victim in ON_SPARK
        for border in Border
        # Nothing is refused in the matrix; tests/engine/test_kills.py has a pipeline that does.
        if border not in {Border.DEAD_LETTERS_STORED, *OF_REPLAYS, *OF_LAGGARDS}
        and report.wants(
            f"{border.value}/{victim.value}", border=border.value, victim=victim.value, seed=seed
        )
    ]
    on_cluster = any(victim is Victim.EXECUTOR for _, victim, _ in cells)
    place = stage(directory / "stage") if on_cluster else nullcontext()
    wrong = 0
    columns = (TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn())
    with place as shared, Progress(*columns, TimeRemainingColumn()) as bar:
        task = bar.add_task("kills", total=len(cells))
        for number, (seed, victim, border) in enumerate(cells):
            bar.update(task, description=f"{border.value} / {victim.value}")
            home = directory / f"cell{number}"
            if possible(border, victim):
                cell = run_cell(border, victim, home, shared, seed, make)
            else:
                cell = Cell(border.value, victim.value, seed, result=_NOT_POSSIBLE)
            report.add(cell.as_dict())
            for line in _told(cell, home):
                bar.console.print(line, markup=False)
            wrong += bool(cell.wrong)
            if not cell.wrong:
                shutil.rmtree(home, ignore_errors=True)
            bar.advance(task)
    report.write(complete=True)
    if not wrong:
        shutil.rmtree(directory, ignore_errors=True)
    return not wrong


def _told(cell: Cell, place: Path) -> Iterator[str]:
    if cell.wrong:
        yield f"{cell.border} / {cell.victim} (seed {cell.seed}), kept in {place}:"
        yield from (f"  {line[-2000:]}" for line in cell.wrong)
