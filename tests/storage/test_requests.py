"""What became of snapshot requests: the latest ones are kept, and found by ticket and by id."""

import pytest

from airflow_provider_deltaforge.storage.memory import MemoryStore
from airflow_provider_deltaforge.storage.records.requests import (
    RESULTS_KEPT,
    SnapshotRequest,
    SnapshotResults,
    result_of,
)


@pytest.fixture
def store():
    return MemoryStore()


def keep(store, request_id, at_ms, needed=()):
    request = SnapshotRequest(id=request_id, requested_at_ms=1, by="me", tables=["shop.a"])
    result = result_of(request, "done").model_copy(update={"finished_at_ms": at_ms})
    store.transact(SnapshotResults(store, "orders").put(result, needed))
    return request.ticket


def test_a_result_is_found_by_its_ticket_and_the_latest_by_its_id(store):
    first, second = keep(store, "nightly", 1), keep(store, "nightly", 2)
    results = SnapshotResults(store, "orders")

    assert results.of(first).finished_at_ms == 1
    assert results.latest("nightly").ticket == second
    assert results.of("unknown") is None
    assert results.latest("unknown") is None
    assert SnapshotResults(store, "orders2").all() == []


def test_the_oldest_results_are_forgotten_but_not_those_still_in_the_record(store):
    tickets = [keep(store, f"r{at}", at) for at in range(RESULTS_KEPT)]
    keep(store, "one more", 1000, needed=[tickets[0]])
    kept = [result.ticket for result in SnapshotResults(store, "orders").all()]

    assert tickets[0] in kept
    assert len(kept) == RESULTS_KEPT + 1
    keep(store, "and another", 1001)
    kept = [result.ticket for result in SnapshotResults(store, "orders").all()]
    assert tickets[0] not in kept
    assert len(kept) == RESULTS_KEPT
