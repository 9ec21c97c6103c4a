"""A sink that is away while a real server's rows come, and is caught up by a second reader."""

import itertools
import json
from functools import partial

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sinks.memory import memory_log
from tests.engine.driving import DrivenRun
from tests.servers import sql
from tests.sources.postgres import stream_reading as postgres
from tests.waiting import wait_for

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source: {{type: {kind}, config: {{id: {name}, {source}}}}}
  batch: {{max_events: 20, max_ms: 10}}
  sinks:
    - {{type: memory, config: {{id: out, log: {name}}}}}
    - {{type: memory, config: {{id: side, log: {name}-side, required: false}}}}
"""
COLUMN = "ALTER TABLE orders ADD COLUMN note varchar(20) DEFAULT 'new'"
SLOTS = "SELECT slot_name, temporary FROM pg_replication_slots WHERE database = '{}'"

_unique = itertools.count()


class BehindRun(DrivenRun):
    """A pipeline with a required and an optional sink over a table of a real server."""

    def __init__(self, kind, source, execute):
        name = f"behind-{kind}-{next(_unique)}"
        super().__init__(name, DOCUMENT.format(name=name, kind=kind, source=source))
        self.execute = execute
        self.side = memory_log(f"{name}-side")
        self.written = 0

    def insert(self, rows):
        first = self.written + 1
        self.written += rows
        ids = range(first, self.written + 1)
        self.execute(*(f"INSERT INTO orders (id) VALUES ({number})" for number in ids))

    def wait_for_all(self, log):
        last = partial(self._has, log, self.written)
        wait_for(f"row {self.written}", lambda: last() or self.ended())

    def _has(self, log, number):
        messages = log.messages()
        return bool(messages) and _id_of(messages[-1]) == number

    def stood(self):
        return self.control.progress().sinks["side"].status

    def wait_stood(self, word):
        wait_for(f"side to be {word}", lambda: self.stood() == word or self.ended())


def _id_of(message):
    return (json.loads(message.value)["after"] or {}).get("id")


def away_and_back(run):
    """Let the optional sink be away while rows and a schema change come, then back."""
    out = memory_log(run.name)
    run.start()
    run.insert(30)
    run.wait_for_all(out)
    run.wait_for_all(run.side)
    run.side.fail_next(10**6, RetryableError("away"))
    run.insert(60)
    run.wait_for_all(out)
    run.wait_stood("behind")
    run.execute(COLUMN)
    run.insert(60)
    run.wait_for_all(out)
    assert run.control.progress().status == "running"
    run.side.heal()
    run.insert(30)
    run.wait_for_all(run.side)
    run.wait_stood("running")
    run.insert(5)
    run.wait_for_all(run.side)


def same_in_both(run):
    """Say whether both sinks were first given the same events in the same order."""
    one, two = (
        list(dict.fromkeys((message.event_id, message.value) for message in log.messages()))
        for log in (memory_log(run.name), run.side)
    )
    ids = [number for _, value in two if (number := (json.loads(value)["after"] or {}).get("id"))]
    return one == two and ids == list(range(1, run.written + 1))


def test_mysql_is_read_a_second_time_for_the_sink_that_was_away(mysql_server):
    database = "behind"
    sql.execute(
        mysql_server,
        f"DROP DATABASE IF EXISTS {database}",
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.orders (id int PRIMARY KEY)",
    )
    dsn = f"mysql://df:df-secret@{mysql_server.host}:{mysql_server.port}/{database}"
    run = BehindRun(
        "mysql",
        f'dsn: "{dsn}", tables: ["{database}.*"]',
        partial(sql.execute, mysql_server, database=database),
    )
    away_and_back(run)
    assert run.stop().why == "stopped"
    assert same_in_both(run)


def test_postgres_is_read_from_a_copy_of_the_slot_that_is_gone_afterwards(postgres_server):
    database = "df_behind"
    postgres.fresh(postgres_server, database, "CREATE TABLE orders (id int PRIMARY KEY)")
    execute = partial(postgres.execute, postgres_server, database=database)
    dsn = postgres_server.dsn(database)
    run = BehindRun("postgres", f'dsn: "{dsn}", publication: df, slot: {database}', execute)
    away_and_back(run)
    slots = partial(postgres.execute, postgres_server, SLOTS.format(database))
    wait_for("the copy of the slot to go", lambda: slots() == [(database, False)])
    side = run.checkpoint_of("side")
    assert run.stop().why == "stopped"
    assert same_in_both(run)
    confirmed = postgres.slot_of(postgres_server, database)[0]
    assert postgres.source_of(postgres_server, database).compare({"lsn": confirmed}, side) >= 0
    postgres.drop(postgres_server, database)
