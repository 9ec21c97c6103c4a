"""The log, delivered once more to a sink: which, from where, and what its neighbours see of it."""

import time

import orjson
import pytest

from airflow_provider_deltaforge.control.conditions import look, rewound
from airflow_provider_deltaforge.control.sinks import entries
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from airflow_provider_deltaforge.storage.records.rewinds import Rewinds
from airflow_provider_deltaforge.storage.records.snapshots import SnapshotRecord, Snapshots
from tests.engine.driving import Driving
from tests.engine.exact_memory import exact_pipeline, held
from tests.engine.lagging import (
    AWAY,
    at,
    delivered,
    end,
    last,
    pipeline,
    rewind,
    stood,
    whole,
)
from tests.engine.running import RunningLane
from tests.waiting import wait_until


def is_done(made, sink):
    found = last(made, sink)
    return found is not None and found.state == "done"


def slow():
    """Return a pipeline with a log that grows no faster than readers of a busy machine follow."""
    growing = f"rate: 60, started_ms: {int(time.time() * 1000)}, "
    return pipeline(source=growing, optional=())


def test_one_required_sink_is_given_the_log_again_and_its_neighbour_sees_nothing():
    made = slow()
    running = RunningLane(made)
    wait_until(lambda: at(made, "side") > 50)
    first = len(made.log("side").messages())
    rewind(made, "side", 10)
    wait_until(lambda: is_done(made, "side"))
    joined = at(made, "side")
    wait_until(lambda: at(made, "side") > joined + 20)
    assert made.status() == ("running", None)
    ends = end(made, running)
    assert len(delivered(made, "main")) == len(set(delivered(made, "main")))
    assert whole(made, "main", ends["main"]) == []
    again = delivered(made, "side")[first:]
    again = again[again.index((11, 0)) :]
    expected = [(tx, row) for tx in range(11, ends["side"] + 1) for row in range(2)]
    assert list(dict.fromkeys(again)) == expected


def test_the_only_sink_is_given_the_log_again_in_order():
    made = pipeline(sinks=("out",), optional=(), source="", transactions=300)
    made.begin_at(out=300)
    running = RunningLane(made)
    rewind(made, "out", 120)
    wait_until(lambda: is_done(made, "out"))
    end(made, running)
    assert delivered(made, "out") == [(tx, row) for tx in range(121, 301) for row in range(2)]
    assert at(made, "out") == 300


def test_only_the_tables_that_are_meant_come_again_until_the_sink_is_where_it_stood():
    made = pipeline(source="", transactions=200, optional=())
    made.begin_at(main=200, side=200)
    running = RunningLane(made)
    rewind(made, "main", 20, "elsewhere.*")
    rewind(made, "side", 150, "script.r*")
    wait_until(lambda: is_done(made, "main") and is_done(made, "side"))
    end(made, running)
    assert delivered(made, "main") == []
    assert delivered(made, "side") == [(tx, row) for tx in range(151, 201) for row in range(2)]


def test_behind_where_the_sink_stood_every_table_comes_and_whole_transactions_stay_whole():
    made = pipeline(source="", transactions=200, rows=3, batch="respect_source_tx: false, ")
    made.begin_at(main=200, side=101)
    rewind(made, "side", 20, "elsewhere.*")
    running = RunningLane(made)
    wait_until(lambda: is_done(made, "side"))
    end(made, running)
    first = delivered(made, "side")[0]
    assert first == (102, 0)
    assert {tx for tx, _ in delivered(made, "side")} == set(range(102, 201))


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "stopped"])
def test_a_sink_that_delivers_exactly_once_takes_the_older_place_once(monkeypatch, is_running):
    made = exact_pipeline(monkeypatch, sinks=("main", "side"), transactions=90, rows=2)
    made.begin_at(main=0, side=0)
    running = RunningLane(made)
    wait_until(lambda: at(made, "main") == at(made, "side") == 90)
    if not is_running:
        end(made, running)
        made.want("running")
    first = list(held(made, "side").ids)
    rewind(made, "side", 37)
    running = running if is_running else RunningLane(made)
    wait_until(lambda: is_done(made, "side") and at(made, "side") == 90)
    end(made, running)
    assert held(made, "main").ids == first
    assert held(made, "side").ids == [*first, *first[37 * 2 :]]


def test_one_that_was_emptied_while_the_pipeline_was_stopped_is_filled_from_there(monkeypatch):
    made = exact_pipeline(monkeypatch, transactions=90, rows=2)
    made.begin_at(out=0)
    held(made).loses_both = held(made).in_headers = True
    running = RunningLane(made)
    wait_until(lambda: at(made, "out") == 90)
    end(made, running)
    ids = list(held(made).ids)
    held(made).lose(len(ids))
    rewind(made, "out", 60)
    made.want("running")
    running = RunningLane(made)
    wait_until(lambda: is_done(made, "out") and at(made, "out") == 90)
    end(made, running)
    assert held(made).ids == ids[60 * 2 :]


def test_to_the_place_where_its_last_batch_began_that_batch_comes_again(monkeypatch):
    made = exact_pipeline(monkeypatch, transactions=15, rows=2)
    made.begin_at(out=0)
    held(made).in_headers = True
    running = RunningLane(made)
    wait_until(lambda: at(made, "out") == 15)
    begins = held(made).cursor.position["tx"]
    held(made).values.clear()
    rewind(made, "out", begins)
    wait_until(lambda: is_done(made, "out") and at(made, "out") == 15)
    end(made, running)
    assert len(held(made).ids) == (15 - begins) * 2


def test_rewound_twice_and_while_it_is_behind_a_sink_lacks_nothing_in_the_end():
    made = pipeline(source="", transactions=300)
    made.begin_at(main=300, side=200)
    made.log("side").fail_next(10**6, AWAY)
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "behind")
    for tx in (150, 100):
        rewind(made, "side", tx)
        wait_until(lambda t=tx: last(made, "side") and last(made, "side").to == {"tx": t})
    wait_until(lambda: made.control.progress().sinks["side"].position == {"tx": 100})
    made.log("side").heal()
    wait_until(lambda: is_done(made, "side"))
    end(made, running)
    assert delivered(made, "side") == [(tx, row) for tx in range(101, 301) for row in range(2)]
    assert delivered(made, "main") == []


def test_one_that_was_given_up_is_filled_again_without_a_gap():
    made = pipeline(source="", transactions=200)
    made.begin_at(main=200, side=40)
    gaps = Gaps(made.store, made.name)
    made.store.transact([gaps.give_up("side", {"tx": 40}, "too late", "position_lost")])
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "given_up")
    rewind(made, "side", 30)
    wait_until(lambda: is_done(made, "side"))
    end(made, running)
    assert {tx for tx, _ in delivered(made, "side")} == set(range(31, 201))
    [gap] = gaps.all()
    assert (gap.start, gap.end) == ({"tx": 40}, {"tx": 40})


@pytest.mark.parametrize(
    ("tx", "settings", "why"),
    [(201, "", "nothing behind"), (3, "purged_before: 50, ", "the log begins at 50")],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(tx, settings, why):
    made = pipeline(source=settings, transactions=200)
    made.begin_at(main=200, side=200)
    running = RunningLane(made)
    rewind(made, "side", tx)
    wait_until(lambda: last(made, "side") is not None)
    wait_until(lambda: stood(made, "side") == "running")
    end(made, running)
    assert last(made, "side").state == "refused"
    assert why in last(made, "side").reason
    assert delivered(made, "side") == []
    assert at(made, "side") == 200


def test_while_every_sink_is_given_the_log_again_the_lane_reads_on_and_begins_there():
    made = slow()
    made.begin_at(main=5, side=5)
    for sink in made.sinks:
        made.log(sink).hold()
        rewind(made, sink, 0)
    running = RunningLane(made)
    wait_until(lambda: len(Rewinds(made.store, made.name).running()) == 2)
    wait_until(lambda: (last(made, "main").lane or {}).get("tx", 0) > 25)
    assert made.status()[0] == "running"
    end(made, running)
    for sink in made.sinks:
        made.log(sink).let_go()
    made.want("running")
    running = RunningLane(made)
    wait_until(lambda: is_done(made, "main") and is_done(made, "side"))
    ends = end(made, running)
    assert [whole(made, name, ends[name]) for name in made.sinks] == [[], []]


def test_a_sink_that_needs_little_of_a_long_log_is_not_given_up_for_lagging():
    made = pipeline(*("", ("out",), ()), source="", transactions=15_000, sink="lag_limit_secs: 1, ")
    made.begin_at(out=15_000)
    running = RunningLane(made)
    rewind(made, "out", 1, "elsewhere.*")
    wait_until(lambda: last(made, "out") and last(made, "out").state != "running")
    end(made, running)
    assert (last(made, "out").state, last(made, "out").reason) == ("done", None)


def test_begun_again_behind_another_sink_it_still_delivers_only_its_tables():
    made = pipeline(source="", transactions=200)
    made.begin_at(main=100, side=40)
    rewinds = Rewinds(made.store, made.name)
    begun = rewinds.begin("main", {"tx": 10}, {"tx": 200}, ("elsewhere.*",), "a test")
    made.store.transact([rewinds.put(begun)])
    running = RunningLane(made)
    wait_until(lambda: is_done(made, "main") and at(made, "side") == 200)
    end(made, running)
    assert delivered(made, "main") == []
    assert at(made, "main") == 200


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_sink_that_the_pipeline_needs_and_has_given_up_is_filled_before_it_starts(is_kept):
    source = "" if is_kept else "purged_before: 32, "
    made = pipeline(source=source, transactions=200, optional=())
    made.begin_at(main=200, side=40)
    gaps = Gaps(made.store, made.name)
    made.store.transact([gaps.give_up("side", {"tx": 40}, "too late", "position_lost")])
    rewind(made, "side", 30)
    running = RunningLane(made)
    if not is_kept:
        assert "deltaforge rewind" in running.end().reason
        assert last(made, "side").state == "refused"
        assert gaps.open()
        return
    wait_until(lambda: is_done(made, "side"))
    end(made, running)
    assert {tx for tx, _ in delivered(made, "side")} == set(range(31, 201))
    assert not gaps.open()


def test_what_a_sink_lacked_is_no_gap_any_more_once_it_was_delivered():
    made = pipeline(source="", transactions=200)
    made.begin_at(main=200, side=200)
    gaps = Gaps(made.store, made.name)
    for start, until in ((20, 40), (60, 90), (100, 110)):
        made.store.transact([gaps.give_up("side", {"tx": start}, "too late", "position_lost")])
        [gap] = gaps.open().values()
        made.store.transact([gaps.close(gap, {"tx": until})])
        time.sleep(0.002)  # Gaps are told apart by when they began.
    running = RunningLane(made)
    rewind(made, "side", 70)
    wait_until(lambda: is_done(made, "side"))
    end(made, running)
    found = [(gap.start["tx"], gap.end["tx"]) for gap in gaps.all()]
    assert found == [(20, 40), (60, 70), (100, 100)]


def test_a_newer_request_is_checked_too_while_the_sink_is_still_writing():
    made = pipeline(source="purged_before: 20, ", transactions=200)
    made.begin_at(main=200, side=100)
    made.log("side").hold()
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") in ("behind", "catching_up"))
    rewind(made, "side", 50)
    time.sleep(0.3)  # It is about to begin.
    rewind(made, "side", 3)
    wait_until(lambda: last(made, "side") is not None)
    made.log("side").let_go()
    wait_until(lambda: stood(made, "side") == "running")
    end(made, running)
    assert last(made, "side").state == "refused"
    assert list(dict.fromkeys(delivered(made, "side"))) == [
        (tx, row) for tx in range(101, 201) for row in range(2)
    ]


def test_a_request_that_is_refused_while_another_rewind_runs_is_answered():
    made = pipeline(source="purged_before: 20, ", transactions=200, optional=())
    made.begin_at(main=200, side=200)
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "running")
    made.log("side").hold()
    rewind(made, "side", 50)
    wait_until(lambda: last(made, "side") is not None)
    request = Gaps(made.store, made.name).rewind("side", {"tx": 3}, (), "ann")
    made.store.transact([request])
    wait_until(lambda: not Gaps(made.store, made.name).wishes())
    [shown] = [entry for entry in entries(made.store, made.name) if entry["sink"] == "side"]
    found = look(made.store, made.name, rewound(["side"], "ann"))
    assert (shown["rewind"]["state"], shown["rewind_refused"]["by"]) == ("running", "ann")
    assert "the log begins at 20" in shown["rewind_refused"]["reason"]
    assert (found.met, found.words[:18]) == (None, "sink side: refused")
    made.log("side").let_go()
    wait_until(lambda: is_done(made, "side"))
    rewind(made, "side", 150)
    wait_until(lambda: last(made, "side").to == {"tx": 150} and is_done(made, "side"))
    end(made, running)
    assert Rewinds(made.store, made.name).refused() == {}


def test_a_request_that_comes_while_another_is_taken_is_kept():
    made = pipeline(source="", transactions=200)
    gaps = Gaps(made.store, made.name)
    for tx in (150, 120):
        rewind(made, "side", tx)
    [read] = gaps.wishes()
    assert read.to == {"tx": 120}
    rewind(made, "side", 90)
    made.store.transact(gaps.granted(read))
    [left] = gaps.wishes()
    assert left.to == {"tx": 90}


@pytest.mark.long
def test_a_paused_pipeline_begins_when_it_is_resumed_and_goes_on_after_a_pause():
    made = slow()
    driving = Driving(made)
    wait_until(lambda: at(made, "side") > 50)
    made.want("paused")
    wait_until(lambda: made.status()[0] == "paused")
    rewind(made, "side", 10)
    time.sleep(0.5)
    assert last(made, "side") is None
    made.log("side").hold()
    made.want("running")
    wait_until(lambda: last(made, "side") is not None)
    made.want("paused")
    wait_until(lambda: made.status()[0] == "paused")
    assert last(made, "side").state == "running"
    made.log("side").let_go()
    made.want("running")
    wait_until(lambda: is_done(made, "side"))
    made.want("stopped")
    driving.end()
    seen = delivered(made, "side")
    first = seen.index((11, 0), 101)
    again = list(dict.fromkeys(seen[first:]))
    assert again == [(tx, row) for tx in range(11, at(made, "side") + 1) for row in range(2)]
    assert whole(made, "main", at(made, "main")) == []
    assert len(delivered(made, "main")) == len(set(delivered(made, "main")))


@pytest.mark.long
def test_a_copy_that_runs_beside_waits_and_both_sinks_end_equal():
    made = pipeline(keys=2000, optional=())
    driving = Driving(made)
    wait_until(lambda: at(made, "main") > 300)
    state = made.request_copy()
    wait_until(lambda: state().rows > 0)
    rewind(made, "side", 100)
    wait_until(lambda: is_done(made, "side"))
    wait_until(lambda: state().settled)
    made.want("stopped")
    driving.end()
    finals = []
    for sink in ("main", "side"):
        rows = {}
        for message in made.log(sink).messages():
            event = orjson.loads(message.value)
            rows[event["after"]["id"]] = (event["after"]["tx"], event["after"]["row"])
        finals.append(rows)
    assert finals[0] == finals[1]
    assert at(made, "main") == at(made, "side")


def test_two_sinks_are_given_the_log_again_at_different_times_through_a_restart():
    made = slow()
    made.begin_at(main=20, side=20)
    made.log("side").hold()
    rewind(made, "side", 5)
    running = RunningLane(made)
    wait_until(lambda: at(made, "main") > 70)
    made.log("main").latency_s = 0.3
    rewind(made, "main", 30)
    wait_until(lambda: last(made, "main") is not None)
    end(made, running)
    assert len(Rewinds(made.store, made.name).running()) == 2
    made.log("main").latency_s = 0.0
    made.log("side").let_go()
    made.want("running")
    running = RunningLane(made)
    wait_until(lambda: is_done(made, "side") and is_done(made, "main"))
    ends = end(made, running)
    for sink, to, start in (("main", 30, 60), ("side", 5, 0)):
        seen = delivered(made, sink)
        again = seen[seen.index((to + 1, 0), start) :]
        assert list(dict.fromkeys(again)) == [
            (tx, row) for tx in range(to + 1, ends[sink] + 1) for row in range(2)
        ], sink


def test_a_copy_is_made_after_it_also_while_nothing_new_is_written():
    made = pipeline(source="", transactions=200, optional=())
    made.begin_at(main=200, side=200)
    driving = Driving(made)
    rewind(made, "side", 150)
    wait_until(lambda: is_done(made, "side"))
    state = made.request_copy()
    wait_until(lambda: state().settled)
    made.want("stopped")
    driving.end()
    assert state().state == "done"


def test_a_stopped_pipeline_begins_it_right_after_its_snapshot_and_the_neighbour_sees_nothing(
    monkeypatch,
):
    made = exact_pipeline(monkeypatch, sinks=("main", "side"), transactions=100, rows=2)
    snapshots_of = Snapshots(made.store, made.name)
    run = SnapshotRecord(
        id="r",
        generation=1,
        started_at_ms=1,
        start_position={"tx": 10},
        chunk_count=1,
        tables={"script.rows": {"chunks": 1, "rows_estimate": 1}},
        fresh_sinks=["main", "side"],
    )
    chunk = TableChunk("c", "script", None, "rows", {"columns": ["id"]})
    made.store.transact(snapshots_of.begin(run, [chunk]))
    cut = {"tx": 60}
    done = snapshots_of.chunk_done("r", "c", "script.rows", 1, cut, is_single_view=True)
    made.store.transact([done, *snapshots_of.finish(run)])
    made.begin_at(main=30, side=30)
    rewind(made, "side", 12)
    running = RunningLane(made)
    wait_until(lambda: is_done(made, "side") and at(made, "main") == at(made, "side") == 100)
    end(made, running)

    def transactions(sink):
        events = [orjson.loads(value)["after"] for _, value in held(made, sink).values]
        return [(event["tx"], event["row"]) for event in events]

    # Up to 60, the rows of the snapshot show everything; who was emptied may lack them.
    assert transactions("main") == [(tx, row) for tx in range(61, 101) for row in range(2)]
    assert transactions("side") == [(tx, row) for tx in range(13, 101) for row in range(2)]
