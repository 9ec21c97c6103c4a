"""Copies beside a stream that goes on: each row as of where it joins the log, and once a copy."""

import contextlib
import json
import random
import threading
import time

import pytest

from airflow_provider_deltaforge.control import snapshots
from airflow_provider_deltaforge.control.snapshots import CopySelection
from tests.engine.real_run import RealRun
from tests.servers import sql
from tests.waiting import wait_until

ROWS = 400
CHUNK = {"snapshot": {"mode": "never", "chunk_size": 37, "max_parallel_chunks": 3}}


LONG = pytest.mark.long


@pytest.fixture(params=["mysql", pytest.param("mariadb", marks=LONG), "postgres"])
def server(request):
    return request.getfixturevalue(f"{request.param}_server")


@pytest.fixture
def streaming(server, tmp_path):
    settings = {"snapshot": {**CHUNK["snapshot"], "intra_table_parallel": True}}
    run = RealRun(server, tmp_path, settings=settings)
    run.execute(*(f"INSERT INTO t VALUES ({row}, '{row}')" for row in range(ROWS)))
    run.start()
    wait_until(lambda: run.status().status == "running")
    with contextlib.ExitStack() as stack:
        run.stack = stack
        yield run
    run.stop()


class Writers:
    """Sessions that change rows as fast as they can; ``v`` is a number that only grows."""

    def __init__(self, run, count, changes):
        self._over = threading.Event()
        self._run, self._changes = run, changes
        self._threads = [threading.Thread(target=self._write, args=(at,)) for at in range(count)]
        self.written = 0

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _write(self, at):
        chance = random.Random(at)
        numbers = iter(range(1000 + at, 10**9, len(self._threads)))
        with connected(self._run) as execute:
            while not self._over.is_set():
                for statement in self._changes(chance, next(numbers), at):
                    execute(statement)
                self.written += 1


@contextlib.contextmanager
def connected(run):
    """Yield what executes a statement in a session of its own, a transaction each."""
    if run.is_postgres:
        import psycopg

        with psycopg.connect(run.server.dsn(run.name), autocommit=True) as connection:
            yield connection.execute
    else:
        with contextlib.closing(sql.connect(run.server, run.name)) as connection:
            yield connection.cursor().execute


def hot(chance, number, at):
    """Change rows of a writer's own, so that their numbers grow; also their keys."""
    own = chance.randrange(ROWS // 2) * 2 + at
    kind = chance.random()
    if kind < 0.7:
        yield f"UPDATE t SET v = '{number}' WHERE id = {own}"
    elif kind < 0.8:
        yield f"DELETE FROM t WHERE id = {own}"
        yield f"INSERT INTO t VALUES ({own}, '{number}')"
    elif kind < 0.9:
        yield f"UPDATE t SET id = {own + 10_000}, v = '{number}' WHERE id = {own}"
        yield f"UPDATE t SET id = {own} WHERE id = {own + 10_000}"
    else:
        yield f"DELETE FROM t WHERE id = {own + 20_000}"
        yield f"INSERT INTO t VALUES ({own + 20_000}, '{number}')"


def copied(run, name, **wish):
    """Ask for a copy and wait for its end."""
    snapshots.request(run.store, run.name, CopySelection(**wish), name, "a test")
    wait_until(lambda: snapshots.request_state(run.store, run.name, name).settled)
    state = snapshots.request_state(run.store, run.name, name)
    assert state.state == "done", state.reason
    return state


def events(run):
    """Return what is in the file; a line that is being written has no end yet."""
    path = run.path()
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def applied(run):
    """Apply events blindly, as a consumer that keeps no ids; return the rows, and complaints."""
    rows, gone, complaints = {}, {}, []
    for event in events(run):
        before, after = event["before"], event["after"]
        if event["op"] == "t":
            gone |= {key: int(row["v"]) for key, row in rows.items()}
            rows = {}
        if before is not None:  # Perhaps of the key alone.
            gone[before["id"]] = int(rows.pop(before["id"], {"v": -1})["v"])
        if after is None:
            continue
        key, number = after["id"], int(after["v"])
        known = int(rows[key]["v"]) if key in rows else None
        if event["op"] == "r" and known is not None and number != known:
            complaints.append(f"r shows {number} of {key}, the log {known}")
        if event["op"] == "r" and known is None and number <= gone.get(key, -1):
            complaints.append(f"r shows {key}, which is gone")
        if event["op"] == "c" and known is not None:
            complaints.append(f"{key} is inserted, and was there")
        rows[key] = after
    return {key: row["v"] for key, row in rows.items()}, complaints


def table(run):
    if run.is_postgres:
        import psycopg

        with psycopg.connect(run.server.dsn(run.name)) as connection:
            return dict(connection.execute("SELECT id, v FROM t").fetchall())
    return dict(sql.execute(run.server, "SELECT id, v FROM t", database=run.name))


def test_rows_join_the_log_of_hot_writers_as_of_their_place(streaming):
    with Writers(streaming, 2, hot) as writers:
        copies = []
        for number in range(3):
            begun = len(events(streaming))
            copied(streaming, f"copy-{number}")
            copies.append(events(streaming)[begun:])
            assert streaming.status().status == "running"
        assert writers.written > 50
    streaming.execute("INSERT INTO t VALUES (-1, '0')")
    wait_until(lambda: any(e["after"] and e["after"]["id"] == -1 for e in events(streaming)))

    rows, complaints = applied(streaming)
    assert complaints == []
    assert rows == table(streaming)
    for during in copies:
        keys = [event["after"]["id"] for event in during if event["op"] == "r"]
        assert len(keys) == len(set(keys))
        assert len(keys) > ROWS * 0.9
        ops = "".join(event["op"] for event in during)
        assert "u" in ops[: ops.rindex("r")]  # The log went on meanwhile.


def _update(chance, number):
    time.sleep(0.002)
    return f"UPDATE t SET v = '{number}' WHERE id = {chance.randrange(ROWS)}"


def test_tables_may_be_altered_and_truncated_while_they_are_copied(streaming):
    over = threading.Event()

    def change():
        number = 0
        while not over.wait(0.05):
            number += 1
            streaming.execute(
                f"ALTER TABLE t ADD COLUMN c{number} int DEFAULT {number}",
                *(["TRUNCATE TABLE t"] if number % 2 else []),
                f"INSERT INTO t (id, v) VALUES ({30_000 + number}, '{number}')",
                f"UPDATE t SET v = '{5000 + number}' WHERE id = {30_000 + number - 1}",
            )

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for number in range(4):
            copied(streaming, f"c{number}")
    finally:
        over.set()
        changing.join()
    streaming.execute("INSERT INTO t (id, v) VALUES (-1, '0')")
    wait_until(lambda: any(e["after"] and e["after"]["id"] == -1 for e in events(streaming)))

    rows, complaints = applied(streaming)
    assert complaints == []
    assert rows == table(streaming)
    assert any(event["op"] == "t" for event in events(streaming))


def test_large_values_that_a_change_leaves_out_come_with_the_copied_row(postgres_server, tmp_path):
    run = RealRun(postgres_server, tmp_path, settings=CHUNK)
    run.execute(
        "ALTER TABLE t ADD COLUMN big text",
        "ALTER TABLE t ALTER COLUMN big SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT n, n::text, repeat(md5(n::text), 400) FROM generate_series(1, 200) n",
    )
    run.start()
    wait_until(lambda: run.status().status == "running")
    with Writers(run, 1, lambda chance, number, at: [_update(chance, number)]):
        copied(run, "copy")
    run.stop()

    shown = {}
    for event in events(run):
        if event["op"] == "r":
            shown[event["after"]["id"]] = event["after"]["big"]
    assert len(shown) == 200
    assert all(len(big) == 32 * 400 for big in shown.values())
