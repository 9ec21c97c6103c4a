"""Pipelines in this process of which a sink is behind."""

import time
from contextlib import contextmanager

import orjson
import pytest

from airflow_provider_deltaforge.engine.base import crash_points
from airflow_provider_deltaforge.engine.base.crash_points import HOLD_VARIABLE, CrashPoint
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from airflow_provider_deltaforge.storage.records.rewinds import Rewinds
from tests.engine.in_process import InProcess
from tests.engine.running import RunningLane
from tests.waiting import wait_until

ROWS = 2
AWAY = RetryableError("away")
THREE = ("one", "two", "three")
MODES = pytest.mark.parametrize(
    ("policy", "optional"),
    [
        ("", ("two", "three")),
        ("commit_policy: {mode: all}", ("two", "three")),
        ("commit_policy: {mode: quorum, quorum: 2}", ()),
    ],
    ids=["required", "all", "quorum"],
)
"""Commit policies of pipelines with the sinks of ``THREE``."""


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


@contextmanager
def held_where_a_sink_is_given_up(path, monkeypatch):
    """The first sink that is given up is held where its gap is stored, until ``path`` says go."""
    with monkeypatch.context() as environment:
        environment.setenv(HOLD_VARIABLE, f"{CrashPoint.SINK_GIVEN_UP.value}:1:{path}")
        crash_points.arm()
    yield path
    crash_points.arm()


def at(made, sink):
    return made.checkpoints().load().get(sink, {"tx": -1})["tx"]


def stood(made, sink):
    progress = made.control.progress()
    return progress.sinks[sink].status if progress is not None else ""


def rewind(made, sink, tx, *tables):
    made.store.transact([Gaps(made.store, made.name).rewind(sink, {"tx": tx}, tables, "a test")])


def last(made, sink):
    return Rewinds(made.store, made.name).all().get(sink)


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


def each_in_turn(made, policy, away, back, more=40):
    """Let each of ``THREE`` be away in turn, and see who waits; nobody has a hole in the end.

    Args:
        made: the pipeline.
        policy: of ``MODES``.
        away: lets a sink be away.
        back: lets it come back.
        more: transactions that the others get meanwhile.
    """
    running = RunningLane(made)
    for sink in THREE:
        others = [name for name in THREE if name != sink]
        waited_for = "all" in policy or (not policy and sink == "one")
        wait_until(lambda: {stood(made, name) for name in THREE} == {"running"})
        away(sink)
        wait_until(lambda s=sink, w=waited_for: stood(made, s) == ("blocked" if w else "behind"))
        if waited_for:
            wait_until(lambda: made.status()[0] == "blocked")
        else:
            assert made.status()[0] == "running"
            here = {name: at(made, name) for name in others}
            wait_until(lambda h=here: all(at(made, name) > tx + more for name, tx in h.items()))
        back(sink)
    wait_until(lambda: {stood(made, name) for name in THREE} == {"running"})
    ends = end(made, running)
    assert [whole(made, name, ends[name]) for name in THREE] == [[], [], []]
