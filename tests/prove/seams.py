"""From snapshot to stream under load: each row once, then each later change once.

- ``hand_over``: writers hammer through the whole hand-over, and the seed draws where the driver is
  killed in it, if at all. The oracle wants nothing lost, no change that the row's copy had shown
  and, into Kafka with ``exactly_once``, no row copied twice. Files are at least once: after a kill
  inside a chunk only losses count.
- ``orders``: copies and their log, joined as the product does it and in the customary orders, which
  the same oracle has to find wrong (``seam_orders``).
- ``readers``: consumers that apply events blindly end equal to the tables at random moments
  (``blind_readers``).
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from tests.e2e import pipeline_run, postgres_run, postgres_shop, shop
from tests.e2e.pipeline_run import PipelineRun, end_drivers
from tests.engine.exact_run import PLACES
from tests.engine.scripted_run import kill
from tests.prove import blind_readers
from tests.prove.unit import Case, Task, Unit
from tests.servers.process import Server
from tests.sources.turso.shop_run import ShopRun

SEEDS = 10
SERVERS = ("mysql", "mariadb", "postgres")
FILES = ("turso native", "turso triggers")
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
_REPEATING = {where.value for where in KILLS[2:5] if where}
"""Killed there, a driver leaves in a file rows of chunks that the next one copies again."""
_LIMIT_S = 900.0
_BESIDE_S = 4.0


def units(seeds: int) -> list[Unit]:
    """Return everything that is to be played."""
    return [
        unit
        for seed in range(seeds)
        for unit in (
            *(_unit(source, seed) for source in (*SERVERS, *FILES)),
            *(_orders(source, seed) for source in SERVERS if not seed % 2),
            *(_readers(source, seed) for source in SERVERS if not seed % 2),
        )
    ]


def lacking(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return where no driver of a source was killed."""
    wanted = {(s, str(k and k.value)) for s in (*SERVERS, *FILES) for k in KILLS}
    shown = {(case["source"], case["kill"]) for case in cases if case["part"] == "hand_over"}
    return [f"{source}: killed at {where}" for source, where in sorted(wanted - shown)]


def run(task: Task) -> None:
    """Play one hand-over."""
    [case] = task.cases
    began = time.monotonic()
    try:
        found = _files(task, case) if case["source"] in FILES else _servers(task, case)
    except Exception as error:  # noqa: BLE001 - one case's end is a result
        found = {"wrong": [f"{type(error).__name__}: {error}"[:2000]]}
    finally:
        end_drivers()
    result = "wrong" if found["wrong"] else "ok"
    task.add({**case, "seconds": round(time.monotonic() - began, 1), "result": result, **found})


def _unit(source: str, seed: int) -> Unit:
    number = seed + (*SERVERS, *FILES).index(source)
    where = KILLS[number % len(KILLS)]
    drawn = random.Random(f"{source}/{seed}")
    case: Case = {
        "part": "hand_over",
        "source": source,
        "seed": seed,
        "kill": str(where and where.value),
        "crossing": drawn.randint(1, 4) if where in _OFTEN else 1,
        "parallel": drawn.random() < 0.5,
    }
    on_file = source in FILES
    return Unit(
        area="seams",
        name=f"hand_over/{source}/{seed}",
        run=f"{__name__}:run",
        cases=[case],
        kind="file" if on_file else "server",
        seconds=8 if on_file else 20,
        limit_s=_LIMIT_S,
        servers=() if on_file else ("kafka", source),
    )


def _orders(source: str, seed: int) -> Unit:
    return Unit(
        area="seams",
        name=f"orders/{source}/{seed}",
        run="tests.prove.seam_orders:run",
        cases=[{"part": "orders", "source": source, "seed": seed}],
        kind="orders",
        seconds=25,
        limit_s=_LIMIT_S,
        servers=(source,),
    )


def _readers(source: str, seed: int) -> Unit:
    where, crossing = blind_readers.KILLS[seed // 2 % len(blind_readers.KILLS)]
    case = {"part": "readers", "source": source, "seed": seed}
    return Unit(
        area="seams",
        name=f"readers/{source}/{seed}",
        run="tests.prove.blind_readers:run",
        cases=[{**case, "kill": where.value, "crossing": crossing}],
        kind="readers",
        seconds=30,
        limit_s=_LIMIT_S,
        servers=(*PLACES, source),
    )


def _hold(case: Case) -> tuple[CrashPoint, int] | None:
    where = case["kill"]
    return None if where == "None" else (CrashPoint(where), case["crossing"])


def _servers(task: Task, case: Case) -> dict[str, Any]:
    name = f"seam_{case['source']}_{case['seed']}"
    opened, writers = _PIPELINES[case["source"]]
    server = task.started[case["source"]]
    kafka, once = task.started["kafka"], {"exactly_once": True}
    with opened(task.home, server, kafka, name, parallel=case["parallel"], sink=once) as run:
        with writers(server, name):
            time.sleep(0.5)
            hold = _hold(case)
            driver = run.start(hold=hold)
            if hold is not None:
                kill(run.wait_held())
                driver.wait()
                driver = run.start()
            run.wait_status("running")
            time.sleep(_BESIDE_S)
        run.wait_caught_up()
        code = run.stop(driver)
        wrong = run.judge(each_row_once=True)
        copies = Counter(event.key for event in run.seen() if event.name is None)
        wrong += [f"copied twice: {key}" for key, count in copies.items() if count > 1][:5]
        wrong += [f"the driver ended with {code}"] if code else []
        return {"left_out": _left_out(run), "wrong": wrong}


def _left_out(run: PipelineRun) -> int:
    """Return how many changes did not follow, because a copy had shown them."""
    record = Snapshots(run.store, run.name).current()
    assert record is not None
    arrived = {event.name for event in run.seen()}
    truth = run.history(record.start_position)
    return sum(change.name not in arrived for change in truth)


@contextmanager
def _mysql(
    home: Path, server: Server, kafka: Server, name: str, **settings: Any
) -> Iterator[PipelineRun]:
    yield pipeline_run.run_in(home, server, kafka, name, **settings)


_PIPELINES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "mysql": (_mysql, shop.Writers),
    "mariadb": (_mysql, shop.Writers),
    "postgres": (postgres_run.run_in, postgres_shop.Writers),
}


def _files(task: Task, case: Case) -> dict[str, Any]:
    home = task.home / "run"
    home.mkdir()
    run = ShopRun(home, mode=case["source"].split()[1], snapshot="initial")
    run.shop.trade(60)
    run.shop.untriggered = len(run.shop.history)
    run.source.head()  # Makes the triggers, whose count begins here.
    hold = _hold(case)
    driver = run.start(hold=hold)
    if hold is not None:
        while not (run.held.exists() and run.held.read_text()):
            run.shop.trade(2)
            if driver.poll() is not None:
                raise AssertionError(run.log.read_text()[-2000:])
        kill(run.wait_held(driver))
        driver.wait()
        run.shop.trade(20)
        driver = run.start()
    for _ in range(40):
        run.shop.trade(2)
        time.sleep(0.02)
    run.wait_caught_up(driver)
    code = run.stop(driver)
    once = case["kill"] not in _REPEATING
    wrong = run.verdict(run.first_position(), each_row_once=once)
    run.shop.close()
    return {"wrong": wrong + ([f"the driver ended with {code}"] if code else [])}
