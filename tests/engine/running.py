"""A lane in a thread of the test."""

import threading

import orjson

from airflow_provider_deltaforge.engine.lane.lane import Lane
from tests.engine.in_process import InProcess
from tests.waiting import PATIENCE_S, wait_until


class RunningLane:
    """Runs at once; ``end`` waits for it."""

    def __init__(self, pipeline):
        self.lane = Lane(pipeline.context(), 60.0)
        self._outcome = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        self._outcome = self.lane.run()

    @property
    def has_ended(self):
        return self._outcome is not None

    def end(self):
        self._thread.join(PATIENCE_S)
        assert self._outcome is not None, "the lane did not end"
        return self._outcome


def begun(**settings):
    """Return a pipeline whose sinks begin at the first transaction."""
    pipeline = InProcess(**settings)
    pipeline.begin_at(**dict.fromkeys(pipeline.sinks, 0))
    return pipeline


def run_to_the_end(pipeline, tx=20):
    """Run a lane until its log is over; return the last progress."""
    running = RunningLane(pipeline)
    wait_until(lambda: {at["tx"] for at in pipeline.checkpoints().load().values()} == {tx})
    pipeline.want("stopped")
    assert running.end().why == "stopped"
    return pipeline.control.progress()


def events(pipeline, sink="out"):
    return [orjson.loads(message.value) for message in pipeline.log(sink).messages()]


def places(pipeline, sink="out"):
    return [(event["after"]["tx"], event["after"]["row"]) for event in events(pipeline, sink)]
