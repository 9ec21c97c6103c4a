"""A supervised stream under a real Airflow, when something dies or somebody acts."""

import itertools
import shutil
import tempfile
from pathlib import Path

from rich.console import Console

from tests.airflow.service.cases import Chain, cases_of
from tests.airflow.service.drivers import KINDS
from tests.airflow.service.stage import stage
from tests.prove.report import Report


def prove(seeds: int, report: Report) -> bool:
    """Run every case, one after the other in one Airflow; say whether all held."""
    directory = Path(tempfile.mkdtemp(prefix="deltaforge-airflow-kills-"))
    console = Console()
    wrong = 0
    with stage(directory) as shared:
        for seed, driver in itertools.product(range(seeds), KINDS):
            chain = Chain(shared, driver)
            for name in cases_of(driver):
                result = chain.run(name)
                report.add({**result.as_dict(), "seed": seed})
                wrong += bool(result.wrong)
                words = f"{driver}, {name}: {result.result}, {result.seconds} s"
                console.print(words, *result.wrong, sep="\n  ", markup=False)
            chain.end()
    report.write(complete=True)
    if wrong:
        console.print(f"kept in {directory}", markup=False)
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return not wrong
