"""The judge of a soak, which has to see what is lost, repeated or late."""

import pytest

from tests.prove.__main__ import main
from tests.prove.soak_load import Reader


def event(op, key, number):
    row = {"id": key, "n": number}
    return {"op": op, "before": row if op == "d" else None, "after": None if op == "d" else row}


def judged(*events):
    """Return the reader's words, and what it holds in the end."""
    reader = Reader("nobody:1", "topic")
    return [fault for each in events for fault in reader.judge(event(*each))], reader.held


def test_a_row_that_comes_goes_and_comes_back_is_right():
    wrong, held = judged(("c", 1, 1), ("u", 1, 2), ("d", 1, 2), ("c", 1, 3), ("c", 2, 1))

    assert wrong == []
    assert held == {1: 3, 2: 1}


@pytest.mark.parametrize(
    "events",
    [
        [("c", 1, 1), ("u", 1, 3)],  # lost
        [("c", 1, 1), ("u", 1, 2), ("u", 1, 2)],  # repeated
        [("c", 1, 1), ("u", 1, 2), ("c", 1, 1)],  # late
        [("c", 1, 1), ("d", 1, 1), ("d", 1, 1)],  # deleted twice
        [("c", 1, 1), ("u", 1, 2), ("d", 1, 1)],  # a delete of an older row
        [("c", 1, 1), ("c", 1, 2)],  # the delete between them is lost
        [("u", 1, 1)],  # the first one is lost
        [("d", 1, 0)],  # of a row that never was
    ],
)
def test_what_is_lost_repeated_or_late_is_seen(events):
    wrong, _ = judged(*events)

    assert len(wrong) == 1


def test_hours_of_another_area_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["kills", "--hours", "2", "--forecast"])

    assert "--hours" in capsys.readouterr().err
