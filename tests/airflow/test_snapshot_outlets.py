"""What a task that copies tells the assets and the stores of its outlets."""

import json

import pytest
from airflow.sdk import Asset
from airflow.sdk.execution_time.context import OutletEventAccessors

from tests.airflow.bench import context, deferred, fired, travelled
from tests.airflow.copies import (
    ROWS,
    Kept,
    completed,
    settle,
    snapshot,
    streaming,
    with_snapshot,
)

pytestmark = pytest.mark.usefixtures("connection")


def test_counts_go_to_the_stores_of_the_task_and_of_its_outlets(
    document, store, dsn, backend, published
):
    asset, events = Asset("orders_copied"), OutletEventAccessors()
    streaming(store, dsn, backend)
    operator = snapshot(document, tables=[ROWS], outlets=[asset])
    stores = {"task_state_store": Kept(), "asset_state_store": {asset: Kept()}}
    told = {**context(), **stores, "outlet_events": events}
    trigger = travelled(deferred(lambda: operator.execute(told)))
    settle(store, tables={ROWS: {"chunks": 1, "rows": 5}})
    counts = completed(operator, fired(trigger), told)

    assert told["task_state_store"]["snapshot"] == counts
    assert told["asset_state_store"][asset]["deltaforge_snapshot"] == counts
    assert (events[asset].extra["rows"], events[asset].extra["tables"]) == (5, {ROWS: 5})
    assert json.dumps(counts)


def test_rows_that_an_earlier_run_copied_did_not_arrive_again(document, store, real, published):
    asset, kept = Asset("orders_copied"), Kept()
    operator = snapshot(with_snapshot(document), outlets=[asset])

    def run(act, kept):
        stores = {"task_state_store": kept, "asset_state_store": {asset: Kept()}}
        told = {**context(), **stores, "outlet_events": OutletEventAccessors()}
        act(told)
        return told["outlet_events"][asset].extra

    event = fired(travelled(deferred(lambda: run(operator.execute, kept))), 120)
    # The worker died before it could report: the next attempt does.
    extra = run(operator.execute, kept)
    assert extra["rows"] == extra["tables"][ROWS] > 0
    assert run(lambda told: completed(operator, event, told), Kept()) == extra

    for later in (operator, snapshot(document, mode="never", outlets=[asset])):
        extra = run(later.execute, Kept())
        assert (extra["rows"], extra["tables"], extra["exact"]) == (0, {}, True)
        assert extra["pipeline"] == "orders"
