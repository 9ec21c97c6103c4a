"""A supervised stream under a real Airflow, when something dies or somebody acts."""

import contextlib
import shutil
import tempfile
from itertools import groupby
from pathlib import Path

from rich.console import Console

from tests.airflow.service.cases import Chain, cases_of
from tests.airflow.service.drivers import KINDS
from tests.airflow.service.stage import stage
from tests.prove.report import Report
from tests.servers import postgres


def prove(seeds: int, report: Report) -> bool:
    """Run every case, one after the other in one Airflow; say whether all held."""
    asked = [
        (seed, driver, name)
        for seed in range(seeds)
        for driver in KINDS
        for name in cases_of(driver)
        if report.wants(f"{driver}/{name}", driver=driver, case=name, seed=seed)
    ]
    directory = Path(tempfile.mkdtemp(prefix="deltaforge-airflow-kills-"))
    console = Console()
    wrong = 0
    metadata = postgres.start(directory / "postgres")
    with contextlib.ExitStack() as ending:
        ending.callback(metadata.stop)
        shared = ending.enter_context(stage(directory, metadata))
        for (seed, driver), cases in groupby(asked, lambda one: one[:2]):
            chain = Chain(shared, f"{driver}-{seed}")
            try:
                for _, _, name in cases:
                    result = chain.run(name)
                    report.add({**result.as_dict(), "driver": driver, "seed": seed})
                    wrong += bool(result.wrong)
                    words = f"{driver}, {name}: {result.result}, {result.seconds} s"
                    console.print(words, *result.wrong, sep="\n  ", markup=False)
            finally:
                chain.end()
    report.write(complete=True)
    if wrong:
        console.print(f"kept in {directory}", markup=False)
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return not wrong
