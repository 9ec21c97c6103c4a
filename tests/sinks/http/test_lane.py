"""A whole lane into an endpoint that fails now and then, with a kill in the middle."""

import random

import pytest

from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from tests.engine.scripted_run import NAME, ScriptedRun, kill
from tests.oracle.readers import seen_in
from tests.oracle.verdict import judge
from tests.sinks.http import endpoint as endpoints
from tests.waiting import wait_until

SINK = """
    - type: http
      config: {{id: hook, url: "{url}/${{source.table}}", send_timeout_secs: 60, {settings}}}
"""


def takes_and_breaks_off(handler):
    """Take the request, and lose the answer."""
    endpoint = handler.server.endpoint
    endpoint.taken.append(endpoint.requests[-1])
    endpoints.hangs_up(handler)


def moody(seed):
    """Return a judge that fails now and then, the same way for every seed."""
    chance = random.Random(seed)
    whims = [503, 429, endpoints.hangs_up, endpoints.breaks_off, takes_and_breaks_off]

    def judge(_):
        return chance.choice(whims) if chance.random() < 0.01 else 204

    return judge


def is_blocked(run):
    return run.control.progress().sinks["hook"].status == "blocked"


@pytest.mark.parametrize(
    ("settings", "at_once"),
    [
        pytest.param("batch_mode: false", 1, id="per event"),
        pytest.param("batch_mode: true", 30, id="arrays", marks=pytest.mark.long),
        pytest.param("parallelism: 3", 1, id="parallel"),
    ],
)
def test_a_killed_lane_leaves_no_hole_in_an_endpoint(settings, at_once, endpoint, tmp_path):
    endpoint.judge = moody(settings)
    # A log without an end: however late the kill comes, there is more to deliver.
    more = SINK.format(url=endpoint.url, settings=settings)
    run = ScriptedRun(tmp_path, transactions=0, more=more)
    run.begin_at(0)
    checkpoints = Checkpoints(run.store, NAME, f"{NAME}-source")
    run.store.transact([checkpoints.put("hook", {"tx": 0})])
    driver = run.start()
    wait_until(lambda: len(endpoint.taken) > 250 // at_once)
    kill(driver.pid)
    driver.wait()
    epoch = run.control.progress().epoch
    endpoint.stop()

    driver = run.start()
    wait_until(lambda: run.control.progress().epoch > epoch and is_blocked(run))
    begun = len(endpoint.taken)
    endpoint.start()
    wait_until(lambda: len(endpoint.taken) > begun + 900 // at_once)
    assert run.stop(driver) == 0
    run.close_log()

    seen = seen_in(endpoint.values(), lambda event: (event["after"]["tx"], event["after"]["row"]))
    # A stopped lane does not wait for an endpoint that fails: what it was at, comes again.
    known = [event for event in seen if event.name[0] <= run.transactions]
    assert judge(run.history({"tx": 0}), known) == []
    run.close()
