"""What the proof of hand-overs says of events that are wrong: planted, it must find each."""

import json

import pytest

from tests.oracle import mysql_history
from tests.oracle.verdict import Change, Seen
from tests.prove.blind_readers import applied
from tests.prove.hand_over_run import copies_wrong, end_of, kept_keys, without_later_copies
from tests.prove.hot_tables import HotHistory, rows_after

ONE, TWO = ("d.t", 1), ("d.t", 2)


def event(op, before, after):
    def image(row):
        return None if row is None else {"id": row[0], "v": row[1]}

    source = {"db": "d", "schema": None, "table": "t"}
    return json.dumps(
        {"op": op, "before": image(before), "after": image(after), "source": source}
    ).encode()


COPIED = [event("r", None, (1, 0)), event("r", None, (2, 0))]
GOOD = [
    *COPIED,
    event("u", (1, 0), (1, 5)),
    event("r", None, (1, 5)),
    event("r", None, (2, 0)),
    event("u", (2, 0), (2, 6)),
]


def test_copies_that_join_the_log_where_it_has_left_their_rows_are_right():
    assert copies_wrong(GOOD, 1, {ONE, TWO}) == []


@pytest.mark.parametrize(
    ("events", "copies", "words"),
    [
        ([*GOOD[:3], event("r", None, (1, 0)), *GOOD[4:]], 1, "where the log has"),
        ([*GOOD[:3], event("r", None, (1, 7)), *GOOD[4:]], 1, "where the log has"),
        ([*GOOD, event("r", None, (2, 6))], 1, "copied too often"),
        ([*COPIED, COPIED[0]], 0, "copied too often"),
        ([*GOOD[:4], *GOOD[5:]], 1, "not in every copy"),
        ([COPIED[0]], 0, "not in every copy"),
        ([*GOOD[:2], event("d", (1, 0), None), *GOOD[3:]], 1, "where the log has None"),
    ],
    ids=["stale", "ahead", "twice", "first twice", "lacking", "first lacking", "deleted"],
)
def test_what_a_copy_has_else_is_found(events, copies, words):
    assert any(words in line for line in copies_wrong(events, copies, {ONE, TWO}))


def test_a_blind_reader_lets_go_of_a_key_that_changed():
    moved = [*COPIED, event("d", (2, 0), None), event("u", (1, 0), (2, 9))]

    assert applied(moved) == {TWO: {"id": 2, "v": 9}}


def test_rows_that_stay_are_those_that_are_never_deleted_or_moved():
    rows = {("d.t", number): {} for number in range(4)}
    changes = [
        Change(1, ("d.t", 0), {}),
        Change(2, ("d.t", 1), None),
        Change(3, ("d.t", 9), {}, ("d.t", 2)),
    ]

    assert kept_keys(rows, changes) == {("d.t", 0), ("d.t", 3)}


def test_the_first_copy_of_a_row_is_judged_with_the_log():
    first, later, streamed = Seen(None, ONE, 0, "a"), Seen(None, ONE, 5, "c"), Seen(7, ONE, 5, "b")
    unseen = Seen(None, TWO, 0, "d")

    found = without_later_copies([first, streamed, later, unseen])

    assert found == [first, streamed, unseen]


def test_a_history_has_the_rows_of_each_position():
    changes = [
        (10, Change("a", ONE, {"v": 1})),
        (10, Change("b", TWO, {"v": 1})),
        (20, Change("c", ("d.t", 3), {"v": 2}, TWO)),
        (30, Change("d", ONE, None)),
    ]
    history = HotHistory(changes, lambda position: position["at"], lambda _: None)

    def rows(at):
        return rows_after(history.changes[: history.count({"at": at})])

    assert [history.count({"at": at}) for at in (9, 10, 25, 30)] == [0, 2, 3, 4]
    assert rows(10) == {ONE: {"v": 1}, TWO: {"v": 1}}
    assert rows(20) == {ONE: {"v": 1}, ("d.t", 3): {"v": 2}}
    assert rows(30) == {("d.t", 3): {"v": 2}}


def test_what_came_ends_with_the_last_change_of_the_history_in_it():
    changes = [Change("a", ONE, {}), Change("b", TWO, {}), Change("c", ONE, {})]

    assert end_of([Seen("b", TWO, {}, "1"), Seen(None, ONE, {}, "2")], changes) == 2
    assert end_of([Seen("unknown", TWO, {}, "1")], changes) == 0


def test_events_without_gtids_are_named_by_where_their_transaction_starts():
    placed = [
        ((1, 150), Change(("", 0), ONE, {})),
        ((1, 180), Change(("", 1), ONE, {})),
        ((2, 90), Change(("", 0), TWO, {})),
    ]

    named, name_of = mysql_history.plain_names(placed)

    assert [change.name for _, change in named] == [(1, 0), (1, 1), (2, 0)]
    sources = [("b.000001", 100, 0), ("b.000001", 100, 1), ("b.000002", 4, 0)]
    assert [
        name_of({"source": {"file": file, "pos": pos, "row": row}}) for file, pos, row in sources
    ] == [(1, 0), (1, 1), (2, 0)]
