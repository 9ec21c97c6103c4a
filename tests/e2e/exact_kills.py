"""Where a pipeline that delivers exactly once is killed, and who dies."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from tests.engine.spark_kills import Victim

OF_BATCHES = (
    CrashPoint.BATCH_RENDERED,
    CrashPoint.SINK_WRITTEN,
    CrashPoint.CHECKPOINT_STORED,
    CrashPoint.SOURCE_ACKNOWLEDGED,
)
OF_LAGGING = (
    CrashPoint.SINK_LEFT,
    CrashPoint.CAUGHT_UP_WRITTEN,
    CrashPoint.CAUGHT_UP_STORED,
    CrashPoint.SINK_JOINED,
)
"""In the order in which a sink that goes away crosses them."""
VICTIMS = {
    "plain": (Victim.PROCESS,),
    "spark": (Victim.JVM, Victim.WORKER, Victim.APPLICATION),
    "behind": (Victim.PROCESS,),
}
"""Who dies in turn: without Spark, on it, and without it where one sink is away for a while."""
_CROSSINGS = range(1, 9)


@dataclass(frozen=True)
class Kill:
    """Where, at which crossing, and who."""

    crash_point: CrashPoint
    crossing: int
    victim: Victim

    def __str__(self) -> str:
        return f"{self.crash_point.value}:{self.crossing} {self.victim.value}"


def planned(place: str, seed: int, victims: Sequence[Victim] = ()) -> list[Kill]:
    """Return at which crash points and crossings whom a chain kills."""
    chance = random.Random(seed)
    if place == "behind":
        crash_points = [(each, 1) for each in OF_LAGGING]
    else:
        crash_points = [(each, chance.choice(_CROSSINGS)) for each in OF_BATCHES]
        crash_points.append((CrashPoint.SCHEMA_REGISTERED, 1))
        chance.shuffle(crash_points)
    victims = victims or VICTIMS[place]
    return [
        Kill(crash_point, crossing, victims[(seed + number) % len(victims)])
        for number, (crash_point, crossing) in enumerate(
            [(CrashPoint.START_POSITION_STORED, 1), *crash_points]
        )
    ]
