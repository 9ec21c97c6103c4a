"""What the command line says of sinks that a pipeline goes on without."""

import pytest
from typer.testing import CliRunner

from airflow_provider_deltaforge.cli.app import app
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control, Progress
from airflow_provider_deltaforge.storage.records.foreign_positions import ForeignPositions
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from airflow_provider_deltaforge.storage.records.record import now_ms
from airflow_provider_deltaforge.storage.records.rewinds import Rewinds
from airflow_provider_deltaforge.storage.records.stats import SinkProgress


def deltaforge(*words):
    return CliRunner().invoke(app, ["sinks", *words], catch_exceptions=True)


@pytest.fixture
def sinks(pipeline):
    told = {"files": SinkProgress(), "cache": SinkProgress(status="behind", reason="it is away")}
    now = now_ms()
    progress = Progress(
        status="running", since_ms=now, epoch=1, generation=1, heartbeat_at_ms=now, sinks=told
    )
    pipeline.transact([Control(pipeline, "orders").put_progress(progress)])
    return Gaps(pipeline, "orders")


def test_only_a_sink_that_is_behind_can_be_given_up(sinks):
    assert deltaforge("give-up", "orders", "cache").exit_code == 0
    assert [(one.sink, one.wanted) for one in sinks.wishes()] == [("cache", "give_up")]

    refused = deltaforge("give-up", "orders", "files").exception
    assert isinstance(refused, SpecError)
    assert "not behind: it is running" in str(refused)


def test_one_that_was_given_up_goes_on_with_the_command_that_fills_its_gap(sinks, pipeline):
    pipeline.transact([sinks.give_up("cache", {"pos": 1}, "too late", "position_lost")])

    outcome = deltaforge("resume", "orders", "cache")

    assert outcome.exit_code == 0
    assert "deltaforge snapshot FILE --again" in outcome.stdout
    assert "cache lacks what comes behind" in deltaforge("list", "orders").stdout


def test_a_sink_is_adopted_from_the_store_that_was_found_there(sinks, pipeline):
    assert "nothing to adopt" in str(deltaforge("adopt", "orders", "files").exception)
    found = ForeignPositions(pipeline, "orders")
    pipeline.transact([found.put("files", "1a2b", {"pos": 1})])

    outcome = deltaforge("adopt", "orders", "files")

    assert outcome.exit_code == 0
    assert "1a2b" in outcome.stdout
    assert found.load()["files"].adopted_by


@pytest.mark.parametrize("command", ["give-up", "resume"])
def test_a_sink_that_is_not_there_is_named_beside_those_that_are(sinks, command):
    refused = deltaforge(command, "orders", "cahce").exception

    assert isinstance(refused, SpecError)
    assert str(refused) == "pipeline 'orders' has no sink 'cahce'; it has files, cache"
    assert sinks.wishes() == []


def test_of_a_pipeline_that_never_ran_no_sink_is_known(pipeline):
    assert "once it has run" in str(deltaforge("resume", "orders", "files").exception)


def test_the_log_is_delivered_again_only_when_somebody_has_seen_what_that_does(sinks, pipeline):
    checkpoints = Checkpoints(pipeline, "orders", "shop-db")
    pipeline.transact([checkpoints.put("files", {"tx": 9})])

    def rewind(*words):
        words = ("rewind", "orders", "--to", "4", *words)
        return CliRunner().invoke(app, words, catch_exceptions=True)

    shown = rewind()
    assert "files: every change behind {'tx': 4} is delivered again" in shown.stdout
    assert "add --yes" in shown.stdout
    assert sinks.wishes() == []

    assert "asked for" in rewind("--yes", "--sink", "files", "--tables", "script.rows").stdout
    [wish] = sinks.wishes()
    assert (wish.sink, wish.wanted, wish.to) == ("files", "rewind", {"tx": 4})
    listed = deltaforge("list", "orders").stdout
    assert 'files rewind of script.rows to {"tx": 4}' in listed
    assert "asked for" in listed
    assert "has no sink 'cahce'" in str(rewind("--sink", "cahce").exception)


def test_a_rewind_that_was_refused_while_another_runs_is_listed_with_its_reason(sinks, pipeline):
    rewinds = Rewinds(pipeline, "orders")
    pipeline.transact([rewinds.put(rewinds.begin("files", {"tx": 4}, {"tx": 9}, (), "ann"))])
    pipeline.transact([rewinds.refuse("files", {"tx": 1}, "bob", "the log is gone")])
    listed = " ".join(deltaforge("list", "orders").stdout.split())
    assert 'files rewind to {"tx": 4}, by ann: running' in listed
    assert 'files rewind to {"tx": 1}, by bob: refused: the log is gone' in listed
