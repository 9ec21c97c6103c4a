"""Consumers that apply events as they come, and know nothing of ids, positions or copies.

They are written apart from the oracle: a dictionary by table and key, set or deleted. At random
moments the writers pause, the sinks are waited for, and each dictionary must be the tables.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from tests.e2e.exact_kills import Kill
from tests.e2e.exact_shop import ExactShop
from tests.e2e.exact_sources import SHOPS
from tests.engine.scripted_run import Driver, kill
from tests.engine.spark_kills import Victim, end_family
from tests.oracle import mysql_history, postgres_history
from tests.prove.hot_tables import HotTables
from tests.prove.unit import Task
from tests.servers.process import Server

MOMENTS = 20
KILLS = (
    (CrashPoint.CHUNK_RENDERED, 2),
    (CrashPoint.CHUNK_WRITTEN, 1),
    (CrashPoint.CHUNK_STORED, 2),
    (CrashPoint.SINK_WRITTEN, 2),
    (CrashPoint.CHUNK_WRITTEN, 3),
    (CrashPoint.SNAPSHOT_FINISHED, 1),
    (CrashPoint.BATCH_RENDERED, 3),
    (CrashPoint.CHECKPOINT_STORED, 2),
)
_PAUSE_S = 0.03
"""Of each writer between two transactions: all that came is read again at each moment."""
_WHOLE = ("kafka", "redis", "nats")
"""They take chunks whole, so that no kill repeats a copied row."""


class HotShop:
    """Hot tables as the shop of a pipeline."""

    def __init__(self, kind: str, server: Server | None, _: float, directory: Path) -> None:
        assert server is not None
        number = int(time.time() * 1000) % 10**9
        self.tables = HotTables(kind, server, f"blind_{number}", _PAUSE_S)
        self.type = "postgres" if self.tables.is_postgres else "mysql"
        history = postgres_history if self.tables.is_postgres else mysql_history
        self.name_of = history.name_of
        settings = {**self.tables.settings}
        if self.tables.is_postgres:
            settings["start_position"] = "latest"
        self.settings = json.dumps(settings)[1:-1]
        self.writers = self

    @property
    def transactions(self) -> int:
        """How many were committed."""
        return self.tables.transactions

    def __enter__(self) -> "HotShop":
        self.tables.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.tables.end()

    def widen(self) -> None:
        """Nothing: the tables stay as they are."""

    def changes(self, start: Mapping[str, Any]) -> list[Any]:
        """Return every change after a position."""
        return self.tables.history(dict(start))

    def rows(self) -> dict[Any, Any]:
        """Return every row as it is now."""
        return self.tables.rows()

    def settle(self) -> None:
        """Let the last commit reach the log."""
        time.sleep(0.1)

    def close(self) -> None:
        """Let the server forget everything."""
        self.tables.close()


def applied(events: Iterable[bytes]) -> dict[Any, Any]:
    """Return what a consumer holds that does what each event says."""
    held: dict[Any, Any] = {}
    for text in events:
        former, key, row = keys_of(json.loads(text))
        held.pop(former, None)
        held.pop(key, None)
        if row is not None:
            held[key] = row
    return held


def keys_of(event: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return the key that an event's row had before, the one it has, and the row; None if gone."""
    source, before, after = event["source"], event["before"], event["after"]
    names = (source["db"], source.get("schema"), source["table"])
    table = ".".join(name for name in names if name)
    key = table, (after or before)["id"]
    return ((table, before["id"]) if before else key), key, after


def copied_twice(events: Iterable[bytes]) -> list[Any]:
    """Return the keys of rows that came more than once as copies."""
    copies = (event for event in map(json.loads, events) if event["op"] == "r")
    keys = Counter((event["source"]["table"], event["after"]["id"]) for event in copies)
    return [key for key, count in keys.items() if count > 1]


def run(task: Task) -> None:
    """Play one pipeline into all sinks that deliver exactly once."""
    [case] = task.cases
    began = time.monotonic()
    kind = f"hot {case['source']}"
    SHOPS[kind] = partial(HotShop, case["source"])
    servers = {**task.started, kind: task.started[case["source"]]}
    home = task.home / "run"
    home.mkdir()
    pipeline = ExactShop(home, servers=servers, source=kind, snapshot="initial")
    drivers: list[Driver] = []
    try:
        wrong = _played(pipeline, drivers, case)
    except Exception as error:  # noqa: BLE001 - one case's end is a result
        wrong = [f"{type(error).__name__}: {error}"[:2000]]
    finally:
        for driver in drivers:
            end_family(driver)
        pipeline.close()
    seconds = round(time.monotonic() - began, 1)
    result = {"moments": MOMENTS, "wrong": wrong, "result": "wrong" if wrong else "ok"}
    task.add({**case, "seconds": seconds, **result})


def _played(pipeline: ExactShop, drivers: list[Driver], case: Mapping[str, Any]) -> list[str]:
    chance, wrong = random.Random(f"{case['source']}/{case['seed']}"), []
    where = Kill(CrashPoint(case["kill"]), case["crossing"], Victim.PROCESS)
    pipeline.hold_next(where)
    drivers.append(pipeline.driven())
    kill(pipeline.wait_held(drivers[-1]))
    drivers[-1].wait()
    pipeline.hold_next(None)
    drivers.append(pipeline.driven())
    while len(pipeline.checkpoints()) < len(pipeline.ids):
        time.sleep(0.05)
    shop = pipeline.shop
    assert isinstance(shop, HotShop)
    for moment in range(MOMENTS):
        time.sleep(chance.uniform(0.02, 0.2))
        with shop.tables.paused():
            pipeline.wait_moved(drivers[-1])
            rows = shop.rows()
            for kind, place in pipeline.places.items():
                held = applied(place.read())
                if held != rows:
                    other = [key for key in {*held, *rows} if held.get(key) != rows.get(key)]
                    wrong.append(f"{kind} at moment {moment}: {len(other)} rows, {other[:3]}")
    pipeline.finish(drivers[-1])
    code = pipeline.stop(drivers[-1])
    truth = shop.changes(pipeline.began() or {})
    wrong += [line for kind in pipeline.ids for line in pipeline.wrong(kind, truth)]
    for kind in _WHOLE:
        if keys := copied_twice(pipeline.places[kind].read()):
            wrong.append(f"{kind}: {len(keys)} rows were copied twice, such as {keys[0]}")
    return wrong + ([f"the driver ended with {code}"] if code else [])
