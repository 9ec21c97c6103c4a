"""Trying again: who is told what, and when it is over."""

import pytest

from airflow_provider_deltaforge.engine.base.retry import retry_until
from airflow_provider_deltaforge.errors import RetryableError


class Shaky:
    """Fails so many times, then works."""

    def __init__(self, failures):
        self.failures = failures
        self.calls, self.told, self.waits = 0, [], []

    def __call__(self):
        self.calls += 1
        if self.calls <= self.failures:
            raise RetryableError(f"away {self.calls}")
        return "done"

    def tell(self, error):
        self.told.append(error and str(error))

    def ask(self, over=lambda: False, **more):
        return retry_until(self, self.tell, over, self.waits.append, **more)


def test_every_failure_is_reported_and_that_it_is_over():
    shaky = Shaky(failures=12)
    assert shaky.ask(longest_wait_s=1.0) == "done"
    assert shaky.told == [*(f"away {call}" for call in range(1, 13)), None]
    assert len(shaky.waits) == 12
    assert 0 < max(shaky.waits) <= 1.0


def test_of_what_works_at_once_nothing_is_reported():
    shaky = Shaky(failures=0)
    assert shaky.ask() == "done"
    assert (shaky.told, shaky.waits) == ([], [])


def test_when_it_is_over_the_last_failure_is_raised():
    shaky = Shaky(failures=9)
    with pytest.raises(RetryableError, match="away 3"):
        shaky.ask(over=lambda: shaky.calls == 3)
    assert shaky.told == ["away 1", "away 2"]


def test_what_no_patience_helps_against_is_raised_at_once():
    told = []

    def broken():
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        retry_until(broken, told.append, lambda: False, told.append)
    assert told == []
