"""A driver in a thread of the test."""

import threading

from airflow_provider_deltaforge.engine.driver import Assignment, drive_stream
from airflow_provider_deltaforge.engine.local import LocalRunner
from tests.waiting import PATIENCE_S


class Driving:
    """A driver in a thread."""

    def __init__(self, pipeline, drive=drive_stream, generation=1):
        self.outcome = None
        assignment = Assignment(pipeline.name, pipeline.location, generation)
        run = lambda: setattr(self, "outcome", drive(assignment, LocalRunner()))  # noqa: E731
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def end(self):
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "the driver did not end"
        return self.outcome
