"""What Redis refuses inside of a step, and the pipeline is killed before anybody stored it."""

import uuid

import redis

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.sinks.redis.slots import cursor_key
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from tests.engine.exact_run import ExactRun, Place
from tests.engine.scripted_run import NAME, kill
from tests.oracle.verdict import judge
from tests.waiting import wait_for

FULL = (17, 30)
"""Rows whose streams have used up their ids."""


def streams(dsn, name):
    """Return a place that has a stream for each row, some of which take nothing more."""
    with redis.Redis.from_url(dsn) as client:
        client.delete(cursor_key(NAME, "out", None))  # Another test's run had another store.
        for key in FULL:
            client.xadd(f"{name}:{key}", {"event": "{}"}, id=f"{2**64 - 1}-{2**64 - 1}")

    def read():
        with redis.Redis.from_url(dsn) as client:
            ours = [key for key in client.keys(f"{name}:*") if int(key.split(b":")[1]) not in FULL]
            return [fields[b"event"] for key in ours for _, fields in client.xrange(key)]

    settings = f"{{id: out, uri: '{dsn}', stream: '{name}:${{after.id}}', exactly_once: true}}"
    return Place(name, f"{{type: redis, config: {settings}}}", read)


def test_killed_before_a_refusal_is_stored_nothing_is_lost_or_there_twice(redis_server, tmp_path):
    """With no room in the queue, a driver stands between being told and storing it."""
    place = streams(redis_server.dsn("0"), f"refused-{uuid.uuid4().hex[:8]}")
    limit = "enabled: true, dlq: {{overflow_policy: block, max_entries: {}}}".format
    run = ExactRun(tmp_path, place=place, transactions=80, rate=0, journal=limit(1))
    run.begin_at(0)
    queue, epoch = DeadLetterRecords(run.store, NAME), 0
    for most, room in ((1, 3), (3, 100)):
        driver = run.start()
        wait_for("no room", lambda epoch=epoch: is_blocked(run, epoch))
        epoch = run.control.progress().epoch
        kill(driver.pid)
        driver.wait()
        run.document = run.document.replace(limit(most), limit(room))
        pipelines.apply(run.store, run.document)
        run.want("running")

    driver = run.start()
    run.wait_delivered(driver)
    assert run.stop(driver) == 0

    history = run.history({"tx": 0})
    letters = [letter.event["after"] for letter in queue.read()]
    refused = [change.name for change in history if change.state["id"] in FULL]
    assert sorted((after["tx"], after["row"]) for after in letters) == refused
    rest = [change for change in history if change.name not in refused]
    assert judge(rest, run.seen(), exactly_once=True) == []


def is_blocked(run, epoch):
    told = run.control.progress()
    return told is not None and told.epoch > epoch and told.status == "blocked"
