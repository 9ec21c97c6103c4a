"""Attacks from outside: sleeping drivers, silent and slow networks, full disks, wrong clocks,
servers that restart, sinks that come back with older data.

The judge knows no log of a server: a single writer's ledger and the table are the truth.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.errors import DeltaForgeError
from tests.chaos import faults, zombies
from tests.chaos.arena import Arena
from tests.prove.unit import Case, Task, Unit
from tests.servers import kafka, nats, redis
from tests.servers.process import Server

SEEDS = 6
"""After so many, every crash point has met every sink that a sleeping driver could write to."""
SOURCES = ("mysql", "postgres", "mariadb")
SINKS = ("kafka", "redis", "nats")
MODES = tuple(f"{sink} {mode}" for mode in ("exactly once", "at least once") for sink in SINKS)
_STARTS: dict[str, Callable[[Path], Server]] = {
    "kafka": kafka.start,
    "nats": nats.start,
    "redis": redis.start,
}
_ZOMBIE_S, _FAULT_S, _LIMIT_S = 16.0, 32.0, 600.0
_BORDERS = (*zombies.OF_COPIES, *zombies.OF_STREAMS)


def units(seeds: int) -> list[Unit]:
    """Return every attack of every seed."""
    return [_unit(case) for seed in range(seeds) for case in cases(seed)]


def cases(seed: int) -> Iterator[Case]:
    """Yield the attacks of a seed: each on another source and sink than in the seed before."""
    number = seed

    def case(attack: str, modes: tuple[str, ...] = MODES, sources: Any = SOURCES) -> Case:
        nonlocal number
        number += 1
        source = sources[(number + seed // len(sources)) % len(sources)]
        return {
            "attack": attack,
            "source": source,
            "sink": modes[number % len(modes)],
            "seed": seed,
        }

    exact = MODES[: len(SINKS)]
    for crash_point in _BORDERS:
        yield case(f"asleep at {crash_point.value}")
    for what in zombies.SILENT:
        yield case(f"asleep with a {what} in flight")
        yield {**case(f"asleep with a {what} in flight"), "sink": MODES[(seed + 3) % len(MODES)]}
    if seed % SEEDS < len(SOURCES):  # So many seeds have each of these with each source.
        for attack in ("half-open source", "slow source", "source killed", "source restarted"):
            yield case(attack)
        for attack in ("sink killed", "sink restarted"):
            yield case(attack)
        yield case("full disk under the store")
        yield case("full disk under the sink", ("file at least once",))
        yield case("clock an hour ahead")
        yield case("clock an hour back")
        number = seed
        yield case("sink comes back with older data", exact)


def run(task: Task) -> None:
    """Run one attack."""
    [case] = task.cases
    began = time.monotonic()
    result, wrong = "ok", []
    try:
        wrong = attacked(case, task.home / "run", task.started)
    except faults.UnavailableError as error:
        result = f"not possible: {error}"
    except (AssertionError, DeltaForgeError, OSError) as error:
        wrong = [f"{type(error).__name__}: {error}"[-3000:]]
    seconds = round(time.monotonic() - began, 1)
    task.add({**case, "result": "wrong" if wrong else result, "wrong": wrong, "seconds": seconds})


def attacked(case: Case, home: Path, servers: dict[str, Server]) -> list[str]:
    """Play one attack and return what it broke."""
    attack, [sink, _, mode] = case["attack"], case["sink"].partition(" ")
    with contextlib.ExitStack() as ending:
        sink_server = servers.get(sink)
        if attack.startswith("sink comes back"):  # Others' data lies in the one that is shared.
            sink_server = _STARTS[sink](home / sink)
            ending.callback(sink_server.stop)
        disk = home / "disk"
        if attack.startswith("full disk"):
            ending.enter_context(faults.small_disk(disk, 1536))
        arena = Arena(
            home,
            snapshot="initial",
            dsn=f"sqlite:///{disk}/state.db" if attack.endswith("the store") else None,
            source=case["source"],
            source_server=servers[case["source"]],
            sink=sink,
            sink_server=sink_server,
            exact=mode == "exactly once",
            heavy=attack.endswith("in flight"),
            proxied=attack in ("half-open source", "slow source"),
            output=disk / "out.jsonl" if attack.endswith("the sink") else Path(),
            seed=case["seed"],
        )
        ending.callback(arena.close)
        return _play(attack, arena, home / sink / "data")


def _play(attack: str, arena: Arena, data: Path) -> list[str]:
    kind, _, what = attack.partition(" at ")
    if kind == "asleep":
        return zombies.frozen_at(arena, CrashPoint(what))
    if attack.startswith("asleep with"):
        return zombies.frozen_in_flight(arena, attack.split()[3])
    source, sink = arena.source_server, arena.sink_server
    plays: dict[str, Callable[[], list[str]]] = {
        "half-open source": lambda: faults.half_open(arena),
        "slow source": lambda: faults.slow(arena),
        "source killed": lambda: faults.restarted(arena, source, gently=False),
        "source restarted": lambda: faults.restarted(arena, source, gently=True),
        "sink killed": lambda: faults.restarted(arena, sink, gently=False),
        "sink restarted": lambda: faults.restarted(arena, sink, gently=True),
        "full disk under the store": lambda: faults.full_disk(
            arena, arena.directory / "disk", of_store=True
        ),
        "full disk under the sink": lambda: faults.full_disk(
            arena, arena.directory / "disk", of_store=False
        ),
        "clock an hour ahead": lambda: faults.wrong_clock(arena, 3600),
        "clock an hour back": lambda: faults.wrong_clock(arena, -3600),
        "sink comes back with older data": lambda: faults.older(arena, sink, data),
    }
    return plays[attack]()


def _unit(case: Case) -> Unit:
    attack, sink = case["attack"], case["sink"].split()[0]
    asleep = attack.startswith("asleep")
    shared = [case["source"]]
    if sink in SINKS and not attack.startswith("sink comes back"):
        shared.insert(0, sink)
    words = f"{attack}/{case['source']}/{case['sink']}".replace(" ", "_")
    return Unit(
        area="chaos",
        name=f"{words}/{case['seed']}",
        run=f"{__name__}:run",
        cases=[case],
        kind="asleep" if asleep else attack,
        seconds=_ZOMBIE_S if asleep else _FAULT_S,
        limit_s=_LIMIT_S,
        servers=tuple(shared),
    )


def lacking(shown: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the attacks for which a machine had not what they need."""
    return [f"{case['attack']}: {case['result']}" for case in shown if case["result"] != "ok"]
