"""A driver killed at a crash point, under a live writer: nothing is lost, nothing out of order."""

import json
import subprocess
import sys
import time

import pytest

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from tests.engine.scripted_run import kill
from tests.sources.turso.database import Writer, copied, events_of, source, told
from tests.sources.turso.shop_run import TABLES, ShopRun


@pytest.mark.parametrize(
    ("mode", "snapshot", "crash_point"),
    [
        ("native", "initial", CrashPoint.CHUNK_WRITTEN),
        ("native", "never", CrashPoint.SINK_WRITTEN),
        ("triggers", "initial", CrashPoint.CHECKPOINT_STORED),
        ("triggers", "never", CrashPoint.SOURCE_ACKNOWLEDGED),
    ],
)
def test_a_driver_killed_at_a_crash_point(tmp_path, mode, snapshot, crash_point):
    run = ShopRun(tmp_path, mode=mode, snapshot=snapshot)
    run.shop.trade(60)
    run.shop.untriggered = len(run.shop.history)
    start = run.begin() if snapshot == "never" else None
    if start is None:
        run.source.head()  # Makes the triggers, whose count begins here.
    run.shop.trade(20)
    run.kill_at(crash_point, 2, lambda: run.shop.trade(2))
    start = start or run.first_position()
    run.shop.trade(20)

    driver = run.start()
    run.shop.trade(60)
    run.wait_caught_up(driver)
    code = run.stop(driver)

    assert run.verdict(start) == []
    assert code == 0
    run.shop.close()


def test_polling_and_its_snapshot_through_a_whole_driver(tmp_path):
    run = ShopRun(tmp_path, mode="polling", snapshot="initial")
    run.shop._connection.execute("INSERT INTO orders VALUES (1, 1, 'old')")
    run.shop._connection.commit()
    driver = run.start()
    run._wait(lambda: run.output.exists() and run.output.read_bytes(), driver)
    for number in range(2, 60):
        run.shop._connection.execute("INSERT INTO orders VALUES (?, 1, 'new')", (number,))
        run.shop._connection.commit()
    run.wait_caught_up(driver)
    run.stop(driver)

    ids = [event["after"]["id"] for event in _lines(run.output)]
    assert sorted(set(ids)) == list(range(1, 60))
    run.shop.close()


def test_a_polling_driver_killed_before_its_checkpoint(tmp_path):
    run = ShopRun(tmp_path, mode="polling")
    run.begin()
    written = set()

    def insert():
        number = len(written) // 2 + 1
        for table in TABLES:
            run.shop._connection.execute(f"INSERT INTO {table} VALUES (?, 1, 'new')", (number,))
            written.add((table, number))
        run.shop._connection.commit()
        time.sleep(0.02)

    run.kill_at(CrashPoint.SINK_WRITTEN, 2, insert)
    insert()

    driver = run.start()
    run.wait_caught_up(driver)
    assert run.stop(driver) == 0

    seen = [(event["source"]["table"], event["after"]["id"]) for event in _lines(run.output)]
    assert set(seen) == written
    for table in TABLES:
        ids = [number for name, number in seen if name == table]
        first = list(dict.fromkeys(ids))
        assert first == sorted(first)
    run.shop.close()


def test_a_killed_writer_leaves_whole_transactions(tmp_path):
    path = tmp_path / "shop.db"
    Writer(path).run("CREATE TABLE t (id INTEGER PRIMARY KEY, batch INTEGER)")
    taken = source(path)
    begin = taken.head()
    program = (
        "import sys, itertools\n"
        "from pathlib import Path\n"
        "from tests.sources.turso.database import Writer\n"
        "w = Writer(Path(sys.argv[1]))\n"
        "for n in itertools.count():\n"
        "    w.many('INSERT INTO t VALUES (?, ?)', [(3 * n + i, n) for i in range(3)])\n"
        "    print(n, flush=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True
    )
    for _ in range(30):
        child.stdout.readline()
    kill(child.pid)
    child.wait()
    child.stdout.close()

    reader = taken.open(begin)
    events = events_of(reader)
    reader.close()

    rows = [told(event)[3] for event in events]
    assert len(rows) >= 90
    assert len(rows) % 3 == 0
    assert [row["id"] for row in rows] == list(range(len(rows)))
    assert {told(event)[3]["id"] for event in copied(taken)} == {row["id"] for row in rows}


def _lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
