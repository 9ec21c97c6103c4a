"""A sink that the pipeline goes on without: it is caught up by a second reader of the same file."""

import threading

import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment, TaskContext
from airflow_provider_deltaforge.engine.lane.lane import Lane
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sinks.memory import memory_log
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from tests.oracle.readers import seen_in
from tests.oracle.verdict import judge
from tests.sources.turso.shop_run import Shop
from tests.waiting import PATIENCE_S, wait_until

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: turso
    config:
      {{id: shop, url: {path}, tables: [customers, orders], cdc_mode: {mode},
       auto_create_triggers: true, poll_interval_ms: 20, batch_size: 40}}
  batch: {{max_events: 30, max_ms: 10}}
  sinks:
    - {{type: memory, config: {{id: main, log: {name}-main}}}}
    - {{type: memory, config: {{id: side, log: {name}-side, required: false}}}}
"""


@pytest.mark.parametrize("mode", ["native", "triggers"])
def test_it_is_caught_up_with_nothing_lost_and_in_order(mode, tmp_path):
    name = f"behind-{tmp_path.name}".replace("_", "-")
    location = StoreLocation.from_dsn(f"memory://{name}")
    store = location.create()
    shop = Shop(tmp_path / "shop.db", mode)
    document = DOCUMENT.format(name=name, path=tmp_path / "shop.db", mode=mode)
    pipelines.apply(store, document)
    control, checkpoints = Control(store, name), Checkpoints(store, name, "shop")
    control.update(lambda old: old.model_copy(update={"desired": "running", "generation": 1}))
    control.take_epoch("driver")
    ended = []
    lane = Lane(
        TaskContext.open(DriverAssignment(document, location, "driver", 1), renew=True), 600.0
    )
    running = threading.Thread(target=lambda: ended.append(lane.run()), daemon=True)
    source = load(document, {}).spec.source

    def reached(*sinks):
        head, stored = source.head(), checkpoints.load()
        there = [sink for sink in sinks if sink in stored and source.covers(stored[sink], head)]
        return ended or len(there) == len(sinks)

    def stood():
        return "behind" if ended else control.progress().sinks["side"].status

    try:
        running.start()
        wait_until(lambda: ended or "main" in checkpoints.load())
        memory_log(f"{name}-side").fail_next(10**6, RetryableError("away"))
        shop.trade(60)
        wait_until(lambda: reached("main") and stood() == "behind")
        shop.trade(30)
        memory_log(f"{name}-side").heal()
        wait_until(lambda: reached("main", "side"))
        wait_until(lambda: ended or stood() == "running")
        shop.trade(10)
        wait_until(lambda: reached("main", "side"))
    finally:
        control.update(lambda old: old.model_copy(update={"desired": "stopped"}))
        running.join(PATIENCE_S)
        shop.close()
    assert [outcome.why for outcome in ended] == ["stopped"]
    for sink in ("main", "side"):
        texts = [message.value for message in memory_log(f"{name}-{sink}").messages()]
        assert judge(shop.history, seen_in(texts, name_of), None) == [], sink


def name_of(event):
    """Return what the shop calls a change."""
    if event["after"] is None:
        return "deleted", event["before"]["version"]
    return "written", event["after"]["version"]
