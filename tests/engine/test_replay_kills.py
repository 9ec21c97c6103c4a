"""Drivers killed one after the other while they send dead letters again, into real sinks.

With a file, and in every run of the tests: ``test_kills``.
"""

from collections import Counter

import pytest

from airflow_provider_deltaforge.control import replays
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.plugins import PROCESSORS
from airflow_provider_deltaforge.storage.records.dead_letters import (
    DeadLetterFilter,
    DeadLetterRecords,
)
from tests.engine import picky
from tests.engine.exact_run import PLACES, ExactRun, new_place
from tests.engine.lagging_crash_points import OF_REPLAYS
from tests.engine.scripted_run import NAME, kill
from tests.oracle.verdict import judge

IN_TURN = (CrashPoint.REPLAY_WRITTEN, CrashPoint.REPLAY_STORED, CrashPoint.REPLAY_REMOVED)
ENOUGH = 40
"""Entries for more than one round."""

pytestmark = pytest.mark.long
exactness = pytest.mark.parametrize("exactly_once", [True, False], ids=["exact", "plain"])
kinds = pytest.mark.parametrize("kind", sorted(PLACES))


class Replayed(ExactRun):
    """A pipeline without end whose processor refuses every second row until it is told not to."""

    @classmethod
    def to(cls, place, directory, *, holds):
        passes = directory / "passes"
        run = cls(
            directory,
            place=place,
            transactions=0,
            rate=150,
            processors=f"{{type: picky, until: {passes}}}",
            journal=f"enabled: true, dlq: {{hold_keys: {str(holds).lower()}}}",
        )
        run.passes, run.drivers = passes, []
        run.queue = DeadLetterRecords(run.store, NAME)
        run.begin_at(0)
        return run

    def entries(self):
        return list(self.queue.read())

    def has(self, condition):
        """Wait for something while the driver lives."""
        self._wait(condition, self.drivers[-1])

    def driven(self, hold=None):
        self.held.unlink(missing_ok=True)
        self.drivers.append(self.start(hold))

    def dies(self):
        kill(self.wait_held(self.drivers[-1]))
        self.drivers[-1].wait()

    def moves(self):
        """Wait until more is delivered."""
        at = self.checkpoint()["tx"]
        self.has(lambda: self.checkpoint()["tx"] > at + 50)

    def ends(self):
        assert self.stop(self.drivers[-1]) == 0

    def asks(self):
        return replays.request(self.store, NAME, DeadLetterFilter(), "skip", "a test")

    def told(self, ticket):
        """Wait for the answer to a request."""
        self.has(lambda: self.control.read().replays == [])
        return replays.replay(self.store, NAME, ticket)


@pytest.fixture(autouse=True)
def _picky(monkeypatch):
    monkeypatch.setitem(PROCESSORS.shipped, *next(iter(picky.PLACE.items())))


@kinds
@exactness
@pytest.mark.parametrize("holds", [True, False], ids=["holds", "overtaken"])
def test_killed_at_each_crash_point_of_one_replay_everything_is_sent_in_order(
    kind, exactly_once, holds, request, tmp_path
):
    dsn = request.getfixturevalue(f"{kind}_server").dsn()
    run = Replayed.to(new_place(kind, dsn, exactly_once=exactly_once), tmp_path, holds=holds)
    assert set(IN_TURN) == OF_REPLAYS
    twice = set()
    for first in (2, 1):
        run.passes.unlink(missing_ok=True)
        run.driven(hold=(IN_TURN[0], first))
        run.has(lambda: len(run.entries()) > ENOUGH)
        run.passes.write_text("30")
        run.moves()  # What stands in the queue of the rows up to that is overtaken, or holds.
        if not holds:
            run.ends()  # Else it would soon be overtaken in every row.
            run.want("running")
        run.passes.write_text("")
        before = run.entries()
        ticket = run.asks()
        if not holds:
            run.driven(hold=(IN_TURN[0], first))
        for following in ((IN_TURN[1], 1), (IN_TURN[2], 1), None):
            run.dies()
            twice |= {name_of(entry) for entry in run.entries()}
            run.driven(hold=following)
        told = run.told(ticket)
        assert (told.state, told.reason) == ("done", None)
        gone = {one.seq for one in before} - {one.seq for one in run.entries()}
        assert told.sent >= len(gone) > 0
        assert (told.behind, told.away, told.unfit, told.refused, told.dropped) == (0,) * 5
        assert bool(told.overtaken) is not holds
        run.moves()
        run.ends()
        run.want("running")
    run.driven()
    last = run.told(run.asks())
    run.ends()
    run.close_log()

    left = run.entries()
    assert last.overtaken == len(left)
    assert not (holds and left)
    assert all(entry.meta.overtaken == ["out"] for entry in left)
    seen, names = run.seen(), {name_of(entry) for entry in left}
    rest = [change for change in run.history({"tx": 0}) if change.name not in names]
    assert judge(rest, seen) == []
    newest = {change.key: change.name for change in rest}
    assert all(newest[key_of(entry)] > name_of(entry) for entry in left)
    if exactly_once:
        repeated = {
            name for name, times in Counter(each.name for each in seen).items() if times > 1
        }
        assert repeated <= twice, "only what was sent again may be there twice"


def name_of(entry):
    return entry.event["after"]["tx"], entry.event["after"]["row"]


def key_of(entry):
    return "script.rows", entry.event["after"]["id"]
