"""Rows that are copied beside the stream of a live file join its log as they are there."""

import json
import time

import pytest

from airflow_provider_deltaforge.control import snapshots
from airflow_provider_deltaforge.control.snapshots import CopySelection
from tests.engine.scripted_run import NAME
from tests.sources.turso.shop_run import ShopRun


@pytest.mark.parametrize("mode", ["native", "triggers"])
def test_rows_join_the_log_as_they_are_there(tmp_path, mode):
    run = ShopRun(tmp_path, mode=mode, snapshot="never")
    run.shop.trade(60)
    run.shop.untriggered = len(run.shop.history)
    run.begin()
    driver = run.start()
    for number in range(3):
        snapshots.request(run.store, NAME, CopySelection(), f"copy-{number}", "a test")
        while not snapshots.request_state(run.store, NAME, f"copy-{number}").settled:
            run.shop.trade(1)
            time.sleep(0.005)  # A copy waits for a stream that does not keep up.
            assert driver.poll() is None, run.log.read_text()[-3000:]
        assert snapshots.request_state(run.store, NAME, f"copy-{number}").state == "done"
    run.wait_caught_up(driver)
    assert run.stop(driver) == 0

    rows, copies = {}, 0
    for line in run.output.read_text().splitlines():
        event = json.loads(line)
        key = (event["source"]["table"], (event["after"] or event["before"])["id"])
        if event["op"] == "r":
            copies += 1
            assert key not in rows or rows[key] == event["after"]
        rows[key] = event["after"]
    assert copies > 60
    assert {key: row for key, row in rows.items() if row is not None} == run.shop.rows
    run.shop.close()
