"""A supervised stream under a real Airflow, when something dies or somebody acts."""

import shutil
import tempfile
from pathlib import Path

from rich.console import Console

from tests.airflow.service.cases import CASES, Chain
from tests.airflow.service.stage import stage
from tests.prove.report import Report


def prove(seeds: int, report: Report) -> bool:
    """Run every case, one after the other in one Airflow; say whether all held."""
    directory = Path(tempfile.mkdtemp(prefix="deltaforge-airflow-kills-"))
    console = Console()
    wrong = 0
    with stage(directory) as shared:
        asked = [(seed, name) for seed in range(seeds) for name in CASES]
        chain = Chain(shared)
        for number, (seed, name) in enumerate(asked):
            result = chain.run(name)
            report.add({**result.as_dict(), "seed": seed})
            wrong += bool(result.wrong)
            words = f"{number + 1}/{len(asked)} {name}: {result.result}, {result.seconds} s"
            console.print(words, markup=False)
            for line in result.wrong:
                console.print(f"  {line}", markup=False)
        chain.end()
    report.write(complete=True)
    if wrong:
        console.print(f"kept in {directory}", markup=False)
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return not wrong
