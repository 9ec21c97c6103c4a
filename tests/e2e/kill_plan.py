"""Which seed of a chain of kills dies where: at random, and everywhere within twenty seeds."""

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from tests.e2e.exact_kills import OF_BATCHES, Kill
from tests.engine.spark_kills import Victim, possible

SEEDS = 20
"""After so many, every crash point and every victim was there."""
OF_CHUNKS = (CrashPoint.CHUNK_RENDERED, CrashPoint.CHUNK_WRITTEN, CrashPoint.CHUNK_STORED)
OF_SNAPSHOTS = (CrashPoint.SNAPSHOT_STARTED, *OF_CHUNKS, CrashPoint.SNAPSHOT_FINISHED)
OF_STREAMS = (*OF_BATCHES, CrashPoint.SCHEMA_REGISTERED)
OF_REQUESTS = (CrashPoint.REQUEST_RECORDED, CrashPoint.REQUEST_REMOVED)
BORDERS = (CrashPoint.START_POSITION_STORED, *OF_SNAPSHOTS, *OF_STREAMS, *OF_REQUESTS)
VICTIMS = {
    "process": (Victim.PROCESS,),
    "spark": (Victim.WORKER, Victim.JVM, Victim.APPLICATION, Victim.EXECUTOR),
}
"""Who dies, by place: without Spark, and on it."""

_STARTS = (Victim.JVM, Victim.APPLICATION, Victim.WORKER)
"""The first seeds on Spark have no snapshot: who dies where their stream has begun."""
_LOCAL = 15
"""Seeds of one JVM; those after them run on a cluster, of which executors die."""
_ON_CLUSTER = (
    CrashPoint.SNAPSHOT_STARTED,
    CrashPoint.SNAPSHOT_FINISHED,
    *OF_REQUESTS,
    CrashPoint.START_POSITION_STORED,
)
"""What a seed on the cluster begins with: a hold in the application is read when it starts."""


@dataclass
class Plan:
    """The kills of one chain, in turn."""

    snapshot: bool = True
    """Whether the pipeline begins with a copy of its tables."""
    cluster: bool = False
    kills: list[Kill] = field(default_factory=list)


def planned(source: str, place: str, seed: int) -> Plan:
    """Return what a seed does: the same at every time."""
    chance = random.Random(f"{source}/{place}/{seed}")
    if place == "process":
        return _of_processes(seed % SEEDS, chance)
    if seed % SEEDS < _LOCAL:
        return _of_one_jvm(source, seed % SEEDS, chance)
    return _of_executors(seed % SEEDS - _LOCAL, chance)


def cells(place: str) -> set[tuple[str, str]]:
    """Return every crash point and victim that the seeds of a place have to show."""
    return {
        (crash_point.value, victim.value)
        for crash_point in BORDERS
        for victim in VICTIMS[place]
        if possible(crash_point, victim)
    }


def shown(kills: Collection[str]) -> set[tuple[str, str]]:
    """Return the crash points and victims of kills as their chains tell them."""
    return {(where.partition(":")[0], who) for where, who in (kill.split(" ", 1) for kill in kills)}


def _of_processes(seed: int, chance: random.Random) -> Plan:
    """Every kill here is a new start, so any order that the pipeline can cross will do."""
    plan = Plan(snapshot=seed % 5 != 4)
    if plan.snapshot:
        # Each crash point in three seeds of five, however the rest falls.
        first = [crash_point for at, crash_point in enumerate(OF_SNAPSHOTS) if (at + seed) % 5 < 3]
    else:
        first = [CrashPoint.START_POSITION_STORED]
    later = [*chance.sample(OF_STREAMS, 2), OF_STREAMS[seed % len(OF_STREAMS)]]
    chance.shuffle(later)
    crash_points = [*first, *dict.fromkeys(later), OF_REQUESTS[seed % 2]]
    plan.kills = list(_crossed(((each, Victim.PROCESS) for each in crash_points), chance))
    return plan


def _of_one_jvm(source: str, seed: int, chance: random.Random) -> Plan:
    """Up to two kills that take the JVM along, and workers between them.

    A hold in the application is read when it starts, so none stands behind a worker's kill.
    """
    early = [(crash_point, victim) for crash_point in OF_SNAPSHOTS for victim in _STARTS[:2]]
    late = [(b, v) for b in (*OF_STREAMS, *OF_REQUESTS) for v in _STARTS[:2]]
    random.Random(f"{source}/early").shuffle(early)
    random.Random(f"{source}/late").shuffle(late)
    plan = Plan(snapshot=seed >= len(_STARTS))
    last = late[seed] if seed < len(late) else None
    kills: list[tuple[CrashPoint, Victim]] = []
    if not plan.snapshot:
        kills.append((CrashPoint.START_POSITION_STORED, _STARTS[seed]))
    elif seed - len(_STARTS) < len(early):
        kills.append(early[seed - len(_STARTS)])
    chunk = OF_CHUNKS[seed % len(OF_CHUNKS)]
    if plan.snapshot and (not kills or kills[0][0] in OF_SNAPSHOTS[:2]):
        kills.append((chunk, Victim.WORKER))
    workers = [
        (crash_point, Victim.WORKER)
        for crash_point in dict.fromkeys([OF_STREAMS[seed % 5], *chance.sample(OF_STREAMS, 2)])
    ]
    if last is None:
        kills += workers
    elif last[0] in OF_REQUESTS:
        # The application that is held must have started behind the kill before.
        if kills[-1][1] is Victim.WORKER:
            kills.append((chance.choice(OF_BATCHES), chance.choice(_STARTS[:2])))
        kills += [last, *workers]
    else:
        kills += [*[each for each in workers if each[0] is not last[0]], last]
    plan.kills = list(_crossed(kills, chance))
    return plan


def _of_executors(number: int, chance: random.Random) -> Plan:
    first = _ON_CLUSTER[number]
    plan = Plan(snapshot=first is not CrashPoint.START_POSITION_STORED, cluster=True)
    before = [] if first is not CrashPoint.SNAPSHOT_STARTED else list(OF_CHUNKS)
    later = [OF_STREAMS[number], *chance.sample(OF_STREAMS, 1)]
    crash_points = [first, *before, *dict.fromkeys(later)]
    plan.kills = list(_crossed(((each, Victim.EXECUTOR) for each in crash_points), chance))
    return plan


def _crossed(
    places: Collection[tuple[CrashPoint, Victim]] | Iterator[tuple[CrashPoint, Victim]],
    chance: random.Random,
) -> Iterator[Kill]:
    """Yield kills with the crossing at which each happens."""
    for crash_point, victim in places:
        again = crash_point in OF_BATCHES
        yield Kill(crash_point, chance.randint(1, 8) if again else 1, victim)
