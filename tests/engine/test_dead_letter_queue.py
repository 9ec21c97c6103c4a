"""What is set aside, beside a store that goes away in the middle."""

import threading
import time

import pytest

from airflow_provider_deltaforge.engine.base.processor_stats import DeadLetterStats
from airflow_provider_deltaforge.engine.dead_letters.dead_letter import PreparedDeadLetter
from airflow_provider_deltaforge.engine.dead_letters.queue import DeadLetterQueue
from airflow_provider_deltaforge.engine.dead_letters.queue_limits import NAME
from airflow_provider_deltaforge.errors import FencedError, RetryableError
from airflow_provider_deltaforge.storage.records.dead_letters import (
    DeadLetterReason,
    DeadLetterRecords,
)
from tests.engine.in_process import InProcess

LETTER = PreparedDeadLetter(
    DeadLetterReason(processor_id="p", error_kind="processor", error_message="why"), b"{}"
)


class Box:
    """A letter box, and a store of which one may say when it is away."""

    def __init__(self, monkeypatch, journal):
        pipeline = InProcess(journal=f"enabled: true, dlq: {{{journal}}}")
        self.queue = DeadLetterRecords(pipeline.store, pipeline.name)
        self.errors, self.dead_letter_stats = {}, DeadLetterStats()
        self.answers = []
        self.newer = False
        self.box = DeadLetterQueue(
            pipeline.context(), self.dead_letter_stats, self._told, threading.Event(), self._confirm
        )
        real = DeadLetterRecords.count

        def count(queue):
            answer = self.answers.pop(0) if self.answers else None
            if answer is not None:
                raise answer
            return real(queue)

        monkeypatch.setattr(DeadLetterRecords, "count", count)
        self.store = pipeline.store

    def _told(self, name, error):
        self.errors[name] = error

    def _confirm(self):
        if self.newer:
            raise FencedError("newer")

    def fill(self, count):
        self.store.transact([self.queue.push(b"{}") for _ in range(count)])


def test_trouble_is_over_with_room_also_if_the_store_was_away_meanwhile(monkeypatch):
    made = Box(monkeypatch, "max_entries: 1, overflow_policy: block")
    made.fill(1)
    made.box.hold([LETTER])
    # Full; asked once more for the reason; away when it is looked at again.
    made.answers = [None, None, None, RetryableError("away")]
    with pytest.raises(RetryableError, match="away"):
        made.box.awaits_room()
    assert made.errors[NAME] is not None
    made.queue.purge()

    assert made.box.awaits_room()
    assert made.errors == {NAME: None}


def test_what_a_full_queue_loses_is_counted_and_logged_also_if_the_store_goes_away(
    monkeypatch, caplog
):
    made = Box(monkeypatch, "max_entries: 2, overflow_policy: reject")
    made.box.hold([LETTER] * 5)
    made.box.transact([])
    made.answers = [RetryableError("away")]
    with pytest.raises(RetryableError, match="away"):
        made.box.stored()
    made.box.stored()

    told = made.dead_letter_stats.report()
    assert (told.events[0].count, told.rejected) == (2, 3)
    made.box.log_counts()
    assert "events lost: 3" in caplog.text


def test_the_oldest_make_room_also_if_the_store_goes_away_before(monkeypatch):
    made = Box(monkeypatch, "max_entries: 2")
    made.fill(2)
    made.box.hold([LETTER])
    made.box.transact([])
    made.answers = [RetryableError("away")]
    with pytest.raises(RetryableError, match="away"):
        made.box.stored()
    made.box.stored()

    assert made.queue.count() == 2
    assert made.dead_letter_stats.report().evicted == 1


def test_all_that_was_lost_is_logged_in_the_end(monkeypatch, caplog):
    made = Box(monkeypatch, "max_entries: 1, overflow_policy: reject")
    for _ in range(3):
        made.box.hold([LETTER])
        made.box.transact([])
        made.box.stored()
    made.box.log_counts()

    lost = [record.args[1] for record in caplog.records if "events lost" in record.message]
    assert sum(lost) == 2


@pytest.mark.parametrize("removes", ["stored", "tend"])
def test_who_has_lost_the_fence_removes_nothing_by_former_limits(monkeypatch, removes):
    """Frozen and let go after the document was changed, it would."""
    made = Box(monkeypatch, "max_entries: 2, max_age_secs: 1")
    made.fill(5)
    made.box.hold([LETTER])
    made.newer = True
    monkeypatch.setattr(time, "time", lambda: 1e10)
    with pytest.raises(FencedError):
        getattr(made.box, removes)()
    assert made.queue.count() == 5
