"""Every crash point of a stream into every sink that delivers exactly once, from every source.

With all sinks there, and with one of them away for a while. ``kills`` has the same sinks on Spark.
"""

from tests.e2e.exact_shop import run_chain
from tests.e2e.exact_sources import SERVERLESS, SHOPS
from tests.engine.exact_run import PLACES
from tests.prove.unit import Task, Unit

SEEDS = 20
_SECONDS = {"plain": 18.0, "behind": 32.0}
"""Rough: alone on a quiet machine of two cores chains over MySQL took 14 and 29."""


def units(seeds: int) -> list[Unit]:
    """Return every chain."""
    return [
        Unit(
            area="exactly_once",
            name=f"{source}/{place}/{seed}",
            run=f"{__name__}:run",
            cases=[{"source": source, "place": place, "seed": seed}],
            kind=f"{source} {place}",
            seconds=seconds,
            limit_s=600,
            servers=(*PLACES, *([] if source in SERVERLESS else [source])),
        )
        for seed in range(seeds)
        for place, seconds in _SECONDS.items()
        for source in SHOPS
    ]


def run(task: Task) -> None:
    """Run one chain."""
    [case] = task.cases
    home = task.home / "run"
    chain = run_chain(case["place"], case["seed"], home, task.started, source=case["source"])
    task.add(chain.as_dict())
