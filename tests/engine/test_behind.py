"""A sink that the pipeline goes on without: left, caught up, and taken in again without a hole."""

import time

import orjson

from airflow_provider_deltaforge.errors import RetryableError
from tests.engine.in_process import InProcess
from tests.engine.running import RunningLane
from tests.waiting import wait_until

ROWS = 2
AWAY = RetryableError("away")


def pipeline(policy="", sinks=("main", "side"), optional=("side",), **settings):
    """Return a pipeline whose log grows while the test runs."""
    asked = {
        "rows": ROWS,
        "transactions": 0,
        "source": f"rate: 400, started_ms: {int(time.time() * 1000)}, ",
        **settings,
    }
    made = InProcess(sinks=sinks, optional=optional, policy=policy, **asked)
    made.begin_at(**dict.fromkeys(sinks, 0))
    return made


def at(made, sink):
    return made.checkpoints().load()[sink]["tx"]


def stood(made, sink):
    progress = made.control.progress()
    return progress.sinks[sink].status if progress is not None else ""


def delivered(made, sink):
    events = [orjson.loads(message.value) for message in made.log(sink).messages()]
    return [(event["after"]["tx"], event["after"]["row"]) for event in events]


def whole(made, sink, upto):
    """Say what is wrong with a sink that must hold everything up to a transaction, in order."""
    seen = delivered(made, sink)
    first = list(dict.fromkeys(seen))
    expected = [(tx, row) for tx in range(1, upto + 1) for row in range(ROWS)]
    return [] if first[: len(expected)] == expected else (first[:5], len(first), len(expected))


def end(made, running):
    made.want("stopped")
    assert running.end().why == "stopped"
    return {sink: at(made, sink) for sink in made.sinks}


def test_the_pipeline_goes_on_without_an_optional_sink_that_is_then_caught_up():
    made = pipeline()
    running = RunningLane(made)
    wait_until(lambda: at(made, "side") > 20)
    made.log("side").fail_next(10**6, AWAY)
    wait_until(lambda: stood(made, "side") == "behind")
    here = at(made, "side")
    wait_until(lambda: at(made, "main") > here + 200)
    assert made.status() == ("running", None)
    told = made.control.progress().sinks["side"]
    assert (told.error_class, told.reason) == ("retryable", "away")
    assert told.lag_ms > 0
    assert at(made, "side") == here

    made.log("side").heal()
    wait_until(lambda: stood(made, "side") == "running")
    joined = at(made, "side")
    wait_until(lambda: at(made, "side") > joined + 50)
    ends = end(made, running)
    assert whole(made, "main", ends["main"]) == []
    assert whole(made, "side", ends["side"]) == []


def test_a_blip_of_an_optional_sink_needs_no_second_reader(monkeypatch):
    made = pipeline(transactions=30, source="")
    made.log("side").fail_next(2, AWAY)
    running = RunningLane(made)
    wait_until(lambda: at(made, "side") == at(made, "main") == 30)
    end(made, running)
    assert delivered(made, "side") == delivered(made, "main")
