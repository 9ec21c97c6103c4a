"""Sinks that were emptied are given the log again from a time on, while rows are written."""

import json
import threading
import time
import uuid

import pytest
import redis
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_deltaforge.control import rewind
from airflow_provider_deltaforge.control.rewind import RewindSelection, shown_time
from airflow_provider_deltaforge.errors import PositionLostError
from airflow_provider_deltaforge.sinks.memory import memory_log
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.records.rewinds import Rewinds
from tests.engine.driving import DrivenRun
from tests.engine.exact_run import new_place
from tests.engine.real_run import RealRun
from tests.servers import sql
from tests.sources.mysql.reading import fresh_database
from tests.waiting import wait_for

DATABASE = "rewound"
DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: mysql
    config: {{id: {name}, dsn: "{dsn}", tables: ["{database}.*"]}}
  batch: {{max_events: 20, max_ms: 10}}
  sinks:
    - {{type: memory, config: {{id: out, log: {name}}}}}
{sinks}
"""


class Writer:
    """Inserts, updates and deletes rows until it is stopped."""

    def __init__(self, server):
        self._server, self._ending = server, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        number = 0
        while not self._ending.wait(0.01):
            number += 1
            sql.execute(
                self._server,
                f"INSERT INTO t VALUES ({number}, 0)",
                f"UPDATE t SET n = n + 1 WHERE id > {number - 3}",
                f"DELETE FROM t WHERE id = {number - 2} AND id % 3 = 0",
                database=DATABASE,
            )

    def stop(self):
        self._ending.set()
        self._thread.join()


def rows_of(values):
    """Return what a consumer holds that applies events in the order in which they come."""
    rows = {}
    for event in map(json.loads, values):
        if event["op"] == "ddl":
            continue  # MariaDB's log knows whole seconds, and the table was made in this one.
        key = (event["after"] or event["before"])["id"]
        if event["after"] is None:
            rows.pop(key, None)
        else:
            rows[key] = event["after"]["n"]
    return rows


def recreated(dsn, topic):
    admin = AdminClient({"bootstrap.servers": dsn})
    admin.delete_topics([topic])[topic].result()
    wait_for("the topic to go", lambda: topic not in admin.list_topics(timeout=5).topics)

    def made():
        try:
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
        except Exception:  # noqa: BLE001 - still being deleted
            return False
        return True

    wait_for("the topic to come back", made)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("file", "mysql"),
        ("file", "mariadb"),
        ("kafka", "mysql"),
        ("redis", "mysql"),
        ("redis exactly once", "mariadb"),
    ],
)
def test_a_sink_that_was_emptied_ends_equal_and_its_neighbour_sees_nothing(
    kind, source, request, tmp_path
):
    mysql_server = request.getfixturevalue(f"{source}_server")
    fresh_database(mysql_server, DATABASE, "CREATE TABLE t (id int PRIMARY KEY, n int)")
    name = f"rewound-{uuid.uuid4().hex[:6]}"
    path = tmp_path / "side.jsonl"
    if kind == "file":
        sink = f'{{type: file, config: {{id: side, path: "{path}"}}}}'
        read, empty = (lambda: path.read_bytes().splitlines()), path.unlink
    else:
        server = request.getfixturevalue(f"{kind.split()[0]}_server")
        exactly_once = "exactly" in kind
        place = new_place(kind.split()[0], server.dsn(), "side", exactly_once=exactly_once)
        sink, read = place.sink, place.read
        if kind == "kafka":
            empty = lambda: recreated(server.dsn(), place.name)  # noqa: E731
        else:
            empty = lambda: redis.Redis.from_url(server.dsn()).delete(place.name)  # noqa: E731
    dsn = mysql_server.dsn(DATABASE)
    run = DrivenRun(
        name, DOCUMENT.format(name=name, dsn=dsn, database=DATABASE, sinks=f"    - {sink}")
    )
    run.start()
    begun_ms = int(time.time() * 1000)
    writer = Writer(mysql_server)
    out = memory_log(name)
    wait_for("changes", lambda: len(out.messages()) > 200 and len(read()) > 200)
    empty()
    planned = rewind.plan(run.store, name, RewindSelection(shown_time(begun_ms), "side"))
    assert planned.log_bytes
    rewind.request(run.store, name, planned, "a test")
    rewinds = Rewinds(run.store, name)
    wait_for("the rewind", lambda: (found := rewinds.all().get("side")) and found.state == "done")
    writer.stop()
    table = dict(sql.execute(mysql_server, "SELECT id, n FROM t", database=DATABASE))
    assert table
    wait_for("the end", lambda: rows_of(m.value for m in out.messages()) == table)
    wait_for("the end", lambda: rows_of(read()) == table)
    assert run.stop().why == "stopped"
    ids = [message.event_id for message in out.messages()]
    assert len(ids) == len(set(ids))


@pytest.mark.long
def test_what_a_slot_has_no_more_comes_from_the_archive(postgres_server, tmp_path):
    settings = {"snapshot": {"mode": "never"}}
    archive = {"directory": str(tmp_path / "archive"), "flush_secs": 1}
    run = RealRun(postgres_server, tmp_path, settings=settings, more={"archive": archive})
    run.apply("out", "side")
    run.start()
    wait_for("the stream", lambda: run.status().status == "running")
    run.insert(0)  # The archive knows a time only from what was committed before.
    time.sleep(0.1)
    begun_ms = int(time.time() * 1000)
    run.insert(*range(1, 40))
    wait_for("the rows", lambda: len(run.rows("side")) == len(run.rows("out")) == 40)
    source = load(run.control.document()).spec.source
    time.sleep(1.2)
    run.insert(40)  # Behind it, the slot moves beyond what is in the archive.

    def forgotten():
        try:
            source.place_at_time(begun_ms)
        except PositionLostError:
            return True
        return False

    wait_for("the slot to move", forgotten)
    run.path("side").unlink()
    planned = rewind.plan(run.store, run.name, RewindSelection(shown_time(begun_ms), "side"))
    assert planned.is_archived
    rewind.request(run.store, run.name, planned, "a test")
    run.insert(*range(41, 60))
    rewinds = Rewinds(run.store, run.name)
    wait_for("the rewind", lambda: (found := rewinds.all().get("side")) and found.state == "done")
    run.insert(60)
    wait_for("the rows", lambda: 60 in run.rows("side") and 60 in run.rows("out"))
    run.stop()
    assert run.rows("out") == list(range(61))
    assert run.rows("side") == list(range(1, 61))
