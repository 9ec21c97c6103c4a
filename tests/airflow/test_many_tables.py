"""What goes through Airflow's database of a pipeline of many tables, and what must stay whole."""

import json
import signal
from datetime import timedelta

import pytest
from airflow.sdk import Asset
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider_deltaforge.assets.tables import create_asset
from airflow_provider_deltaforge.control import pipelines, snapshots
from airflow_provider_deltaforge.control.largest_tables import TABLES_SHOWN
from airflow_provider_deltaforge.control.snapshots import CopySelection
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.operators.control import DeltaForgeControlOperator
from airflow_provider_deltaforge.operators.snapshot import DeltaForgeSnapshotOperator
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator
from airflow_provider_deltaforge.sensors.deltaforge import (
    DeltaForgeSnapshotSensor,
    DeltaForgeStatusSensor,
)
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.requests import SnapshotResults, result_of
from airflow_provider_deltaforge.storage.records.stats import TableCounts
from airflow_provider_deltaforge.triggers import snapshot as mirror
from tests.airflow.bench import context, deferred, fired, travelled
from tests.control.bench import DOCUMENT
from tests.engine.frozen import freeze_between_writes, signal_all
from tests.servers.process import family
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("connection")

COUNT = 200
ROWS = {f"shop.t{number:03}": 100 + number for number in range(COUNT)}
LARGEST = set(list(ROWS)[-TABLES_SHOWN:])
WHOLE = create_asset(pipeline="orders")
SMALLEST = create_asset(pipeline="orders", table="shop.t000")
OTHER = Asset("s3://bucket/orders")
REQUEST = "airflow:d/t/r/-1"


class Kept(dict):
    """A state store of a task or an asset."""

    def set(self, key, value, **_):
        self[key] = value


def check_payloads(events):
    """Check that assets are told all rows, and those of every table."""
    told = [events[asset].extra for asset in (WHOLE, OTHER, SMALLEST)]
    assert [each["rows"] for each in told] == [sum(ROWS.values())] * 2 + [ROWS["shop.t000"]]
    assert [each["tables"] for each in told] == [ROWS, ROWS, {"shop.t000": ROWS["shop.t000"]}]


@pytest.fixture
def copied(store):
    """A pipeline of which a task asked for a copy of all tables, and has it."""
    pipelines.apply(store, DOCUMENT)
    snapshots.request(store, "orders", CopySelection(), REQUEST, "me")
    [request] = Control(store, "orders").read().requests
    tables = {name: {"chunks": 1, "rows": rows} for name, rows in ROWS.items()}
    result = result_of(request, "done", tables=tables)
    store.transact(SnapshotResults(store, "orders").put(result))
    return store


@pytest.fixture
def streamed(document, store, backend, tmp_path):
    """A stream that has counted events of many tables; its task's trigger, and its operator."""
    operator = DeltaForgeStreamOperator(
        task_id="stream",
        document=document,
        outlets=[WHOLE, OTHER, SMALLEST],
        window=timedelta(seconds=0),
        poll_interval=timedelta(seconds=0.05),
    )
    trigger = travelled(deferred(lambda: operator.execute(context())))
    control = Control(store, "orders")
    wait_until(lambda: DeltaForgeHook().get_status("orders").status == "running")
    pids = family(control.read().handle["pid"])
    freeze_between_writes(pids, tmp_path / "state.db")  # What is written below stays.
    tables = {
        name: TableCounts(events={"u": rows, "d": 3}, durable=rows) for name, rows in ROWS.items()
    }
    newer = control.progress().model_copy(update={"tables": tables, "events": sum(ROWS.values())})
    store.transact([control.put_progress(newer)])
    yield operator, trigger
    signal_all(pids, signal.SIGCONT)


def test_events_of_assets_count_the_rows_of_every_table_that_was_copied(
    document, copied, monkeypatch
):
    published = {}
    monkeypatch.setattr(
        "airflow_provider_deltaforge.operators.snapshot.publish", published.__setitem__
    )
    operator = DeltaForgeSnapshotOperator(
        task_id="s", document=document, mode="always", outlets=[WHOLE, OTHER, SMALLEST]
    )
    stores = {"task_state_store": Kept(), "asset_state_store": {WHOLE: Kept()}}
    found = {**context(), **stores, "outlet_events": OutletEventAccessors()}
    watched = {"pipeline": "orders", "generation": 0, "owner": "me", "request_id": REQUEST}
    counts = operator.execute_complete(found, {"event": "settled", **watched})

    check_payloads(found["outlet_events"])
    assert (counts["tables"].keys(), counts["tables_in_all"]) == (LARGEST, COUNT)
    assert counts["rows"] == sum(ROWS.values())
    assert found["task_state_store"]["snapshot"] == counts
    assert found["asset_state_store"][WHOLE]["deltaforge_snapshot"] == counts
    shown = published["deltaforge_orders"]
    assert shown["copies"] == {REQUEST: counts}
    assert shown == mirror.mirror_of(copied, "orders")


def test_the_sensor_of_a_copy_returns_the_largest_tables(copied):
    sensor = DeltaForgeSnapshotSensor(task_id="copied", pipeline="orders", request=REQUEST)
    state = sensor.execute(context())

    assert (state["copied"].keys(), state["tables_in_all"]) == (LARGEST, COUNT)
    assert state["rows"] == sum(ROWS.values())


def test_a_stream_returns_the_largest_tables_and_tells_assets_of_all(streamed):
    operator, trigger = streamed
    found = {"outlet_events": OutletEventAccessors()}
    status = operator.execute_complete(found, {**trigger.watch, "event": "window_over"})

    check_payloads(found["outlet_events"])
    assert (status["tables"].keys(), status["tables_in_all"]) == (LARGEST, COUNT)
    assert status["tables"]["shop.t199"] == {"events": {"u": 299, "d": 3}, "durable": 299}
    assert status["events"] == sum(ROWS.values())
    assert len(json.dumps(status)) < 10_000


def test_so_do_the_sensor_of_a_status_and_the_task_that_steers(streamed):
    del streamed
    sensor = DeltaForgeStatusSensor(task_id="runs", pipeline="orders", statuses=["running"])
    operator = DeltaForgeControlOperator(task_id="on", action="resume", pipeline="orders")
    trigger = deferred(lambda: operator.execute(context()))

    for status in (sensor.execute(context()), operator.execute_complete({}, fired(trigger))):
        assert (status["tables"].keys(), status["tables_in_all"]) == (LARGEST, COUNT)
