"""Sinks that hold more than the lane delivers keep the last state of each row as the last one."""

import threading

import pytest

from airflow_provider_deltaforge.engine.archive.lane_archive import LaneArchive
from airflow_provider_deltaforge.engine.base.heartbeat import Heartbeat
from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.engine.base.sink_stats import SinkStats
from airflow_provider_deltaforge.engine.catch_up.rejoin_point import RejoinPoint
from airflow_provider_deltaforge.engine.catch_up.second_reader import CatchUpContext
from airflow_provider_deltaforge.engine.catch_up.skip_list import SkipList
from airflow_provider_deltaforge.engine.dead_letters.queue import DeadLetterQueue
from airflow_provider_deltaforge.engine.lane.delivery import Delivery
from airflow_provider_deltaforge.engine.lane.lane import Lane
from airflow_provider_deltaforge.engine.read.batcher import SourceBatch
from airflow_provider_deltaforge.sources.turso.positions import FilePosition
from airflow_provider_deltaforge.sources.turso.source import TursoSource
from tests.engine.in_process import InProcess
from tests.engine.running import RunningLane, places, run_to_the_end
from tests.waiting import wait_until

ROWS, HELD, END = 20, 40, 60


@pytest.mark.parametrize(
    "batch",
    ["respect_source_tx: false, ", "max_transaction_bytes: 512, ", ""],
    ids=["transactions in parts", "large transactions", "whole transactions"],
)
def test_a_sink_ahead_is_given_nothing_again_though_the_lane_stops_on_its_way(batch):
    pipeline = InProcess(transactions=END, rows=ROWS, sinks=("main", "side"), batch=batch)
    pipeline.document = pipeline.document.replace("max_events: 30", f"max_events: {ROWS // 4}")
    pipeline.apply()
    pipeline.begin_at(main=HELD, side=0)
    pipeline.log("side").latency_s = 0.02
    running = RunningLane(pipeline)
    wait_until(lambda: pipeline.checkpoints().load()["side"]["tx"] >= 5)
    pipeline.want("stopped")
    running.end()
    assert pipeline.log("main").messages() == []

    pipeline.log("side").latency_s = 0.0
    pipeline.want("running")
    run_to_the_end(pipeline, END)
    assert places(pipeline, "main") == [
        (tx, row) for tx in range(HELD + 1, END + 1) for row in range(ROWS)
    ]


@pytest.fixture
def joined():
    """Return what delivers batches for ``main``, at 1, and for ``side``, which joined at 3."""
    pipeline = InProcess(sinks=("main", "side"))
    pipeline.begin_at(main=1, side=3)
    context, checkpoints = pipeline.context(), pipeline.checkpoints()
    checkpoints.load()
    source, stats = context.pipeline.spec.source, LaneStats({"main": SinkStats()})
    over, heartbeat = threading.Event(), Heartbeat(context, stats, 60, "running")
    shared = CatchUpContext(
        context,
        stats,
        RejoinPoint(source, {"tx": 1}),
        over.is_set,
        heartbeat.confirm,
        threading.Lock(),
        lambda call: call(),
    )
    skip_list = SkipList(source, ["main", "side"])
    skip_list.leave("side")
    skip_list.join("side", {"tx": 3}, {"tx": 1})
    delivery = Delivery(
        shared,
        skip_list,
        checkpoints,
        DeadLetterQueue(context, stats.dead_letters, stats.report_error, over, heartbeat.confirm),
        heartbeat,
        LaneArchive(context, stats, heartbeat),
    )
    lane, reader = Lane(context, 60.0), source.open({"tx": 0}, over.is_set)
    lane._rendering.open()
    rows, ahead = reader.decode(reader.read(1.0)).rows, lane._rendering.ahead(lambda _: True)

    def deliver(first, last, position):
        batch = SourceBatch(rows.slice(first, last - first), position, 1)
        delivery.deliver(lane._prepare(ahead, batch))

    yield pipeline, deliver
    over.set()
    delivery.close()
    lane._rendering.close()


def test_one_that_joined_further_on_skips_whole_batches(joined):
    pipeline, deliver = joined
    deliver(3, 9, {"tx": 3})
    assert len(places(pipeline, "main")) == 6
    assert places(pipeline, "side") == []
    assert pipeline.checkpoints().load()["side"] == {"tx": 3}


@pytest.mark.parametrize(
    ("last", "position"), [(5, None), (12, {"tx": 4})], ids=["in a transaction", "behind it"]
)
def test_the_checkpoint_of_one_that_gets_again_what_it_holds_goes_back_first(
    joined, last, position
):
    """The next lane would skip the rest of it, and leave the sink with older states."""
    pipeline, deliver = joined
    deliver(3, last, position)
    assert places(pipeline, "side") == places(pipeline, "main") != []
    assert pipeline.checkpoints().load()["side"] == {"tx": 1}


@pytest.mark.parametrize(("mode", "is_ordered"), [("triggers", True), ("polling", False)])
def test_what_polling_finds_has_no_place_where_batches_could_be_cut(mode, is_ordered):
    source = TursoSource.model_construct(id="polled")
    assert source.is_ordered(FilePosition(mode).as_json()) is is_ordered
