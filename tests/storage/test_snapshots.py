"""Snapshot runs: plan, finished chunks, progress."""

from dataclasses import asdict, dataclass, replace

import pytest

from airflow_provider_deltaforge.errors import FencedError
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Fence
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.snapshots import (
    PAGE_CHUNKS,
    ChunkDone,
    SnapshotRecord,
    Snapshots,
)


@dataclass(frozen=True)
class Chunk:
    id: str
    table: str
    low: list[int] | None
    high: list[int] | None
    db: str = "shop"
    schema: str | None = None


@pytest.fixture(params=["memory", "sqlite"])
def store(request):
    dsn = f"memory://{request.node.nodeid}"
    if request.param == "sqlite":
        dsn = request.getfixturevalue("sqlite_dsn")
    opened = StoreLocation.from_dsn(dsn).create()
    yield opened
    opened.close()


@pytest.fixture
def snapshots(store):
    return Snapshots(store, "orders")


def _run(run_id="r1", chunk_count=3, **told) -> SnapshotRecord:
    tables = {
        "shop.a": {"chunks": 2, "rows_estimate": 20},
        "shop.b": {"chunks": 1, "rows_estimate": 5},
    }
    given = {"generation": 1, "started_at_ms": 10, "start_position": {"pos": 4}, "tables": tables}
    return SnapshotRecord(id=run_id, chunk_count=chunk_count, **{**given, **told})


def _chunks(count=3) -> list[Chunk]:
    return [Chunk(f"c{n}", "a", [n], [n + 1]) for n in range(count)]


def test_without_a_run_there_is_nothing_to_show(snapshots):
    assert snapshots.current() is None
    assert snapshots.progress() is None
    assert not snapshots.finished()
    assert snapshots.done("r1") == {}


def test_nothing_is_written_before_the_caller_says_so(snapshots, store):
    snapshots.begin(_run(), _chunks())
    snapshots.finish(_run())
    assert store.items(names.SNAPSHOTS) == []


@pytest.mark.parametrize("count", [0, 1, PAGE_CHUNKS, 2 * PAGE_CHUNKS + 1])
def test_a_plan_of_any_size_comes_back_in_order(snapshots, store, count):
    store.transact(snapshots.begin(_run(chunk_count=count), _chunks(count)))
    assert snapshots.plan("r1") == [asdict(chunk) for chunk in _chunks(count)]
    assert snapshots.current() == _run(chunk_count=count)
    pages = store.items(names.SNAPSHOTS, "orders/plan/")
    assert len(pages) == -(-count // PAGE_CHUNKS)


def test_a_killed_run_goes_on_with_the_chunks_that_are_missing(snapshots, store):
    store.transact(snapshots.begin(_run(), _chunks()))
    store.transact([snapshots.chunk_done("r1", "c1", "shop.a", 7, {"xmin": 5})])
    again = Snapshots(store, "orders")
    done = again.done("r1")
    assert set(done) == {"c1"}
    assert (done["c1"].rows, done["c1"].cut, done["c1"].table) == (7, {"xmin": 5}, "shop.a")
    assert done["c1"].finished_at_ms > 0
    assert [chunk["id"] for chunk in again.plan("r1") if chunk["id"] not in done] == ["c0", "c2"]


def test_a_chunk_of_an_old_epoch_is_not_done(snapshots, store):
    store.swap("epochs", "orders", 0, b"")
    store.swap("epochs", "orders", 1, b"")
    with pytest.raises(FencedError):
        store.transact(
            [snapshots.chunk_done("r1", "c0", "shop.a", 1, {})], Fence("epochs", "orders", 1)
        )
    assert snapshots.done("r1") == {}


def test_a_chunk_done_twice_counts_once(snapshots, store):
    store.transact(snapshots.begin(_run(), _chunks()))
    for rows in (6, 7):
        store.transact([snapshots.chunk_done("r1", "c0", "shop.a", rows, {})])
    assert snapshots.progress()["rows"] == 7
    assert snapshots.progress()["chunks_done"] == 1


def test_the_parts_of_a_chunk_stand_in_its_place_of_the_plan(snapshots, store):
    chunks = _chunks()
    store.transact(snapshots.begin(_run(), chunks))
    before = [chunk["id"] for chunk in snapshots.plan("r1")]
    parts = [replace(chunks[1], id=f"c1-{at}") for at in range(3)]
    store.transact([snapshots.chunk_split("r1", "c1", parts)])
    nested = [replace(chunks[1], id=f"c1-0-{at}") for at in range(2)]
    store.transact([snapshots.chunk_split("r1", "c1-0", nested)])

    planned = [chunk["id"] for chunk in snapshots.plan("r1")]
    assert planned == [before[0], "c1-0-0", "c1-0-1", "c1-1", "c1-2", *before[2:]]
    progress = snapshots.progress()
    assert progress["chunks"] == progress["tables"]["shop.a"]["chunks"] + 1 == 6
    store.transact(snapshots.begin(_run("r2"), chunks))
    assert [chunk["id"] for chunk in snapshots.plan("r2")] == before


def test_progress_counts_by_table(snapshots, store):
    store.transact(snapshots.begin(_run(), _chunks()))
    store.transact(
        [
            snapshots.chunk_done("r1", "c0", "shop.a", 7, {}, row_bytes=70),
            snapshots.chunk_done("r1", "c1", "shop.a", 4, {"inexact": True}, row_bytes=50),
        ]
    )
    assert snapshots.progress() == {
        "run": "r1",
        "ticket": None,
        "started_at_ms": 10,
        "finished": False,
        "cancelled": None,
        "chunks": 3,
        "chunks_done": 2,
        "rows": 11,
        "bytes": 120,
        "rows_per_s": None,
        "eta_s": None,
        "limits": {},
        "tables": {
            "shop.a": {
                "chunks": 2,
                "chunks_done": 2,
                "chunks_inexact": 1,
                "rows": 11,
                "bytes": 120,
                "rows_estimate": 20,
                "eta_s": 0,
            },
            "shop.b": {
                "chunks": 1,
                "chunks_done": 0,
                "chunks_inexact": 0,
                "rows": 0,
                "bytes": 0,
                "rows_estimate": 5,
                "eta_s": None,
            },
        },
    }


def test_a_copy_is_told_by_its_pace_since_it_went_on(snapshots, store):
    run = _run(chunk_count=90, tables={"shop.a": {"chunks": 90, "rows_estimate": 9000}})
    store.transact(snapshots.begin(run, []))
    # A chunk a second, then a night's rest, then ten chunks a second.
    moments = [*range(0, 20_000, 1000), *range(40_000_000, 40_002_000, 100)]
    for number, moment in enumerate(moments):
        done = ChunkDone(table="shop.a", rows=100, cut={}, finished_at_ms=moment)
        store.put(names.SNAPSHOTS, f"orders/done/r1/{number:03d}", done.model_dump_json().encode())
    progress = snapshots.progress()
    assert progress["rows_per_s"] == 1000
    assert progress["eta_s"] == progress["tables"]["shop.a"]["eta_s"] == 5


def test_a_finished_run_stays_finished_when_another_begins(snapshots, store):
    store.transact(snapshots.begin(_run(), _chunks()))
    store.transact(snapshots.finish(_run()))
    assert snapshots.finished()
    assert snapshots.current().finished_at_ms > 0
    assert snapshots.progress()["finished"]
    store.transact(snapshots.begin(_run("r2"), _chunks()))
    assert snapshots.finished()
    assert snapshots.current().id == "r2"
    assert not snapshots.progress()["finished"]


def test_a_requested_run_stands_beside_the_pipelines_own(snapshots, store):
    store.transact(snapshots.begin(_run(), _chunks()))
    run = _run("asked", wish={"tables": ["shop.a"], "where": "id > 5"})
    store.transact(snapshots.begin(run, _chunks()))
    store.transact(snapshots.finish(run))
    assert snapshots.requested().finished_at_ms > 0
    assert not snapshots.finished()
    assert (snapshots.current().id, snapshots.current().finished_at_ms) == ("r1", None)
    assert len(snapshots.plan("r1")) == 3
    store.transact(snapshots.begin(_run("r2"), _chunks()))
    assert snapshots.plan("r1") == []
    assert len(snapshots.plan("asked")) == 3


def test_a_new_run_forgets_the_plan_and_chunks_of_the_former(snapshots, store):
    store.transact(snapshots.begin(_run(), _chunks()))
    store.transact([snapshots.chunk_done("r1", "c0", "shop.a", 7, {})])
    other = Snapshots(store, "orders2")
    store.transact(other.begin(_run(), _chunks()))
    store.transact(snapshots.begin(_run("r2"), _chunks()))
    assert snapshots.plan("r1") == []
    assert snapshots.done("r1") == {}
    assert snapshots.progress()["rows"] == 0
    assert len(other.plan("r1")) == 3


def test_what_writers_keep_of_a_run_goes_with_it(snapshots, store):
    store.transact(snapshots.begin(_run(), _chunks()))
    store.transact(snapshots.begin(_run("asked", wish={"tables": []}), _chunks()))
    for run in ("r1", "asked"):
        store.put(names.SNAPSHOTS, snapshots.notes_key(run, "out", "c0/rows"), b"rows")

    store.transact(snapshots.begin(_run("asked2", wish={"tables": []}), _chunks()))
    assert dict(store.items(names.SNAPSHOTS, "orders/notes/")) == {
        snapshots.notes_key("r1", "out", "c0/rows"): b"rows"
    }
    store.transact(snapshots.begin(_run("r2"), _chunks()))
    assert store.items(names.SNAPSHOTS, "orders/notes/") == []


def test_a_cancelled_run_holds_the_reason(snapshots, store):
    store.transact(snapshots.begin(_run(), _chunks()))
    store.transact([snapshots.cancel(_run(), "the binlog was purged")])
    assert snapshots.progress()["cancelled"] == "the binlog was purged"
    assert not snapshots.finished()


def test_forget_makes_the_pipeline_snapshot_again(snapshots, store):
    store.transact(snapshots.begin(_run(), _chunks()))
    store.transact(snapshots.finish(_run()))
    snapshots.forget()
    assert not snapshots.finished()
    assert snapshots.current() is None
    assert store.items(names.SNAPSHOTS) == []
