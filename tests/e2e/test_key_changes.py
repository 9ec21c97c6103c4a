"""Rows whose primary key changes: a compacted topic ends with the table's rows, kills included."""

import json
import random

import pytest

from tests.e2e import shop
from tests.e2e.pipeline_run import PipelineRun
from tests.servers import sql
from tests.sinks.kafka_reader import read_topic

ROWS = 60


def change_keys(run, seed):
    """Move rows to keys that were free, to keys that others just left, and round in circles."""
    choice = random.Random(seed)
    with shop.connect(run.server, run.database) as connection, connection.cursor() as cursor:
        for number in range(25):
            cursor.execute("SELECT id FROM t")
            ids = [row[0] for row in cursor.fetchall()]
            one, other = choice.sample(ids, 2)
            free = choice.choice([key for key in range(1, 2 * ROWS) if key not in ids])
            steps = [
                [f"UPDATE t SET id = {free}, n = {number} WHERE id = {one}"],
                [
                    f"UPDATE t SET id = {free} WHERE id = {one}",
                    f"UPDATE t SET id = {one} WHERE id = {other}",
                    f"UPDATE t SET id = {other} WHERE id = {free}",
                ],
                [
                    f"UPDATE t SET id = {free} WHERE id = {one}",
                    f"INSERT INTO t VALUES ({one}, {number}, 'x')",
                    f"DELETE FROM t WHERE id = {other}",
                ],
                [f"UPDATE t SET region = 'us' WHERE id = {one}"],
            ]
            for statement in choice.choice(steps):
                cursor.execute(statement)
            connection.commit()


def compacted(run):
    """Return what compaction leaves of the topic: the last value of each key."""
    last = {}
    for message in read_topic(run.brokers, f"{run.name}.t"):
        last[message.key] = message.value
    return {key: json.loads(value)["after"] for key, value in last.items() if value is not None}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="primary key"),
        pytest.param({"exactly_once": True}, id="exactly once", marks=pytest.mark.long),
        pytest.param({"key": "${after.region}/${after.id}"}, id="template", marks=pytest.mark.long),
    ],
)
def test_a_compacted_topic_ends_with_the_rows_of_the_table(
    settings, tmp_path, mysql_server, kafka_server, request
):
    name = f"keys_{len(request.node.callspec.id)}"
    rows = ", ".join(f"({key}, 0, 'eu')" for key in range(1, ROWS))
    sql.execute(
        mysql_server,
        f"DROP DATABASE IF EXISTS {name}",
        f"CREATE DATABASE {name}",
        f"USE {name}",
        "CREATE TABLE t (id INT PRIMARY KEY, n INT, region VARCHAR(2))",
        f"INSERT INTO t VALUES {rows}",
    )
    sink = {"tombstones": True, **settings}
    run = PipelineRun(
        tmp_path, name, mysql_server, kafka_server.dsn(), name, ["t"], sink=sink,
        batch={"max_events": 7},
    )  # fmt: skip
    driver = run.start()
    run.wait_status("running")
    change_keys(run, 1)
    driver.kill()
    driver.wait()
    change_keys(run, 2)
    driver = run.start()
    run.wait_status("running")
    change_keys(run, 3)
    run.wait_caught_up()
    assert run.stop(driver) == 0

    wanted = {}
    for key, n, region in sql.execute(mysql_server, "SELECT * FROM t", database=name):
        text = f"{region}/{key}" if "key" in settings else f'{{"id":{key}}}'
        wanted[text.encode()] = {"id": key, "n": n, "region": region}
    assert compacted(run) == wanted
