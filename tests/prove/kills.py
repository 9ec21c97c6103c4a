"""Kills at every crash point, in chains: from every source, without Spark and on it.

A chain is one pipeline: a copy first, then its stream, into a file at least once and into Kafka,
Redis and NATS exactly once. Its seed draws where it is killed, at which crossing, and who dies.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.e2e.exact_sources import SERVERLESS, SHOPS
from tests.e2e.kill_chain import run_kill_chain
from tests.e2e.kill_plan import SEEDS, VICTIMS, cells, planned, shown
from tests.engine.exact_run import PLACES
from tests.prove.unit import Task, Unit

_START_S = {"process": 12.0, "spark": 20.0, "cluster": 32.0}
_KILL_S = {"process": 2.5, "spark": 5.0, "cluster": 7.0}
_RESTART_S = 12.0
"""Rough: the pool corrects them by what it sees."""
_LIMIT_S = {"process": 600.0, "spark": 1200.0, "cluster": 1200.0}


def units(seeds: int) -> list[Unit]:
    """Return every chain."""
    return [
        _unit(source, place, seed) for seed in range(seeds) for place in VICTIMS for source in SHOPS
    ]


def run(task: Task) -> None:
    """Run one chain."""
    [case] = task.cases
    chain = run_kill_chain(
        case["source"],
        case["place"],
        case["seed"],
        task.home / "run",
        task.started,
        task.servers.cluster,
    )
    task.add({**chain.as_dict(), "victims": sorted({who for _, who in shown(chain.kills)})})


def lacking(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the crash points and victims of each source that no chain has shown."""
    found = []
    for source in SHOPS:
        for place in VICTIMS:
            kills = [
                kill
                for case in cases
                if (case["source"], case["place"]) == (source, place)
                for kill in case["kills"]
            ]
            missing = sorted(cells(place) - shown(kills))
            found += [f"{source} {place}: {crash_point} / {who}" for crash_point, who in missing]
    return found


def _unit(source: str, place: str, seed: int) -> Unit:
    plan = planned(source, place, seed)
    kind = "cluster" if plan.cluster else place
    restarts = sum(kill.victim.value in ("jvm", "application") for kill in plan.kills)
    seconds = _START_S[kind] + _KILL_S[kind] * len(plan.kills) + _RESTART_S * restarts
    shared = [*PLACES, *([] if source in SERVERLESS else [source])]
    return Unit(
        area="kills",
        name=f"{source}/{place}/{seed}",
        run=f"{__name__}:run",
        cases=[{"source": source, "place": place, "seed": seed}],
        kind=f"{source} {kind}",
        seconds=seconds,
        limit_s=_LIMIT_S[kind],
        servers=tuple(shared + ["cluster"] * plan.cluster),
    )


__all__ = ["SEEDS", "lacking", "run", "units"]
