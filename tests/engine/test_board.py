"""What a lane tells of itself: latency begins at the source's commit, counters go on."""

import time
from collections import Counter

import numpy as np

from airflow_provider_deltaforge.engine.board import LATENCY_BUCKETS_S, BatchFacts, Board


def facts(ages_s):
    now_ms = time.time() * 1000
    commit_ms = np.array([now_ms - age * 1000 for age in ages_s], dtype=np.int64)
    return BatchFacts(len(ages_s), 100, commit_ms, Counter({("shop.orders", "c"): len(ages_s)}))


def test_latency_is_counted_from_the_commit_and_not_from_the_receipt():
    board = Board()
    board.delivered(facts([20.0, 20.0, 0.0]), {"kafka": 10})

    latency = board.counters()["latency"]
    counts = dict(zip([*LATENCY_BUCKETS_S, None], latency["counts"], strict=True))
    assert counts[30.0] == 2
    assert sum(counts.values()) == 3
    assert 39.0 < latency["sum_s"] < 45.0


def test_lag_is_the_age_of_the_newest_event():
    board = Board()
    board.delivered(facts([90.0, 20.0]), {"kafka": 10})

    assert 19_000 < board.lag_ms() < 25_000


def test_lag_grows_while_a_sink_is_away():
    board = Board()
    board.delivered(facts([0.0]), {"kafka": 10})
    before = board.lag_ms()
    board.sink_trouble("kafka", RuntimeError("away"))
    time.sleep(0.05)

    assert board.lag_ms() >= before + 40


def test_snapshot_rows_count_for_every_sink():
    board = Board()
    board.copied("shop.orders", 7, {"kafka": 700, "file": 70})

    assert board.counters()["tables"] == {"shop.orders": {"r": 7}}
    assert {name: (sink.events, sink.bytes) for name, sink in board.sinks.items()} == {
        "kafka": (7, 700),
        "file": (7, 70),
    }
