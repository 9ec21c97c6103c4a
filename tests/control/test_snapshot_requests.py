"""Asking for copies, looking at them, and withdrawing them: all of it in the state store."""

import pytest

from airflow_provider_deltaforge.control import pipelines, snapshots, starting
from airflow_provider_deltaforge.control.snapshots import CopySelection
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.requests import SnapshotResults, result_of
from tests.control.bench import DOCUMENT, job_of
from tests.waiting import wait_until

ROWS = CopySelection(("script.rows",))


@pytest.fixture
def applied(store):
    pipelines.apply(store, DOCUMENT)
    return store


def ask(store, request_id="nightly", wish=ROWS, by="me"):
    return snapshots.request(store, "orders", wish, request_id, by)


def settle(store, state="done", **details):
    """Do what a driver does at the end of the first request, up to its removal."""
    request = Control(store, "orders").read().requests[0]
    result = result_of(request, state, **details)
    store.transact(SnapshotResults(store, "orders").put(result))


def pending(store):
    return [(known.id, known.by) for known in Control(store, "orders").read().requests]


@pytest.mark.parametrize(
    ("tables", "where", "wish"),
    [
        ("a.b, a.c,", None, CopySelection(("a.b", "a.c"))),
        (["a.b"], " id > 5 ", CopySelection(("a.b",), "id > 5")),
        ("", "", CopySelection()),
        (None, None, CopySelection()),
    ],
)
def test_what_people_write_is_a_wish(tables, where, wish):
    assert CopySelection.of(tables, where) == wish


@pytest.mark.parametrize(
    ("tables", "where", "key"),
    [("a.b,a.c", "id > 5", "where"), ([], "1", "where"), ([1], "", "tables"), ([""], "", "tables")],
)
def test_a_wrong_wish_is_refused_with_its_key(tables, where, key):
    with pytest.raises(SpecError, match=f"^{key}: "):
        CopySelection.of(tables, where)


def test_an_id_that_is_pending_is_adopted_by_whoever_asks_again(applied):
    assert ask(applied).state == "pending"
    ask(applied, "other")
    ask(applied, by="the next attempt")

    assert pending(applied) == [("nightly", "the next attempt"), ("other", "me")]


def test_an_id_that_is_pending_with_another_wish_is_asked_anew(applied):
    ask(applied)
    ask(applied, "other")
    assert ask(applied, wish=CopySelection(("script.rows",), "id > 5")).where == "id > 5"

    first, _, last = Control(applied, "orders").read().requests
    assert first.cancelled
    assert (last.id, last.cancelled) == ("nightly", None)
    assert snapshots.request_state(applied, "orders", "nightly").where == "id > 5"


def test_a_finished_id_that_is_asked_again_is_a_new_copy(applied):
    ask(applied)
    settle(applied, tables={"script.rows": {"chunks": 2, "rows": 60}})
    done = snapshots.request_state(applied, "orders", "nightly")
    assert (done.state, done.rows, done.settled) == ("done", 60, True)

    assert ask(applied).state == "pending"
    assert snapshots.request_state(applied, "orders", "nightly").state == "pending"
    assert [state.state for state in snapshots.requests(applied, "orders")] == ["done", "pending"]


def test_only_its_asker_withdraws_a_request(applied):
    ask(applied)
    ask(applied, by="the next attempt")

    assert not snapshots.cancel(applied, "orders", "nightly", "killed", by="me")
    assert snapshots.request_state(applied, "orders", "nightly").state == "pending"
    assert snapshots.cancel(applied, "orders", "nightly", "killed", by="the next attempt")
    state = snapshots.request_state(applied, "orders", "nightly")
    assert (state.state, state.reason) == ("cancelled", "killed")
    assert not snapshots.cancel(applied, "orders", "nightly", "again")


def test_a_copy_that_is_finished_cannot_be_withdrawn(applied):
    ask(applied)
    settle(applied)

    assert not snapshots.cancel(applied, "orders", "nightly", "too late")
    assert snapshots.request_state(applied, "orders", "nightly").state == "done"


def test_nobody_knows_a_request_that_was_never_made(applied):
    assert snapshots.request_state(applied, "orders", "unheard") is None
    with pytest.raises(SpecError, match="no pipeline"):
        snapshots.request(applied, "nowhere", ROWS, "r", "me")


def test_a_driver_that_lives_is_left_to_its_supervisor(applied, dsn, backend):
    starting.start(applied, job_of(dsn), backend, "the stream's task")
    wait_until(lambda: status(applied, "orders", backend).status == "running")
    ask(applied)

    assert snapshots.serve(applied, job_of(dsn), backend, "me") is None
    record = Control(applied, "orders").read()
    assert (record.owner, record.generation) == ("the stream's task", 1)


def test_without_a_driver_a_job_is_started_that_makes_way_for_the_stream(applied, dsn, backend):
    ask(applied)
    started = snapshots.serve(applied, job_of(dsn), backend, "me")
    assert started.handle["script"] == "snapshot_job.py"
    assert started.handle["arguments"] == ["--requests"]
    wait_until(lambda: status(applied, "orders", backend).status == "running")

    assert snapshots.serve(applied, job_of(dsn), backend, "another") is None
    stream = starting.start(applied, job_of(dsn), backend, "the stream's task")
    assert (stream.generation, stream.handle["script"]) == (2, "stream_job.py")


def test_a_paused_pipelines_requests_wait(applied, dsn, backend):
    Control(applied, "orders").update(lambda old: old.model_copy(update={"desired": "paused"}))
    ask(applied)

    assert snapshots.serve(applied, job_of(dsn), backend, "me") is None
    assert Control(applied, "orders").read().generation == 0
