"""Requests and what became of them: stored as ever, and alike for copies and replays."""

import json

import pytest

from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.memory import MemoryStore
from airflow_provider_deltaforge.storage.records.control import Control, ControlRecord
from airflow_provider_deltaforge.storage.records.requests import (
    REPLAYS_KEPT,
    RESULTS_KEPT,
    Replay,
    ReplayRequest,
    Replays,
    SnapshotRequest,
    SnapshotResult,
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


# As a release before wrote them; what came since is counted from zero.
SINCE = {"restarts_total": 0, "pauses": 0, "resumes": 0}
CONTROL = (
    b'{"v":1,"desired":"running","generation":3,"spec_hash":"h","source_id":"shop","tenant":"acme","owner":null,'
    b'"handle":null,"requests":[{"id":"nightly","ticket":"0123456789ab","tables":["shop.a"],'
    b'"where":"id > 3","requested_at_ms":7,"by":"me","cancelled":"changed my mind"}],"replays":'
    b'[{"ticket":"ba9876543210","which":{"sink":null,"processor":null,"kind":null,"table":null,'
    b'"first":null,"last":null},"overtaken":"send","requested_at_ms":8,"by":"me",'
    b'"cancelled":null}],"restarts":[],"updated_at_ms":9}'
)
RESULT = (
    b'{"v":1,"id":"nightly","ticket":"0123456789ab","state":"failed","wish":{"tables":["shop.a"],'
    b'"where":"id > 3"},"by":"me","requested_at_ms":7,"started_at_ms":3,"finished_at_ms":11,'
    b'"tables":{"shop.a":{"chunks":1,"rows":2}},"reason":"r","error_class":"fatal"}'
)
REPLAY = (
    b'{"v":1,"ticket":"ba9876543210","state":"done","started_at_ms":1,"finished_at_ms":2,'
    b'"at_seq":3,"sent":4,"refused":5,"dropped":6,"overtaken":7,"behind":8,"away":9,"unfit":10,'
    b'"reason":null,"error_class":null}'
)


@pytest.mark.parametrize(
    ("kind", "text"),
    [(ControlRecord, CONTROL), (SnapshotResult, RESULT), (Replay, REPLAY)],
)
def test_what_was_stored_is_read_and_stored_again_as_it_was(kind, text):
    again = json.loads(kind.from_stored(text, "it").model_dump_json())
    since = SINCE if kind is ControlRecord else {}
    assert again == {**json.loads(text), **since}


def test_results_are_found_where_they_were_stored(store):
    store.put(names.SNAPSHOTS, "orders/result/0123456789ab", RESULT)
    store.put(names.JOURNAL, "orders/replay/ba9876543210", REPLAY)

    assert SnapshotResults(store, "orders").of("0123456789ab").reason == "r"
    assert Replays(store, "orders").of("ba9876543210").unfit == 10


def test_replays_under_way_are_kept_beside_the_latest_that_ended(store):
    replays = Replays(store, "orders")
    store.transact(replays.put(Replay(ticket="running", started_at_ms=0)))
    for number in range(REPLAYS_KEPT + 3):
        ended = Replay(ticket=f"t{number:02}", state="done", finished_at_ms=number + 1)
        store.transact(replays.put(ended))
    kept = [replay.ticket for replay in replays.all()]

    assert kept == ["running", *(f"t{number:02}" for number in range(3, REPLAYS_KEPT + 3))]


def test_a_request_of_either_kind_is_found_and_taken_out_by_its_ticket(store):
    control = Control(store, "orders")
    copy = SnapshotRequest(id="nightly", requested_at_ms=1, by="me", cancelled="no more")
    replay = ReplayRequest(requested_at_ms=2, by="me")
    control.update(lambda old: old.model_copy(update={"requests": [copy], "replays": [replay]}))

    assert control.read().request(replay.ticket) == replay
    assert control.why_cancelled(copy.ticket) == "no more"
    assert control.why_cancelled(replay.ticket) is None
    control.remove_request(replay.ticket)
    assert (control.read().requests, control.read().replays) == ([copy], [])
    assert control.why_cancelled(replay.ticket) == "withdrawn"
