"""The snapshot operator: asks, waits, survives what dies, and never touches a stream."""

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_deltaforge.control import pipelines, snapshots, starting
from airflow_provider_deltaforge.control.snapshots import CopySelection
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.triggers.snapshot import variable
from tests.airflow.bench import airflow_says, context, deferred, fired, travelled
from tests.airflow.copies import (
    REQUEST,
    ROWS,
    Kept,
    completed,
    settle,
    snapshot,
    streaming,
    with_snapshot,
)
from tests.control.bench import DOCUMENT, job_of
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("connection")


def test_without_a_driver_a_job_makes_the_copy_and_ends(document, store, real, published):
    told = context()
    operator = snapshot(document, tables=f" {ROWS} ,")
    trigger = deferred(lambda: operator.execute(told))
    assert told["pushed"]["driver"]["script"] == "snapshot_job.py"
    event = fired(travelled(trigger), 120)
    counts = completed(operator, event)

    assert (counts["request"], counts["finished"], counts["chunks"]) == (REQUEST, True, 1)
    assert counts["rows"] == counts["tables"][ROWS]["rows"] > 0
    assert published["deltaforge_orders"]["copies"] == {REQUEST: counts}
    # The result is stored first; taking the request out of the record is a step of its own.
    wait_until(lambda: Control(store, "orders").read().requests == [])
    wait_until(lambda: status(store, "orders", real).status == "stopped")


def test_beside_a_stream_the_task_only_watches(document, store, dsn, backend, published):
    started = streaming(store, dsn, backend)
    told = context()
    operator = snapshot(document, mode="always")
    trigger = travelled(deferred(lambda: operator.execute(told)))
    assert "driver" not in told["pushed"]
    assert trigger.look()[0] is None
    settle(store, tables={ROWS: {"chunks": 2, "rows": 7}})
    counts = completed(operator, fired(trigger))

    assert (counts["rows"], counts["state"]) == (7, "done")
    record = Control(store, "orders").read()
    assert (record.owner, record.generation) == ("the stream's task", started.generation)
    assert published["deltaforge_orders"]["copies"][REQUEST]["rows"] == 7


@pytest.mark.parametrize(
    ("state", "reason"),
    [("failed", "spec: orders: .*no such"), ("cancelled", "withdrawn: no such")],
)
def test_a_request_that_failed_fails_the_task_with_its_reason(
    document, store, dsn, backend, state, reason
):
    streaming(store, dsn, backend)
    operator = snapshot(document, tables=[ROWS])
    trigger = travelled(deferred(lambda: operator.execute(context())))
    settle(store, state, reason="no such table", error_class="spec")

    with pytest.raises(AirflowFailException, match=reason):
        completed(operator, fired(trigger))
    assert status(store, "orders", backend).status == "running"


def test_a_retry_adopts_its_pending_request(document, store, dsn, backend):
    streaming(store, dsn, backend)
    operator = snapshot(document, tables=[ROWS], where="id > 5")
    deferred(lambda: operator.execute(context()))
    deferred(lambda: operator.execute(context(try_number=2)))
    (request,) = Control(store, "orders").read().requests

    assert (request.id, request.where) == (REQUEST, "id > 5")
    assert "#2@" in request.by


def test_a_task_ended_by_a_user_withdraws_its_request_and_leaves_the_stream(
    document, store, dsn, backend
):
    streaming(store, dsn, backend)
    trigger = deferred(lambda: snapshot(document, tables=[ROWS]).execute(context()))
    asyncio.run(travelled(trigger).on_kill())

    assert snapshots.request_state(store, "orders", REQUEST).state == "cancelled"
    assert status(store, "orders", backend).status == "running"


def test_clearing_a_task_leaves_the_request_to_the_next_attempt(document, store, dsn, backend):
    streaming(store, dsn, backend)
    operator = snapshot(document, tables=[ROWS])
    cleared = deferred(lambda: operator.execute(context()))
    deferred(lambda: operator.execute(context(try_number=2)))
    asyncio.run(travelled(cleared).on_kill())

    assert snapshots.request_state(store, "orders", REQUEST).state == "pending"


@pytest.mark.parametrize(
    ("ended", "state"),
    [
        pytest.param("failed", "cancelled", id="marked failed"),
        pytest.param("running", "pending", id="worker drained"),
    ],
)
def test_a_worker_asks_why_it_is_killed(document, store, dsn, backend, monkeypatch, ended, state):
    streaming(store, dsn, backend)
    operator = snapshot(document, tables=[ROWS])
    deferred(lambda: operator.execute(context()))
    airflow_says(monkeypatch, ended)

    operator.on_kill()

    assert snapshots.request_state(store, "orders", REQUEST).state == state


def test_a_task_that_a_user_ends_while_it_asks_withdraws_the_request(
    document, store, dsn, backend, monkeypatch
):
    streaming(store, dsn, backend)
    airflow_says(monkeypatch, "failed")
    operator = snapshot(document, tables=[ROWS])
    operator.on_kill()  # The signal comes when there is nothing to withdraw yet.
    deferred(lambda: operator.execute(context()))

    assert snapshots.request_state(store, "orders", REQUEST).state == "cancelled"


def test_a_stream_that_nobody_revives_is_replaced_by_a_job(document, store, dsn, backend):
    started = streaming(store, dsn, backend)
    operator = snapshot(document, tables=[ROWS], patience=timedelta(seconds=0.3))
    trigger = travelled(deferred(lambda: operator.execute(context())))
    os.killpg(started.handle["pid"], signal.SIGKILL)
    event = fired(trigger, 60)
    assert event["event"] == "unserved"
    told = context()
    deferred(lambda: completed(operator, event, told))

    assert told["pushed"]["driver"]["script"] == "snapshot_job.py"
    assert Control(store, "orders").read().generation == started.generation + 1


def test_a_dead_stream_is_its_own_supervisors_to_revive(document, store, dsn, backend):
    started = streaming(store, dsn, backend)
    trigger = travelled(deferred(lambda: snapshot(document, tables=[ROWS]).execute(context())))
    os.killpg(started.handle["pid"], signal.SIGKILL)
    wait_until(lambda: status(store, "orders", backend).status == "lost")

    assert trigger.look()[0] is None
    again = replace(job_of(dsn), generation=1)
    starting.restart(store, again, backend, "the stream's task")
    wait_until(lambda: status(store, "orders", backend).status == "running")
    assert trigger.look()[0] is None


def test_a_person_who_stops_the_pipeline_is_obeyed(document, store, dsn, backend):
    streaming(store, dsn, backend)
    operator = snapshot(document, tables=[ROWS])
    trigger = travelled(deferred(lambda: operator.execute(context())))
    pipelines.stop(store, "orders", backend)
    event = fired(trigger)

    with pytest.raises(AirflowException, match="goes on with the chunks"):
        completed(operator, event)
    assert snapshots.request_state(store, "orders", REQUEST).state == "pending"
    assert status(store, "orders", backend).status == "stopped"


def test_two_tasks_share_one_job(document, store, backend):
    first = deferred(lambda: snapshot(document, tables=[ROWS]).execute(context()))
    other = context()
    other["ti"].run_id = "r2"
    second = deferred(lambda: snapshot(document, tables=[ROWS]).execute(other))

    assert "driver" not in other["pushed"]
    assert (first.watched.generation, second.watched.generation) == (1, 0)
    assert len(Control(store, "orders").read().requests) == 2


@pytest.mark.parametrize("tables", [(), (ROWS,)])
def test_a_job_that_ends_without_finishing_is_not_green(document, store, monkeypatch, tables):
    monkeypatch.setenv("FAKE_DRIVER", "exit:0")
    operator = snapshot(with_snapshot(document), tables=tables)
    event = fired(travelled(deferred(lambda: operator.execute(context()))))

    with pytest.raises(AirflowFailException, match="snapshot not finished"):
        completed(operator, event)
    # What a red task asked for is not served behind its back.
    assert all(known.cancelled for known in Control(store, "orders").read().requests)


def test_a_job_that_dies_is_restarted_by_its_own_task(document, store, backend):
    operator = snapshot(document, tables=[ROWS])
    trigger = deferred(lambda: operator.execute(context()))
    wait_until(lambda: status(store, "orders", backend).status == "running")
    os.killpg(Control(store, "orders").read().handle["pid"], signal.SIGKILL)
    event = fired(travelled(trigger))
    assert event["event"] == "ended"
    again = deferred(lambda: completed(operator, event))
    assert fired(travelled(again))["event"] == "resubmit"


def test_the_pipelines_own_snapshot_is_taken_once(document, store, real, published):
    operator = snapshot(with_snapshot(document))
    event = fired(travelled(deferred(lambda: operator.execute(context()))), 120)
    first = completed(operator, event)
    told = context()

    assert (first["finished"], first["request"]) == (True, None)
    assert operator.execute(told) == first
    assert "driver" not in told["pushed"]
    assert published["deltaforge_orders"] == {"snapshot": first, "copies": {}}


def test_copies_leave_the_counts_of_others_in_the_mirror(document, store, real, published):
    operator = snapshot(with_snapshot(document))
    first = completed(
        operator, fired(travelled(deferred(lambda: operator.execute(context()))), 120)
    )
    contexts = [context() for _ in range(2)]
    triggers = []
    for number, told in enumerate(contexts):
        told["ti"].run_id = f"again-{number}"
        triggers.append(deferred(lambda t=told: snapshot(document, mode="always").execute(t)))
    for told, trigger in zip(contexts, triggers, strict=True):
        assert completed(snapshot(document), fired(travelled(trigger), 120), told)["finished"]

    mirror = published["deltaforge_orders"]
    assert mirror["snapshot"] == first
    assert list(mirror["copies"]) == [f"airflow:d/t/again-{number}/-1" for number in range(2)]
    own = snapshots.progress(store, "orders")
    assert (own["ticket"], own["rows"]) == (None, first["rows"])
    requests = snapshots.requests(store, "orders")
    assert [(request.state, request.ticket is None) for request in requests] == [
        ("done", False)
    ] * 2


def test_pipelines_of_one_name_have_mirrors_of_their_own():
    names = {variable("orders", conn) for conn in ("deltaforge_default", "shop", "stock")}
    assert names == {"deltaforge_orders", "deltaforge_shop_orders", "deltaforge_stock_orders"}


def test_a_resumed_task_waits_for_a_store_that_is_away(
    document, store, dsn, backend, store_away, published
):
    streaming(store, dsn, backend)
    operator = snapshot(document, tables=[ROWS])
    trigger = travelled(deferred(lambda: operator.execute(context())))
    settle(store, tables={ROWS: {"chunks": 2, "rows": 7}})
    event = fired(trigger)
    with store_away():
        again = travelled(deferred(lambda: completed(operator, event)))
        assert again.look() == (None, again.look()[1])

    assert again.watch == trigger.watch
    assert completed(operator, fired(again))["rows"] == 7


def test_an_own_snapshot_that_a_live_stream_will_not_take_is_refused(document, store, dsn, backend):
    streaming(store, dsn, backend)

    with pytest.raises(AirflowFailException, match="mode 'always'"):
        snapshot(with_snapshot(document)).execute(context())


def test_a_document_without_a_snapshot_needs_no_job(document, store):
    told = context()

    assert snapshot(document).execute(told) is None
    assert told["pushed"] == {}
    assert Control(store, "orders").read().generation == 0


def test_a_stream_that_began_without_its_snapshot_needs_no_job(document, store):
    pipelines.apply(store, DOCUMENT)
    store.transact([Checkpoints(store, "orders", "shop-db").put("files", {"tx": 3})])

    assert snapshot(with_snapshot(document)).execute(context()) is None
    assert Control(store, "orders").read().generation == 0


def test_a_job_that_finds_nothing_to_take_is_a_success(document, store, real, monkeypatch):
    monkeypatch.setenv("MODE", "never")  # Known to the driver only.
    operator = snapshot(with_snapshot(document, "${MODE:-initial}"))
    event = fired(travelled(deferred(lambda: operator.execute(context()))), 120)

    assert (event["event"], event["exit_code"]) == ("ended", 0)
    assert completed(operator, event) is None


def test_mode_never_copies_nothing(document, store):
    assert snapshot(document, mode="never", tables=[ROWS]).execute(context()) is None
    assert Control.list_pipelines(store) == []


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"mode": "sometimes"}, "mode: must be"),
        ({"where": "id > 5"}, "where: .*exactly one table"),
        ({"tables": "a.b,a.c", "where": "1"}, "where: .*exactly one table"),
    ],
)
def test_wrong_arguments_fail_the_task_and_name_the_key(document, told, reason):
    with pytest.raises(AirflowFailException, match=reason):
        snapshot(document, **told).execute(context())


def test_a_retry_after_the_copy_was_served_returns_it(document, store, dsn, backend, published):
    streaming(store, dsn, backend)
    kept = Kept()
    operator = snapshot(document, tables=[ROWS])
    deferred(lambda: operator.execute({**context(), "task_state_store": kept}))
    settle(store, tables={ROWS: {"chunks": 1, "rows": 5}})  # And the worker dies.
    again = {**context(try_number=2), "task_state_store": kept}
    counts = operator.execute(again)

    assert (counts["state"], counts["rows"]) == ("done", 5)
    assert len(Control(store, "orders").read().requests) == 1
    # Cleared after this success, it copies again.
    deferred(lambda: operator.execute(again))
    assert len(Control(store, "orders").read().requests) == 2


@pytest.mark.parametrize(
    ("state", "tables"), [("done", ["script.other"]), ("failed", [ROWS]), ("cancelled", [ROWS])]
)
def test_a_retry_asks_anew_for_what_it_has_not_got(document, store, dsn, backend, state, tables):
    streaming(store, dsn, backend)
    kept = Kept()
    deferred(
        lambda: snapshot(document, tables=[ROWS]).execute({**context(), "task_state_store": kept})
    )
    settle(store, state)
    told = {**context(try_number=2), "task_state_store": kept}
    deferred(lambda: snapshot(document, tables=tables).execute(told))

    assert Control(store, "orders").read().requests[-1].ticket == kept["snapshot"]["ticket"]
    assert len(Control(store, "orders").read().requests) == 2


def test_progress_that_cannot_be_published_is_said_once(
    document, store, dsn, backend, monkeypatch, capsys
):
    told, asked = [], threading.Event()

    def refuses(*_, **__):
        told.append("asked")
        if len(told) == 3:
            asked.set()
        raise RuntimeError("postgresql://df:hunter22@db/x does not answer")

    monkeypatch.setattr("airflow.sdk.Variable.set", refuses)
    streaming(store, dsn, backend)
    operator = snapshot(document, tables=ROWS)
    trigger = travelled(deferred(lambda: operator.execute(context())))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(fired, trigger)
        assert asked.wait(PATIENCE_S)
        settle(store, tables={ROWS: {"chunks": 2, "rows": 7}})
        waiting.result(PATIENCE_S)
    logged = capsys.readouterr().out
    assert logged.count("progress of orders not published: RuntimeError: postgresql://") == 1
    assert "Traceback" not in logged
    assert "hunter22" not in logged


def test_a_copy_that_is_done_fails_no_task_because_its_mirror_cannot_be_written(
    document, store, dsn, backend, monkeypatch
):
    def refuses(*_, **__):
        raise RuntimeError("the API server does not answer")

    streaming(store, dsn, backend)
    operator = snapshot(document, tables=ROWS)
    trigger = travelled(deferred(lambda: operator.execute(context())))
    settle(store, tables={ROWS: {"chunks": 2, "rows": 7}})
    monkeypatch.setattr("airflow.sdk.Variable.set", refuses)

    assert completed(operator, fired(trigger))["finished"] is True


def test_without_a_triggerer_the_task_waits_itself(document, store, dsn, backend, published):
    streaming(store, dsn, backend)
    operator = snapshot(document, tables=[ROWS], deferrable=False)
    snapshots.request(store, "orders", CopySelection((ROWS,)), REQUEST, "an earlier attempt")

    def serve():
        wait_until(lambda: Control(store, "orders").read().requests[0].by != "an earlier attempt")
        settle(store, tables={ROWS: {"chunks": 1, "rows": 5}})

    threading.Thread(target=serve, daemon=True).start()
    assert operator.execute(context())["rows"] == 5
