"""A kill at every persistence crash point: nothing is lost, nothing comes out of order.

Here the lane runs in a plain process. ``./dev.sh prove kills`` runs every crash point against every
victim on Spark; a few of those are below, so that the mechanism cannot rot.
"""

from collections import Counter

import orjson
import pytest

from airflow_provider_deltaforge.control import replays, snapshots
from airflow_provider_deltaforge.control.snapshots import CopySelection
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.plugins import PROCESSORS
from airflow_provider_deltaforge.schemas.registry import Registry
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.dead_letters import (
    DeadLetterFilter,
    DeadLetterRecords,
)
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from tests.engine import picky
from tests.engine.lagging_crash_points import (
    OF_ARCHIVES,
    OF_LAGGING,
    OF_PARTS,
    OF_REPLAYS,
    OF_REWINDS,
)
from tests.engine.scripted_run import NAME, ScriptedRun, kill
from tests.oracle.readers import seen_in_file
from tests.waiting import wait_until

KEYS = 60

SNAPSHOT_BORDERS = {
    CrashPoint.SNAPSHOT_STARTED,
    CrashPoint.CHUNK_RENDERED,
    CrashPoint.CHUNK_WRITTEN,
    CrashPoint.CHUNK_STORED,
    CrashPoint.SNAPSHOT_FINISHED,
}
AT_FIRST = {
    CrashPoint.START_POSITION_STORED,
    CrashPoint.SNAPSHOT_STARTED,
    CrashPoint.SNAPSHOT_FINISHED,
}
"""Borders that are crossed once."""
OF_REQUESTS = [
    CrashPoint.SNAPSHOT_STARTED,
    CrashPoint.CHUNK_STORED,
    CrashPoint.REQUEST_RECORDED,
    CrashPoint.REQUEST_REMOVED,
]
"""Borders of a copy that is made beside a stream; those of a stream cannot be crossed then."""
OF_PIPELINES = [
    crash_point
    for crash_point in CrashPoint
    if crash_point
    not in (
        *OF_REPLAYS,
        *OF_LAGGING,
        *OF_REWINDS,
        *OF_ARCHIVES,
        *OF_PARTS,
        CrashPoint.REQUEST_RECORDED,
        CrashPoint.REQUEST_REMOVED,
        CrashPoint.DEAD_LETTERS_STORED,
    )
]


@pytest.mark.parametrize("crash_point", OF_PIPELINES, ids=lambda point: point.value)
def test_a_process_killed_at_a_crash_point_loses_nothing(crash_point, tmp_path):
    mode = "initial" if crash_point in SNAPSHOT_BORDERS else "never"
    at_head = crash_point is CrashPoint.START_POSITION_STORED
    run = ScriptedRun(tmp_path, snapshot=mode, transactions=4000 if at_head else 800)
    begun = mode == "never" and not at_head
    if begun:
        run.begin_at(0)
    driver = run.start(hold=(crash_point, 1 if crash_point in AT_FIRST else 3))
    kill(run.wait_held(driver))
    driver.wait()
    start = {"tx": 0} if begun else run.first_position()

    driver = run.start()
    run.wait_delivered(driver)
    code = run.stop(driver)

    assert run.judge(start) == []
    assert wrong_schemas(run) == []
    assert code == 0
    progress = run.control.progress()
    assert progress.status == "stopped"
    # The killed lane could not say what it had counted; nothing is counted twice.
    assert progress.count_gaps == 1
    events = {event.event_id for event in seen_in_file(run.output, lambda _: ())}
    assert 0 < sum(table.durable for table in progress.tables.values()) <= len(events)


@pytest.mark.parametrize("crash_point", OF_REQUESTS, ids=lambda point: point.value)
def test_a_process_killed_while_it_serves_a_request_serves_it_once(crash_point, tmp_path):
    run = ScriptedRun(tmp_path)
    run.begin_at(0)
    once = crash_point in {
        CrashPoint.SNAPSHOT_STARTED,
        CrashPoint.REQUEST_RECORDED,
        CrashPoint.REQUEST_REMOVED,
    }
    driver = run.start(hold=(crash_point, 1 if once else 2))
    wait_until(lambda: tx_of(run) > 0)
    snapshots.request(run.store, NAME, CopySelection(), "copy", "a test")
    kill(run.wait_held(driver))
    driver.wait()

    driver = run.start()
    run.wait_delivered(driver)
    # All may have been delivered before the kill: then the copy is what is left to wait for.
    wait_until(lambda: snapshots.request_state(run.store, NAME, "copy").settled)
    assert run.stop(driver) == 0

    assert run.judge({"tx": 0}) == []
    (request,) = snapshots.requests(run.store, NAME)
    assert (request.state, request.rows) == ("done", KEYS)
    copied = Counter(e.key for e in seen_in_file(run.output, lambda _: ()) if e.name is None)
    assert len(copied) == KEYS
    if crash_point in (CrashPoint.REQUEST_RECORDED, CrashPoint.REQUEST_REMOVED):
        assert set(copied.values()) == {1}
    else:
        # A chunk that was under way comes again, one that was done does not.
        assert max(copied.values()) <= 2
        assert CrashPoint.CHUNK_STORED is not crash_point or min(copied.values()) == 1


@pytest.mark.parametrize(
    "crash_point",
    [
        pytest.param(CrashPoint.SINK_WRITTEN, marks=pytest.mark.long),
        CrashPoint.DEAD_LETTERS_STORED,
        CrashPoint.CHUNK_STORED,
    ],
    ids=lambda point: point.value,
)
def test_a_kill_neither_loses_nor_repeats_what_was_set_aside(crash_point, tmp_path, monkeypatch):
    monkeypatch.setitem(PROCESSORS.shipped, *next(iter(picky.PLACE.items())))
    copies = crash_point is CrashPoint.CHUNK_STORED
    run = ScriptedRun(
        tmp_path,
        snapshot="initial" if copies else "never",
        processors="{type: picky}",
        journal="enabled: true",
    )
    if not copies:
        run.begin_at(0)
    driver = run.start(hold=(crash_point, 2))
    kill(run.wait_held(driver))
    driver.wait()
    start = run.first_position()

    driver = run.start()
    run.wait_delivered(driver)
    assert run.stop(driver) == 0

    events = [letter.event for letter in DeadLetterRecords(run.store, NAME).read()]
    since = int(start["tx"]) if copies else 0
    if copies:  # What all chunks show is not streamed.
        records = Snapshots(run.store, NAME)
        since = min(cut["tx"] for cut in records.cuts(records.current().id).values())
    history = run.history({"tx": since})
    refused = [change.name for change in history if change.state["id"] % 2 == 0]
    streamed = [(e["after"]["tx"], e["after"]["row"]) for e in events if e["op"] != "r"]
    assert sorted(streamed) == sorted(refused)
    copied = [event["after"]["id"] for event in events if event["op"] == "r"]
    assert len(copied) == len(set(copied)) == (KEYS // 2 if copies else 0)
    assert {event["after"]["id"] % 2 for event in events} == {0}
    delivered = [event for event in run.seen() if event.name is not None]
    assert {event.name for event in delivered} == {change.name for change in history} - {*refused}


@pytest.mark.parametrize("crash_point", sorted(OF_REPLAYS, key=str), ids=lambda point: point.value)
def test_a_kill_in_a_replay_loses_nothing_and_keeps_the_order_of_each_row(
    crash_point, tmp_path, monkeypatch
):
    monkeypatch.setitem(PROCESSORS.shipped, *next(iter(picky.PLACE.items())))
    passes = tmp_path / "passes"
    run = ScriptedRun(
        tmp_path,
        transactions=60,
        processors=f"{{type: picky, until: {passes}}}",
        journal="enabled: true, dlq: {hold_keys: true}",
    )
    run.begin_at(0)
    driver = run.start()
    run.wait_delivered(driver)
    assert run.stop(driver) == 0
    held = DeadLetterRecords(run.store, NAME).count()
    passes.touch()
    run.want("running")

    ticket = replays.request(run.store, NAME, DeadLetterFilter(), "skip", "a test")
    driver = run.start(hold=(crash_point, 1 if crash_point is CrashPoint.REPLAY_REMOVED else 2))
    kill(run.wait_held(driver))
    driver.wait()
    driver = run.start()
    wait_until(lambda: run.control.read().replays == [])
    assert run.stop(driver) == 0

    told = replays.replay(run.store, NAME, ticket)
    assert (told.state, told.sent, held) == ("done", held, 90)
    assert DeadLetterRecords(run.store, NAME).count() == 0
    seen = [event.name for event in run.seen()]
    assert set(seen) == {change.name for change in run.history({"tx": 0})}
    assert len(seen) == 180 or crash_point is CrashPoint.REPLAY_WRITTEN
    for key, last in run.rows({"tx": 0}).items():
        mine = [event for event in run.seen() if event.key == key]
        first = list(dict.fromkeys(event.name for event in mine))
        assert first == sorted(first)
        assert mine[-1].name == first[-1] == (last["tx"], last["row"])


def test_every_crash_point_has_a_kill():
    asked = {*OF_REQUESTS, *OF_REPLAYS, *OF_REWINDS, *OF_ARCHIVES, *OF_PARTS}
    assert {*OF_PIPELINES, *asked, *OF_LAGGING, CrashPoint.DEAD_LETTERS_STORED} == set(CrashPoint)


def wrong_schemas(run):
    """Return the events that do not carry the schema in force at their position."""
    source = load(run.document).spec.source
    registry = Registry(run.store, source.id, "tests")
    wrong = []
    for line in run.output.read_bytes().splitlines():
        event = orjson.loads(line)
        version, sequence = event["schema_version"], event["schema_sequence"]
        at = registry.at_sequence("script", None, "rows", sequence)
        # A copied row looks as the table does when it is read.
        expected = at.schema if event["op"] == "r" else source.schema_of(event["after"]["tx"])
        if version != expected.fingerprint or at.fingerprint != version:
            wrong.append(f"{event['after']}: {version}, {sequence}")
    return wrong


def tx_of(run):
    checkpoints = Checkpoints(run.store, NAME, f"{NAME}-source")
    return int((checkpoints.load().get("out") or {"tx": 0})["tx"])
