"""``deltaforge dlq replay``, with a pipeline that no driver runs and with one that one does."""

import json
import threading

import pytest
from typer.testing import CliRunner

from airflow_provider_deltaforge.cli import replay as command
from airflow_provider_deltaforge.cli.app import app
from airflow_provider_deltaforge.cli.options import Pauses
from airflow_provider_deltaforge.control import replays
from airflow_provider_deltaforge.control import status as status_module
from airflow_provider_deltaforge.control.starting import comes_back
from airflow_provider_deltaforge.engine.replay import requests
from airflow_provider_deltaforge.errors import AccessError, RetryableError, SpecError
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Amend
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.dead_letters import (
    DeadLetterFilter,
    DeadLetterRecords,
)
from tests.engine.driving import Driving
from tests.engine.running import begun, events, run_to_the_end
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def refused():
    """A stopped pipeline whose sink refused row 7 and the last event of row 1."""
    pipeline = begun(journal="enabled: true")
    source = pipeline.context().pipeline.spec.source
    last = max(place[:2] for place in source.events(1, 20) if place[2] == 1)
    wanted = b'{"id":1,"tx":%d,"row":%d}' % last
    pipeline.log().refuses = lambda value: wanted in value or b'"id":7,' in value
    run_to_the_end(pipeline)
    pipeline.log().refuses = lambda value: b'"id":7,' in value
    return pipeline


def deltaforge(pipeline, *words):
    told = ["dlq", "replay", pipeline.name, "--store", f"memory://{pipeline.name}"]
    words = [*told, *map(str, words)]
    return CliRunner().invoke(app, words, catch_exceptions=True, obj=Pauses(look_s=0.1))


def test_a_dry_run_says_what_would_become_of_each_entry(refused):
    before = len(events(refused))
    text = deltaforge(refused, "--all", "--dry-run").stdout
    assert "script.rows" in text
    rows = json.loads(deltaforge(refused, "--all", "--dry-run", "--json").stdout)
    assert {(row["action"], row["sinks"], row["refused_by"]) for row in rows} == {
        ("send", "out", "sink out")
    }
    assert len(rows) == 3
    assert len(events(refused)) == before
    assert refused.control.read().replays == []
    only = json.loads(deltaforge(refused, "--seq", rows[0]["seq"], "--dry-run", "--json").stdout)
    assert only == rows[:1]
    assert "No entry fits" in deltaforge(refused, "--kind", "none", "--dry-run").stdout


def test_a_damaged_entry_is_shown_with_its_reason(refused):
    queue = f"{refused.name}:dlq"
    seq = refused.store.peek(names.JOURNAL, queue, 1)[0].seq
    refused.store.transact([Amend(names.JOURNAL, queue, seq, b"torn{")])

    (row,) = json.loads(deltaforge(refused, "--seq", seq, "--dry-run", "--json").stdout)
    assert (row["action"], row["refused_by"], row["table"]) == ("unfit", "unknown", "")
    assert "cannot be read" in row["why"]
    listed = ["dlq", "list", refused.name, "--store", f"memory://{refused.name}"]
    told = CliRunner().invoke(app, listed)
    assert told.exit_code == 0
    assert "damaged" in told.stdout
    assert "None" not in told.stdout
    refused.log().refuses = None
    told = deltaforge(refused, "--all")
    assert told.exit_code == 1
    assert "1 stay, that cannot be sent again" in told.stdout
    assert deltaforge(refused, "--first", seq + 1).exit_code == 0


@pytest.mark.parametrize("met", [RetryableError("away"), KeyboardInterrupt()])
def test_it_is_asked_for_once_although_the_answer_is_lost(refused, monkeypatch, met):
    kind, asked = type(refused.store), []
    swap = kind.swap

    def losing(store, namespace, *given):
        told = swap(store, namespace, *given)
        if namespace == names.CONTROL and not asked:
            asked.append(len(refused.control.read().replays))
            raise met
        return told

    monkeypatch.setattr(kind, "swap", losing)
    told = deltaforge(refused, "--all")
    assert asked == [1]
    if isinstance(met, KeyboardInterrupt):
        (request,) = refused.control.read().replays
        assert request.cancelled == "withdrawn with Ctrl-C"
    else:
        assert "1 sent" in told.stdout, told.exception
        wait_until(lambda: refused.control.read().replays == [])


def test_without_a_driver_the_command_sends_them_itself(refused):
    told = deltaforge(refused, "--all")
    assert told.exit_code == 1
    assert "1 sent" in told.stdout
    assert "1 stay, refused again" in told.stdout
    assert "1 stay, behind an earlier entry" in told.stdout
    refused.log().refuses = None
    told = deltaforge(refused, "--all", "--json")
    assert told.exit_code == 0, told.stderr
    assert json.loads(told.stdout)["sent"] == 2
    assert refused.control.read().replays == []
    assert refused.control.read().desired == "stopped"
    assert DeadLetterRecords(refused.store, refused.name).count() == 0


def test_without_a_driver_its_request_is_gone_when_the_command_returns(refused, monkeypatch):
    refused.log().refuses = None
    remove, join, waits = Control.remove_request, threading.Thread.join, threading.Event()

    def late(*words):
        waits.wait(PATIENCE_S)
        remove(*words)

    def joined(thread, timeout=None):
        if thread.name == "replay":
            waits.set()
        join(thread, timeout)

    monkeypatch.setattr(Control, "remove_request", late)
    monkeypatch.setattr(threading.Thread, "join", joined)
    told = deltaforge(refused, "--all")
    left = refused.control.read().replays
    waits.set()
    assert (told.exit_code, left) == (0, [])


def test_with_a_driver_the_driver_sends_them(refused):
    refused.log().refuses = None
    refused.want("running")
    driving = Driving(refused)
    told = deltaforge(refused, "--table", "script.rows")
    refused.want("stopped")
    assert driving.end().why == "stopped"
    assert "3 sent" in told.stdout
    assert "the driver of" in told.stderr


def test_for_a_driver_that_is_lost_it_says_what_to_do_and_then_works_itself(refused, monkeypatch):
    refused.log().refuses = None
    monkeypatch.setattr(status_module, "START_PATIENCE_S", -1.0)
    refused.want("running", generation=2)
    said = threading.Event()
    waits = lambda present: comes_back(present) and (said.set() or True)  # noqa: E731
    monkeypatch.setattr(command, "comes_back", waits)
    stops = threading.Thread(
        target=lambda: said.wait(PATIENCE_S) and refused.want("stopped", generation=2)
    )
    stops.start()
    told = deltaforge(refused, "--all")
    stops.join()
    assert told.exit_code == 0, told.stderr
    words = " ".join(told.stderr.split())
    assert f"{refused.name} is lost" in words
    assert f"or `deltaforge run`), or run `deltaforge stop {refused.name}`" in words
    assert "sending them from here" in words
    assert "3 sent" in told.stdout


@pytest.mark.parametrize("call", ["replays.replay", "status"])
def test_an_outage_of_the_store_is_waited_for(refused, monkeypatch, call):
    refused.log().refuses = None
    where, _, what = call.rpartition(".")
    place = getattr(command, where) if where else command
    works = getattr(place, what)
    away = [RetryableError("the store is away"), RetryableError("the store is away")]

    def flaky(*words):
        if away:
            raise away.pop()
        return works(*words)

    monkeypatch.setattr(place, what, flaky)
    told = deltaforge(refused, "--all")
    assert told.exit_code == 0, told.exception
    assert "3 sent" in told.stdout
    assert "state store: the store is away" in told.stderr
    assert "state store: goes on" in told.stderr


def test_an_outage_where_the_command_works_itself_is_waited_for(refused, monkeypatch):
    refused.log().refuses = None
    works = requests.replay_here
    away = [RetryableError("the store is away")]

    def flaky(*words):
        if away:
            raise away.pop()
        return works(*words)

    monkeypatch.setattr(requests, "replay_here", flaky)
    told = deltaforge(refused, "--all")
    assert told.exit_code == 0, told.exception
    assert "3 sent" in told.stdout
    assert "the store is away" in told.stderr


@pytest.fixture
def interrupted(refused, monkeypatch):
    """A replay that nobody serves is given up with Ctrl-C, and the store is away by then."""
    refused.want("paused")
    works = replays.cancel

    def interrupt(*words):
        raise KeyboardInterrupt

    def give_up(*failures):
        left = list(failures)

        def flaky(*words):
            if left:
                raise left.pop(0)
            works(*words)

        monkeypatch.setattr(command.replays, "replay", interrupt)
        monkeypatch.setattr(command.replays, "cancel", flaky)
        told = deltaforge(refused, "--all")
        monkeypatch.undo()
        [request] = refused.control.read().replays
        return told, request

    return give_up


def test_what_is_given_up_while_the_store_is_away_is_withdrawn_when_it_is_back(interrupted):
    away = RetryableError("the store is away")
    told, request = interrupted(away, away)
    assert told.exit_code != 0
    assert request.cancelled == "withdrawn with Ctrl-C"
    assert "state store: goes on" in told.stderr
    assert "stays asked for" not in told.stderr


def test_whoever_does_not_wait_is_shown_how_to_withdraw_it_later(refused, interrupted):
    told, request = interrupted(RetryableError("the store is away"), KeyboardInterrupt())
    assert request.cancelled is None
    words = " ".join(told.stderr.split())
    assert "Ctrl-C again does not wait" in words
    assert f"`deltaforge dlq replay {refused.name} --withdraw {request.ticket}`" in words

    assert "withdrawn" in deltaforge(refused, "--withdraw", request.ticket).stdout
    assert refused.control.read().replays[0].cancelled is not None
    with pytest.raises(SpecError, match="knows no replay"):
        raise deltaforge(refused, "--withdraw", "gone").exception


def test_what_is_done_cannot_be_withdrawn(refused):
    refused.log().refuses = None
    ticket = replays.request(refused.store, refused.name, DeadLetterFilter(), "skip", "me")
    requests.replay_here(refused.name, refused.location, ticket, lambda *_: None, threading.Event())
    told = deltaforge(refused, "--withdraw", ticket)
    assert (told.exit_code, "done: 3 sent" in told.stdout) == (1, True)


def test_what_fails_is_shown_and_can_be_asked_again(refused):
    refused.log().fail_next(1, AccessError("no such user"))
    told = deltaforge(refused, "--all")
    assert told.exit_code == 1
    assert "failed: 0 sent" in told.stdout
    assert "no such user" in told.stdout
    assert "1 sent" in deltaforge(refused, "--all").stdout


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "or --all"),
        (("--seq", 1, "--last", 2), "not both"),
        (("--withdraw", "a", "--all"), "alone"),
    ],
)
def test_a_command_that_says_too_little_or_too_much_is_refused(refused, words, why):
    error = deltaforge(refused, *words).exception
    assert isinstance(error, SpecError)
    assert why in str(error)


def test_an_unknown_ticket_is_named(refused):
    with pytest.raises(SpecError, match="knows no replay"):
        replays.replay(refused.store, refused.name, "gone")
    ticket = replays.request(refused.store, refused.name, DeadLetterFilter(kind="x"), "skip", "me")
    assert replays.replay(refused.store, refused.name, ticket) is None
