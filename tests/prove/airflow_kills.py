"""A supervised stream under a real Airflow, when something dies or somebody acts."""

from tests.airflow.service.cases import Chain, cases_of
from tests.airflow.service.drivers import KINDS
from tests.airflow.service.stage import stage
from tests.prove.unit import Task, Unit

SEEDS = 1
_CASE_S = {"plain": 15.0, "spark": 24.0, "standalone": 40.0, "standalone-pods": 45.0}
_START_S = 60.0


def units(seeds: int) -> list[Unit]:
    """Return one unit for each kind of driver: its cases share an Airflow and a stream."""
    return [
        Unit(
            area="airflow_kills",
            name=f"{driver}/{seed}",
            run=f"{__name__}:run",
            cases=[{"driver": driver, "case": name, "seed": seed} for name in cases_of(driver)],
            kind=driver,
            seconds=_START_S + _CASE_S[driver] * len(cases_of(driver)),
            limit_s=5400,
            servers=("postgres",),
        )
        for seed in range(seeds)
        for driver in KINDS
    ]


def run(task: Task) -> None:
    """Run the cases that are asked for, one after the other in one Airflow."""
    first = task.cases[0]
    with stage(task.home, task.started["postgres"], first["driver"]) as shared:
        chain = Chain(shared, f"{first['driver']}-{first['seed']}")
        try:
            for case in task.cases:
                task.add({**chain.run(case["case"]).as_dict(), **case})
        finally:
            chain.end()
