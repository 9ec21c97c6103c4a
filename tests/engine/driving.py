"""Pipelines in this process, whose driver is a thread of the test."""

import threading

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.engine.base.tuning import TUNING
from airflow_provider_deltaforge.engine.driver.driver import DriverArguments, drive_stream
from airflow_provider_deltaforge.engine.driver.local import LocalRunner
from airflow_provider_deltaforge.sinks.memory import memory_log
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from tests.waiting import PATIENCE_S, wait_for


class Driving:
    """A driver in a thread."""

    def __init__(self, pipeline, drive=drive_stream, generation=1, **more):
        self.outcome = None
        tuning = getattr(pipeline, "tuning", TUNING)
        assignment = DriverArguments(
            pipeline.name, pipeline.location, generation, tuning=tuning, **more
        )
        run = lambda: setattr(self, "outcome", drive(assignment, LocalRunner()))  # noqa: E731
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def end(self):
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "the driver did not end"
        return self.outcome


class DrivenRun:
    """One applied pipeline, its store in memory.

    Its source and the log of its sink ``out`` have the pipeline's name.
    """

    def __init__(self, name, document):
        self.name = name
        self.location = StoreLocation.from_dsn(f"memory://{name}")
        self.store = self.location.create()
        self.control = Control(self.store, name)
        pipelines.apply(self.store, document)
        self.driving = None
        self.generation = 0

    def start(self):
        self.generation += 1
        changes = {"desired": "running", "generation": self.generation}
        self.control.update(lambda old: old.model_copy(update=changes))
        self.driving = Driving(self, generation=self.generation)
        wait_for("the stream", lambda: self.ended() or self.checkpoint())
        return self

    def ended(self):
        return not self.driving.thread.is_alive()

    def stop(self):
        self.control.update(lambda old: old.model_copy(update={"desired": "stopped"}))
        return self.driving.end()

    def checkpoint(self):
        return self.checkpoint_of("out")

    def checkpoint_of(self, sink):
        return Checkpoints(self.store, self.name, self.name).load().get(sink)

    def messages(self):
        return memory_log(self.name).messages()
