"""What somebody writes of a rewind: times, places, and what is refused before it is asked for."""

import time

import pytest

from airflow_provider_deltaforge.control import rewind
from airflow_provider_deltaforge.control.rewind import RewindSelection, time_in
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from tests.engine.in_process import InProcess


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2026-01-02T03:04:05Z", 1767323045000),
        ("2026-01-02T04:04:05.250+01:00", 1767323045250),
        ("2026-01-02 03:04:05", 1767323045000),
        ("2026-01-02", 1767312000000),
        ("2026-01-02T04:04+01", 1767323040000),
        ("2026-01-02T03:04:05.5z", 1767323045500),
        ("2025-12-31T23:00:00-0430", 1767238200000),
        ("binlog.000002:1234", None),
        ("2026", None),
        ("3e11fa47-71ca-11e1-9e33-c80aa9429562:23", None),
        ("0/1A2B3C4D", None),
    ],
)
def test_a_time_is_told_from_a_place(text, at_ms):
    assert time_in(text) == at_ms


@pytest.mark.parametrize(("text", "seconds"), [("2h ago", 7200), (" 1d 90 Min ago", 91800)])
def test_a_time_may_be_named_by_how_long_ago_it_was(text, seconds):
    assert time_in(text) == pytest.approx((time.time() - seconds) * 1000, abs=5000)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2099-01-01T00:00:00Z", "lies in the future"),
        ("2026-13-01", "no time of ISO 8601"),
        ("2026-01-02T03:04:05 Europe/Berlin", "no time of ISO 8601"),
        ("1969-12-31", "lies before 1970"),
        ("99999999999999999999 weeks ago", "lies before 1970"),
        pytest.param(f"{'9' * 400} d ago", "lies before 1970", id="400 digits"),
        pytest.param(f"{'9' * 5000} d ago", "lies before 1970", id="5000 digits"),
        ("2 fortnights ago", "'fortnights' is no unit"),
    ],
)
def test_what_is_no_time_is_refused_by_name(text, why):
    with pytest.raises(SpecError, match=f"^to: .*{why}"):
        time_in(text)


@pytest.fixture
def delivered():
    """A pipeline whose two sinks stand at transactions 90 and 70."""
    made = InProcess(transactions=100, sinks=("main", "side"), source="purged_before: 11, ")
    made.begin_at(main=90, side=70)
    return made


def test_a_plan_changes_nothing_and_says_what_would_be_done(delivered):
    planned = rewind.plan(delivered.store, delivered.name, RewindSelection("50"))
    assert planned.sinks == {"main": {"tx": 90}, "side": {"tx": 70}}
    assert "main, side: every change behind {'tx': 50} is delivered again" in planned.summary
    gaps = Gaps(delivered.store, delivered.name)
    assert gaps.wishes() == []
    assert list(rewind.plan(delivered.store, delivered.name, RewindSelection("80")).sinks) == [
        "main"
    ]

    rewind.request(delivered.store, delivered.name, planned, "ann")
    assert [(wish.sink, wish.wanted, wish.to, wish.by) for wish in gaps.wishes()] == [
        ("main", "rewind", {"tx": 50}, "ann"),
        ("side", "rewind", {"tx": 50}, "ann"),
    ]


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        (RewindSelection("90"), "nothing behind it was delivered yet"),
        (RewindSelection("5"), "the log begins at 11"),
        (RewindSelection("soon"), "no number of a transaction"),
        (RewindSelection("50", "gone"), "has no sink 'gone'; it has main, side"),
        (
            RewindSelection("50", None, ("shop.*",)),
            r"matches no captured table \(known: script.rows\)",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_before_it_is_asked_for(delivered, wish, why):
    with pytest.raises(Exception, match=why):
        rewind.plan(delivered.store, delivered.name, wish)
