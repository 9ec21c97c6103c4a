"""Rows of a snapshot come once into sinks that take a chunk and its mark together.

The log goes on while drivers are killed, so a chunk that is read again shows other rows.
"""

from collections import Counter

import pytest

from airflow_provider_deltaforge.control import pipelines, snapshots
from airflow_provider_deltaforge.control.snapshots import CopySelection
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.plugins import PROCESSORS
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from tests.engine import picky
from tests.engine.exact_run import exact_run
from tests.engine.scripted_run import NAME, kill
from tests.engine.test_exactly_once import create
from tests.sinks import nats_reader
from tests.waiting import wait_for

KILLS = (
    (CrashPoint.SNAPSHOT_STARTED, 1),
    (CrashPoint.CHUNK_RENDERED, 1),
    (CrashPoint.CHUNK_WRITTEN, 1),
    (CrashPoint.CHUNK_WRITTEN, 2),
    (CrashPoint.CHUNK_STORED, 1),
    (CrashPoint.SNAPSHOT_FINISHED, 1),
)


def run_to_the_end(run, kills):
    """Run until all is delivered, and kill the driver at each crash point before."""
    for crash_point, crossing in kills:
        run.kill_at(crash_point, crossing)
    run.deliver_all()


def one_after_the_other(run):
    """Copy no chunks side by side: while one is held, a kill would leave others stored or not."""
    parallel = "intra_table_parallel: "
    pipelines.apply(run.store, run.document.replace(f"{parallel}true", f"{parallel}false"))
    run.want("running")


def kinds(quick):
    """Return all sinks; those besides one take their turn in the long run."""
    others = (kind for kind in ("kafka", "redis", "nats") if kind != quick)
    return [quick, *(pytest.param(kind, marks=pytest.mark.long) for kind in others)]


@pytest.mark.parametrize("kind", kinds("redis"))
def test_wherever_a_copy_is_killed_each_row_comes_once(kind, request, tmp_path):
    dsn = request.getfixturevalue(f"{kind}_server").dsn()
    run = exact_run(kind, dsn, tmp_path, transactions=1200, rate=400, snapshot="initial")
    one_after_the_other(run)
    run_to_the_end(run, KILLS)
    seen = run.seen()
    copies = Counter(event.key for event in seen if event.name is None)
    assert copies == dict.fromkeys([("script.rows", key) for key in range(1, 61)], 1)
    assert run.judge(run.first_position()) == []
    done = Snapshots(run.store, NAME).done(Snapshots(run.store, NAME).current().id)
    assert [chunk.is_single_view for chunk in done.values()] == [True] * 3


def test_a_copy_that_is_killed_in_the_middle_of_a_chunk_goes_on_with_its_rows(
    nats_server, tmp_path
):
    """The stream stores message by message: it holds half of the second chunk."""
    server = nats_server.dsn()
    run = exact_run("nats", server, tmp_path, transactions=1200, rate=400, snapshot="initial")
    nats_reader.change_stream(server, run.place.name, max_msgs=30, discard="new")
    driver = run.start()
    wait_for("a full stream", lambda: nats_reader.count(server, run.place.name) == 30)
    wait_for("changes of the chunk's rows", lambda: "maximum messages" in troubles(run))
    kill(driver.pid)
    driver.wait()
    nats_reader.change_stream(server, run.place.name, max_msgs=-1)

    driver = run.start()
    run.wait_delivered(driver)

    assert run.stop(driver) == 0
    copies = Counter(event.key for event in run.seen() if event.name is None)
    assert copies == dict.fromkeys([("script.rows", key) for key in range(1, 61)], 1)
    assert run.judge(run.first_position()) == []


def troubles(run):
    """Return why the copy does not go on."""
    kept = run.store.items(names.SNAPSHOTS, f"{NAME}/trouble/")
    return b"".join(text for _, text in kept).decode()


LIVE_KILLS = (
    *KILLS[:-1],
    (CrashPoint.REQUEST_RECORDED, 1),
    (CrashPoint.REQUEST_REMOVED, 1),
)


@pytest.mark.parametrize("kind", kinds("nats"))
def test_wherever_a_copy_beside_the_stream_is_killed_each_row_comes_once(kind, request, tmp_path):
    dsn = request.getfixturevalue(f"{kind}_server").dsn()
    run = exact_run(kind, dsn, tmp_path, transactions=2400, rate=400)
    one_after_the_other(run)
    start = run.begin()
    snapshots.request(run.store, NAME, CopySelection(), "copy", "a test")
    run_to_the_end(run, LIVE_KILLS)
    assert snapshots.request_state(run.store, NAME, "copy").state == "done"
    copies = Counter(event.key for event in run.seen() if event.name is None)
    assert set(copies.values()) == {1}  # A row that came behind its chunk's view is none of it.
    assert run.judge(start) == []


def test_a_stream_keeps_its_sink_while_many_chunks_are_copied_beside_it(nats_server, tmp_path):
    run = exact_run("nats", nats_server.dsn(), tmp_path, transactions=2400, rate=400)
    run.document = run.document.replace("chunk_size: 20", "chunk_size: 1")
    one_after_the_other(run)
    start = run.begin()
    snapshots.request(run.store, NAME, CopySelection(), "copy", "a test")
    run.deliver_all()

    copied = snapshots.request_state(run.store, NAME, "copy").copied
    assert copied["script.rows"]["chunks"] > 40
    assert run.judge(start) == []
    # Rows and changes go through connections of their own, to the end of one stream.
    assert "taken over again" not in run.log.read_text()


@pytest.mark.long
def test_rows_of_a_chunk_that_are_refused_are_set_aside_once(kafka_server, tmp_path, monkeypatch):
    for name, place in picky.PLACE.items():
        monkeypatch.setitem(PROCESSORS.shipped, name, place)
    last = {}
    for tx, row, key in ScriptedSource(id="s", transactions=200, rows=3, keys=60).events(1, 200):
        last[key] = (tx, row)
    long_key, long_tx = next((key, tx) for key, (tx, row) in last.items() if key % 2 and not row)
    run = exact_run(
        "kafka",
        kafka_server.dsn(),
        tmp_path,
        transactions=200,
        rate=0,
        snapshot="initial",
        processors=f"{{type: picky}}, {{type: stretching, transactions: [{long_tx}]}}",
        journal="enabled: true",
    )
    create(kafka_server.dsn(), run.place.name, max_message_bytes=picky.LONG - 10_000)
    run.kill_at(CrashPoint.CHUNK_WRITTEN)
    run.deliver_all()

    copies = Counter(event.key[1] for event in run.seen() if event.name is None)
    letters = [letter.event for letter in DeadLetterRecords(run.store, NAME).read()]
    refused = Counter(event["after"]["id"] for event in letters if event["op"] == "r")
    assert refused == dict.fromkeys({*range(2, 61, 2), long_key}, 1)
    assert copies == dict.fromkeys({*range(1, 61, 2)} - {long_key}, 1)
