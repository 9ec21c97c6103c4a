"""What lanes count is stored as it always was, and read typed."""

import json

import pytest

from airflow_provider_deltaforge.storage.records.control import Progress
from airflow_provider_deltaforge.storage.records.stats import (
    LATENCY_BUCKETS_S,
    DeadLetterCounts,
    Latency,
    ProcessorCounts,
    SinkProgress,
    Stats,
)

LATENCY = {"buckets_s": list(LATENCY_BUCKETS_S), "counts": [*range(14)], "sum_s": 1.5}

# As the release before wrote it.
STORED = {
    "v": 1,
    "status": "running",
    "since_ms": 1795434912838,
    "epoch": 14,
    "generation": 1,
    "heartbeat_at_ms": 1795434912840,
    "beat": 97,
    "boot": "fcf9fa94-dd76/time:[4026531834]",
    "beat_s": 17111.302054118,
    "reason": None,
    "error_class": None,
    "batch_id": 2,
    "position": {"mode": "native", "last_change_id": 6},
    "head_position": None,
    "lag_ms": 12,
    "events": 41,
    "bytes": 4100,
    "batches": 2,
    "sinks": {
        "native": {
            "status": "running",
            "since_ms": None,
            "reason": None,
            "error_class": None,
            "position": {"mode": "native", "last_change_id": 6},
            "checkpoint_ms": 1795434912424,
            "lag_ms": None,
            "events": 41,
            "bytes": 415,
            "batches": 2,
            "retries": 3,
        }
    },
    "tables": {"main.orders": {"events": {"r": 1, "c": 40}}},
    "extra": {
        "transaction_splits": 4,
        "source_reconnects": 5,
        "last_commit_ms": 1795434912000,
        "latency": LATENCY,
        "processors": {
            "few": {
                "events_in": 41,
                "events_out": 40,
                "errors": 1,
                "counts": {"dropped": 1},
                "latency": LATENCY,
            }
        },
        "dlq": {
            "events": [{"sink": "", "processor": "few", "error_kind": "processor", "count": 9}],
            "evicted": 1,
            "rejected": 2,
            "expired": 3,
            "replayed": 4,
            "write_failures": 5,
            "max_entries": 10000,
        },
        "has_run": True,
    },
    "host": "vm",
    "pid": 26889,
    "application_id": None,
}


LATER = (
    "checkpoints",
    "batch_events",
    "batch_bytes",
    "data_drift",
    "count_gaps",
    "has_ended",
)
NEW = {**{name: Stats().model_dump()[name] for name in LATER}, "minute": None}
"""What later releases have counted, from nothing."""


def _stored_again(stored):
    tables = {name: {**counts, "durable": 0} for name, counts in stored["tables"].items()}
    sinks = {name: {**progress, "behind_s": None} for name, progress in stored["sinks"].items()}
    extra = {**stored["extra"], **NEW}
    return {**stored, "tables": tables, "sinks": sinks, "extra": extra}


def _read(stored):
    return Progress.from_stored(json.dumps(stored).encode(), "it")


def test_what_was_stored_is_read_typed_and_stored_again_as_it_was():
    progress = _read(STORED)

    assert (progress.events, progress.transaction_splits, progress.source_reconnects) == (41, 4, 5)
    assert (progress.last_commit_ms, progress.has_run) == (1795434912000, True)
    assert progress.sinks["native"].retries == 3
    assert progress.tables["main.orders"].events == {"r": 1, "c": 40}
    assert progress.processors["few"].counts == {"dropped": 1}
    assert progress.latency.sum_s == 1.5
    assert progress.dlq.events[0].count == 9
    assert (progress.dlq.max_entries, progress.dlq.entries) == (10000, None)
    assert json.loads(progress.model_dump_json()) == _stored_again(STORED)


def test_a_pipeline_without_a_queue_stores_no_limit_of_it():
    extra = STORED["extra"]
    dlq = {key: value for key, value in extra["dlq"].items() if key != "max_entries"}
    stored = {**STORED, "extra": {**extra, "dlq": dlq}}

    assert json.loads(_read(stored).model_dump_json()) == _stored_again(stored)


@pytest.mark.parametrize("extra", [{}, {"counted_later": 7}])
def test_numbers_that_are_missing_are_zero_and_later_ones_are_passed_over(extra):
    progress = _read({**STORED, "extra": extra})

    assert progress.latency == Latency()
    assert (progress.transaction_splits, progress.processors, progress.has_run) == (0, {}, False)


def test_the_next_driver_goes_on_with_everything_but_what_other_records_hold():
    counted = _read(STORED).counted()

    assert {*Stats.model_fields} - {*counted} == {"position", "lag_ms", "data_drift"}
    assert counted["sinks"]["native"].counted() == {
        "events": 41,
        "bytes": 415,
        "batches": 2,
        "retries": 3,
    }


def test_every_number_of_a_record_is_added():
    read = _read(STORED)
    processor = ProcessorCounts(events_in=1, counts={"dropped": 2, "other": 1})
    processor.add(read.processors["few"])
    dlq = DeadLetterCounts(**dict.fromkeys(DeadLetterCounts.model_fields.keys() - {"events"}, 1))
    dlq.add(read.dlq)

    assert (processor.events_in, processor.events_out, processor.errors) == (42, 40, 1)
    assert processor.counts == {"dropped": 3, "other": 1}
    assert processor.latency == read.latency
    assert (dlq.evicted, dlq.rejected, dlq.expired, dlq.replayed) == (2, 3, 4, 5)
    assert read.processors["few"].counts == {"dropped": 1}


def test_nothing_is_known_of_another_releases_buckets():
    latency = Latency(counts=[1] * 14)
    latency.add(Latency(buckets_s=[1.0], counts=[5, 5], sum_s=9.0))

    assert (latency.counts, latency.sum_s) == ([1] * 14, 0.0)


def test_a_sink_as_it_is_stored_has_the_words_it_always_had():
    assert json.loads(SinkProgress().model_dump_json()) == {
        **dict.fromkeys(("since_ms", "reason", "error_class", "position", "checkpoint_ms")),
        "status": "running",
        **dict.fromkeys(("lag_ms", "behind_s")),
        **dict.fromkeys(("events", "bytes", "batches", "retries"), 0),
    }
