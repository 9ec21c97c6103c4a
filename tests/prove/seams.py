"""From snapshot to stream under load: each row once, then each later change once.

- ``hand_over``: writers hammer through the whole hand-over, and the seed draws where the driver is
  killed in it, if at all, and into what kind of sink it delivers. The oracle wants nothing lost, no
  change that the row's copy had shown and, where delivery is exactly once, nothing twice. Files are
  at least once: after a kill inside a chunk only losses count. So they do where rows are read at a
  standby of PostgreSQL, which is allowed to repeat.
- ``copies``: copies that are asked for beside the stream, with kills in every other one. Each row
  comes once in each copy, as the log has left it there.
- ``orders``: copies and their log, joined as the product does it and in the customary orders, which
  the same oracle has to find wrong (``seam_orders``).
- ``readers``: consumers that apply events blindly end equal to the tables at random moments
  (``blind_readers``).
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from tests.engine.exact_run import PLACES
from tests.prove import blind_readers
from tests.prove.hand_over_rounds import FILES, SERVERS, SOURCES, FileTables, Tables
from tests.prove.hand_over_run import FILE, OF_COPIES, SINKS, HandOverRun, Hold
from tests.prove.unit import Case, Task, Unit

SEEDS = 200
ROUND = 10
"""Seeds of one round."""
SINGLE_SERVERS = ("mysql", "mariadb", "postgres")
"""Whose orders and readers are shown, for one of ``_RARE`` seeds."""
OWN = tuple(source for source in SOURCES if source not in ("mysql replica", "postgres standby"))
"""Sources whose rows are read where the log is."""
BESIDE = OWN
"""Sources whose copies join a stream; from another server's rows they let it wait."""
KILLS = (
    None,
    CrashPoint.SNAPSHOT_STARTED,
    CrashPoint.CHUNK_RENDERED,
    CrashPoint.CHUNK_WRITTEN,
    CrashPoint.CHUNK_STORED,
    CrashPoint.SNAPSHOT_FINISHED,
    CrashPoint.START_POSITION_STORED,
    CrashPoint.BATCH_RENDERED,
    CrashPoint.SINK_WRITTEN,
    CrashPoint.CHECKPOINT_STORED,
)
_OFTEN = {*KILLS[2:5], *KILLS[7:]}
"""Crash points that a hand-over passes more than once."""
_FEWER = 4
"""Copies beside a stream, and from replicas, have one of so many seeds."""
_RARE = 40
_LIMIT_S = 900.0
_SECONDS = {"hand_over": 5.0, "copies": 9.0}
"""Rough: the pool corrects them by what it sees."""


def units(seeds: int) -> list[Unit]:
    """Return everything that is to be played."""
    fewer = -(-seeds // _FEWER)
    return [
        *(
            _round("hand_over", source, at)
            for source in SOURCES
            for at in _rounds(seeds if source in OWN else fewer)
        ),
        *(_round("copies", source, at) for source in BESIDE for at in _rounds(fewer)),
        *(
            unit
            for seed in range(0, seeds, _RARE)
            for source in SINGLE_SERVERS
            for unit in (_orders(source, seed), _readers(source, seed))
        ),
    ]


def _rounds(seeds: int) -> list[range]:
    return [range(first, min(first + ROUND, seeds)) for first in range(0, seeds, ROUND)]


def lacking(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return where no driver was killed, and into which sinks none delivered."""
    names = [str(where and where.value) for where in KILLS]
    wanted = {("hand_over", s, "kill", name) for s in SOURCES for name in names}
    wanted |= {("copies", s, "kill", name.value) for s in BESIDE for name in OF_COPIES}
    wanted |= {("hand_over", s, "sink", sink) for s in SOURCES for sink in SINKS}
    shown = {
        (case["part"], case["source"], about, case[about])
        for case in cases
        for about in ("kill", "sink")
        if about in case
    }
    return [" ".join(each) for each in sorted(wanted - shown)]


def run(task: Task) -> None:
    """Play one round of hand-overs."""
    source = task.cases[0]["source"]
    number = task.cases[0]["seed"] // ROUND
    if source in FILES:
        for case in task.cases:
            with FileTables(task, source, number) as tables:
                _judge(task, tables, [_played(tables, case)])
        return
    with Tables(task, source, number) as tables:
        _judge(task, tables, [_played(tables, case) for case in task.cases])


class _Play:
    """What came of one pipeline, until it is judged."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.run: HandOverRun | None = None
        self.seconds = 0.0
        self.error: str | None = None


def _played(tables: Tables | FileTables, case: Case) -> _Play:
    began, play = time.monotonic(), _Play(case)
    try:
        play.run = tables.run(case)
        _PARTS[case["part"]](play.run, case, tables.work)
    except Exception as error:  # noqa: BLE001 - one case's end is a result
        play.error = f"{type(error).__name__}: {error}"[-3000:]
    finally:
        if play.run is not None:
            play.run.abandon()
    play.seconds = time.monotonic() - began
    return play


def _hand_over(run: HandOverRun, case: Case, work: Callable[[], None]) -> None:
    hold = _hold(case)
    run.drive(hold)
    if hold is not None:
        run.kill_held(work)
        work()
        run.drive()
    run.wait_streaming(work)
    run.end_driver()


def _copies(run: HandOverRun, case: Case, work: Callable[[], None]) -> None:
    run.drive()
    run.wait_streaming(work)
    run.copy_beside([None, _hold(case)], work)
    run.end_driver()


_PARTS: dict[str, Callable[[HandOverRun, Case, Callable[[], None]], None]] = {
    "hand_over": _hand_over,
    "copies": _copies,
}


def _judge(task: Task, tables: Tables | FileTables, plays: Sequence[_Play]) -> None:
    for play in plays:
        result: dict[str, Any] = {"wrong": []}
        try:
            if play.error is not None or play.run is None:
                result["wrong"] = [play.error or "nothing was played"]
            else:
                hold = _hold(play.case)
                result["wrong"] = play.run.wrong(tables.history(), hold[0] if hold else None)
                result["inexact"] = play.run.inexact
                play.run.place.clear()
        except Exception as error:  # noqa: BLE001 - one case's end is a result
            result["wrong"] = [f"{type(error).__name__}: {error}"[-3000:]]
        result["result"] = "wrong" if result["wrong"] else "ok"
        task.add({**play.case, "seconds": round(play.seconds, 1), **result})


def _hold(case: Case) -> Hold | None:
    where = case["kill"]
    return None if where == "None" else (CrashPoint(where), case["crossing"])


def _round(part: str, source: str, seeds: range) -> Unit:
    on_file = source in FILES
    number = SOURCES.index(source)
    kills = KILLS if part == "hand_over" else OF_COPIES
    cases = [_case(part, source, seed, kills[(seed + number) % len(kills)]) for seed in seeds]
    return Unit(
        area="seams",
        name=f"{part}/{source}/{seeds.start}",
        run=f"{__name__}:run",
        cases=cases,
        kind=f"{part} {source}",
        seconds=_SECONDS[part] * len(seeds),
        limit_s=_LIMIT_S,
        servers=tuple(PLACES) if on_file else (*PLACES, SERVERS[source]),
    )


def _case(part: str, source: str, seed: int, where: CrashPoint | None) -> Case:
    drawn = random.Random(f"{part}/{source}/{seed}")
    turn = seed + seed // ROUND
    sinks = SINKS if part == "hand_over" else tuple(kind for kind in SINKS if kind != FILE)
    return {
        "part": part,
        "source": source,
        "seed": seed,
        "kill": str(where and where.value),
        "crossing": drawn.randint(1, 4) if where in _OFTEN else 1,
        "sink": sinks[turn % len(sinks)],
    }


def _orders(source: str, seed: int) -> Unit:
    return Unit(
        area="seams",
        name=f"orders/{source}/{seed}",
        run="tests.prove.seam_orders:run",
        cases=[{"part": "orders", "source": source, "seed": seed}],
        kind="orders",
        seconds=60,
        limit_s=_LIMIT_S,
        servers=(source,),
    )


def _readers(source: str, seed: int) -> Unit:
    where, crossing = blind_readers.KILLS[seed // _RARE % len(blind_readers.KILLS)]
    case = {"part": "readers", "source": source, "seed": seed}
    return Unit(
        area="seams",
        name=f"readers/{source}/{seed}",
        run="tests.prove.blind_readers:run",
        cases=[{**case, "kill": where.value, "crossing": crossing}],
        kind="readers",
        seconds=90,
        limit_s=_LIMIT_S,
        servers=(*PLACES, source),
    )
