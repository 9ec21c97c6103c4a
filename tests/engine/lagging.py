"""Pipelines in this process of which a sink is behind."""

import time

import orjson

from airflow_provider_deltaforge.errors import RetryableError
from tests.engine.in_process import InProcess

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
    return made.checkpoints().load().get(sink, {"tx": -1})["tx"]


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
