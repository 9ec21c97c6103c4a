import pytest

from airflow_provider_deltaforge.control.supervise import DriverExit, RestartBudget, judge

BUDGET = RestartBudget(restarts_max=3, window_s=60, wait_s=1, wait_max_s=3)
NOW = 1_000_000


@pytest.mark.parametrize("restarts_max", [-1, 21])
def test_a_budget_holds_no_more_than_is_remembered(restarts_max):
    with pytest.raises(ValueError, match="restarts_max must be from 0 to 20"):
        RestartBudget(restarts_max)


@pytest.mark.parametrize(
    ("wanted", "code", "restarts", "action", "wait_s"),
    [
        pytest.param(False, 0, [], "finished", 0.0, id="a stopped pipeline may end"),
        pytest.param(False, 137, [], "finished", 0.0, id="also by force"),
        pytest.param(True, 0, [], "restart", 1.0, id="a clean exit nobody asked for is a death"),
        pytest.param(True, None, [], "restart", 1.0, id="killed without a trace"),
        pytest.param(True, 3, [NOW - 5000], "restart", 2.0, id="waits double"),
        pytest.param(
            True, 3, [NOW - 5000, NOW - 4000], "restart", 3.0, id="up to the longest wait"
        ),
        pytest.param(True, 3, [NOW - 5000] * 3, "give_up", 0.0, id="the budget ends it"),
        pytest.param(True, 3, [NOW - 61_000] * 3, "restart", 1.0, id="old restarts are forgotten"),
        pytest.param(True, 3, [NOW + 9_000] * 3, "restart", 1.0, id="the clock was set back"),
        pytest.param(True, 2, [], "give_up", 0.0, id="a wrong document is not retried"),
        pytest.param(True, 4, [], "give_up", 0.0, id="a fatal error is not retried"),
    ],
)
def test_judge(wanted, code, restarts, action, wait_s):
    verdict = judge(
        DriverExit(code), wanted=wanted, restarted_at_ms=restarts, now_ms=NOW, budget=BUDGET
    )

    assert (action, wait_s) == (verdict.action, verdict.wait_s)


def test_giving_up_keeps_the_drivers_own_words():
    ending = DriverExit(4, "position_lost", "binlog.000002 was purged")
    verdict = judge(ending, wanted=True, restarted_at_ms=[], now_ms=NOW, budget=BUDGET)

    assert verdict.error_class == "position_lost"
    assert verdict.reason == "binlog.000002 was purged"
