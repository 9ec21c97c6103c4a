"""The log, read once more beside a lane, when it cannot be opened at first."""

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from tests.engine.lagging import ROWS, at, delivered, end, pipeline
from tests.engine.planted import doubling, plant
from tests.engine.running import RunningLane
from tests.waiting import wait_until


def test_processors_run_once_although_the_log_cannot_be_opened_at_first(monkeypatch):
    behind, tried = ScriptedSource.behind, []

    def refused(source, reader):
        tried.append(reader)
        if len(tried) < 3:
            raise RetryableError("no slot is free for a second reader")
        return behind(source, reader)

    monkeypatch.setattr(ScriptedSource, "behind", refused)
    plant(monkeypatch, twice=doubling)
    made = pipeline(transactions=30, source="", processors="{type: planted, id: twice}")
    made.begin_at(main=30, side=10)
    running = RunningLane(made)
    wait_until(lambda: at(made, "side") == 30)
    end(made, running)
    assert len(tried) == 3
    assert len(delivered(made, "side")) == 20 * ROWS * 2
