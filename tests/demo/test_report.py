import io
import json

import pytest
from rich.console import Console

from tests.demo import report
from tests.demo.arrivals import ENVELOPES, Arrivals, latencies, lost

PLACED = {"id": 7, "status": "placed", "updated_us": 1}
PAID = {"id": 7, "status": "paid", "updated_us": 2}
UPDATE = {"op": "u", "before": PLACED, "after": PAID}
WRAPPED = {
    "native": UPDATE,
    "debezium": {"schema": None, "payload": UPDATE},
    "cloudevents": {"id": "x", "data": UPDATE},
}


def arrived(directory, events):
    for envelope, event in events.items():
        (directory / envelope).mkdir()
        (directory / envelope / "orders.jsonl").write_text(json.dumps(event) + "\n")
    arrivals = Arrivals(directory)
    arrivals.start()
    arrivals.stop()
    return arrivals


@pytest.mark.parametrize("stale", [None, *ENVELOPES])
def test_equal_means_every_envelope_holds_the_last_state(stale, tmp_path):
    events = dict(WRAPPED)
    if stale is not None:
        del events[stale]
    arrivals, written = arrived(tmp_path, events), io.StringIO()
    equal = report.show(Console(file=written, width=80), arrivals, {"orders": {7: PAID}}, {})

    assert equal == (stale is None)
    assert (f"orders in {stale} differs from the source in 1 rows" in written.getvalue()) != equal


def test_a_change_that_never_came_is_reported_although_the_rows_are_equal(tmp_path):
    """Of three commits the first lay before the stream, the second came, the third did not."""
    commits = {("orders", 7, 0): 1.0, ("orders", 7, 2): 2.0, ("orders", 8, None): 3.0}
    arrivals, written = arrived(tmp_path, WRAPPED), io.StringIO()

    def equal(*changes):
        told = {change: commits[change] for change in changes}
        return report.show(Console(file=written, width=80), arrivals, {"orders": {7: PAID}}, told)

    first, came, never = commits
    assert equal(first, came)
    assert "were committed" not in written.getvalue()
    assert not equal(first, came, never)
    assert "1 changes of orders were committed while the stream ran" in written.getvalue()


def test_where_nothing_came_everything_is_lost():
    commits = {("orders", 8, 2): 2.0, ("orders", 7, 1): 1.0}

    assert lost(commits, {}) == [("orders", 7, 1), ("orders", 8, 2)]


def test_latency_counts_from_the_commit_and_only_once_the_stream_has_caught_up():
    commits = {("orders", 1, 1): 0.0, ("orders", 2, 2): 9.5, ("orders", 3, None): 20.0}
    seen = {("orders", 1, 1): 10.0, ("orders", 2, 2): 10.1, ("orders", 3, None): 20.25}

    live, waited = latencies(commits, seen)

    assert live == [0.25]
    assert waited == pytest.approx([10.0, 0.6])


def test_events_are_laid_out_in_the_width_there_is():
    text = report.laid_out({"before": dict.fromkeys("abcdefghijklmno", "value"), "op": "u"}, 79)

    assert max(map(len, text.splitlines())) <= 79
    assert json.loads(text)["before"]["o"] == "value"


def test_what_a_copied_row_shows_is_not_lost():
    commits = {
        ("orders", 7, 1): 1.0,
        ("orders", 7, 2): 2.0,
        ("orders", 7, 3): 3.0,
        ("orders", 8, 4): 4.0,
        ("orders", 8, None): 5.0,
        ("orders", 9, 5): 0.5,
    }
    seen = {("orders", 9, 5): 9.0, ("orders", 7, 3): 9.0}

    assert lost(commits, seen, {("orders", 7): 2}) == []
    assert lost(commits, seen, {("orders", 7): 1}) == [("orders", 7, 2)]
    assert lost(commits, {("orders", 9, 5): 9.0}, {("orders", 7): 2}) == [("orders", 7, 3)]
