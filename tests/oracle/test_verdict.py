"""Wrong implementations, planted: the oracle must catch each."""

import pytest

from tests.oracle.verdict import UNCHANGED, AllRows, Change, Seen, judge

HISTORY = [
    Change(1, "a", 10),
    Change(2, "b", 20),
    Change(3, "a", 11),
    Change(4, "b", None),
    Change(5, "a", 12),
]
TABLE = {"a": 12}


def seen(*names, states=None):
    by_name = {change.name: change for change in HISTORY}
    return [
        Seen(name, by_name[name].key, (states or {}).get(name, by_name[name].state), f"id{name}")
        for name in names
    ]


def test_a_faithful_delivery_is_accepted():
    assert judge(HISTORY, seen(1, 2, 3, 4, 5), TABLE, exactly_once=True) == []


def test_a_replay_in_order_is_accepted_at_least_once():
    assert judge(HISTORY, seen(1, 2, 3, 2, 3, 4, 5), TABLE) == []


@pytest.mark.parametrize(
    ("delivered", "complaint"),
    [
        pytest.param(seen(1, 2, 4, 5), "never arrived", id="a gap"),
        pytest.param(seen(1, 2, 5, 3, 4, 5), "after a later change", id="first ones disordered"),
        pytest.param(seen(1, 2, 3, 4, 5, 3), "ends in another state", id="an old state last"),
        pytest.param(seen(1, 2, 3, 4, 5, 1, 2), "differs from the table", id="a deleted row back"),
        pytest.param(seen(1, 2, 3, 4, 5, states={3: 99}), "another content", id="wrong content"),
        pytest.param(
            [*seen(1, 2, 3, 4, 5), Seen(9, "a", 12, "id9")], "never happened", id="an alien"
        ),
        pytest.param(
            [*seen(1, 2, 3, 4, 5), Seen(5, "a", 12, "other")],
            "several event ids",
            id="a new id on replay",
        ),
        pytest.param(
            [*seen(1, 2, 3, 4), Seen(5, "a", 12, "id1")], "several changes", id="an id used twice"
        ),
    ],
)
def test_a_planted_fault_is_caught(delivered, complaint):
    assert any(complaint in line for line in judge(HISTORY, delivered, TABLE))


def test_a_duplicate_is_caught_where_exactly_once_was_promised():
    wrong = judge(HISTORY, seen(1, 2, 3, 4, 5, 5), TABLE, exactly_once=True)

    assert any("more than once" in line for line in wrong)


def row(name, number, state, moved_from=None):
    key = ("t", number)
    return Change(name, key, state, ("t", moved_from) if moved_from else None)


SHOP = [
    row(1, 1, {"id": 1, "note": "long"}),
    row(2, 2, {"id": 2, "note": "b"}),
    Change(3, AllRows("t"), None),
    row(4, 1, {"id": 1, "note": "longer"}),
    row(5, 7, {"id": 7, "note": UNCHANGED}, moved_from=1),
]
SHOP_TABLE = {("t", 7): {"id": 7, "note": "longer"}}


def in_shop(*names, without=()):
    found = {change.name: change for change in SHOP}
    return [
        Seen(n, c.key, c.state, f"id{n}", c.moved_from if n not in without else None)
        for n, c in ((name, found[name]) for name in names)
    ]


def test_truncations_new_keys_and_values_left_out_are_understood():
    assert judge(SHOP, in_shop(1, 2, 3, 4, 5), SHOP_TABLE) == []
    assert judge(SHOP, in_shop(1, 2, 3, 4, 3, 4, 5), SHOP_TABLE) == []
    # A replay names a row that has another key by now, and leaves its large value out.
    paid = Change(4.5, ("t", 1), {"id": 1, "note": UNCHANGED})
    again = [Seen(paid.name, paid.key, paid.state, "id4.5")]
    delivered = [*in_shop(1, 2, 3, 4), *again, *in_shop(5), *again, *in_shop(5)]
    assert judge([*SHOP[:4], paid, SHOP[4]], delivered, SHOP_TABLE) == []


@pytest.mark.parametrize(
    ("delivered", "complaint"),
    [
        pytest.param(in_shop(1, 2, 4, 5), "never arrived", id="a truncation lost"),
        pytest.param(in_shop(1, 3, 2, 4, 5), "after a later change", id="a row after its end"),
        pytest.param(in_shop(1, 2, 4, 3, 5), "after a later change", id="a truncation late"),
        pytest.param(in_shop(1, 2, 3, 5, 4), "after a later change", id="an old key after it"),
        pytest.param(in_shop(1, 2, 3, 4, 5, 2), "differs from the table", id="a row back"),
        pytest.param(
            in_shop(1, 2, 3, 4, 5, without=[5]), "differs from the table", id="an old key left"
        ),
    ],
)
def test_a_planted_fault_of_whole_tables_and_keys_is_caught(delivered, complaint):
    assert any(complaint in line for line in judge(SHOP, delivered, SHOP_TABLE))


def copy(key, state):
    return Seen(None, key, state, f"copy of {key}")


COPIED = [copy("a", 11), *seen(5)]
"""A view behind the fourth change: it shows the first four, and "b" was gone."""


def test_what_a_copy_shows_need_not_arrive():
    assert judge(HISTORY, COPIED, TABLE, each_row_once=True) == []


@pytest.mark.parametrize(
    ("delivered", "complaint"),
    [
        pytest.param([copy("a", 10), *seen(5)], "never arrived", id="a view before the cut"),
        pytest.param([copy("a", 11)], "never arrived", id="a change behind the view"),
        pytest.param([copy("a", 11), *seen(1, 5)], "never arrived", id="a hole in what is shown"),
        pytest.param([*seen(5)], "never arrived", id="no copy of the row"),
        pytest.param([*COPIED, *seen(2)], "never arrived", id="a row whose delete was left out"),
        pytest.param(
            [copy("a", 11), *seen(3, 5)], "although a copy had shown", id="a change shown already"
        ),
        pytest.param(
            [copy("a", 11), *seen(1, 2, 3, 4, 5)], "although a copy had shown", id="no seam"
        ),
        pytest.param([*COPIED, copy("b", 20)], "differs from the table", id="a row that was gone"),
    ],
)
def test_a_planted_seam_is_caught(delivered, complaint):
    found = judge(HISTORY, delivered, TABLE, each_row_once=True)

    assert any(complaint in line for line in found), found


MOVES = [row(1, 1, "one"), row(2, 8, "one", moved_from=1), row(3, 1, "new"), row(4, 8, None)]


def at(name, number, state, moved_from=None):
    former = ("t", moved_from) if moved_from else None
    return Seen(name, ("t", number), state, f"id{name}{number}", former)


@pytest.mark.parametrize(
    "delivered",
    [
        pytest.param(
            [copy(("t", 1), "new"), at(2, 8, "one"), at(4, 8, None)], id="it arrives, and has gone"
        ),
        pytest.param(
            [copy(("t", 1), "one"), at(2, 1, None), at(3, 1, "new")], id="it leaves, and was there"
        ),
        pytest.param([copy(("t", 1), "new")], id="shown in both"),
    ],
)
def test_a_row_that_moved_may_arrive_as_the_half_that_is_not_shown(delivered):
    assert judge(MOVES, delivered, {("t", 1): "new"}, each_row_once=True) == []


def test_a_row_that_leaves_where_a_newer_one_was_shown_is_caught():
    delivered = [copy(("t", 1), "new"), at(2, 8, "one", moved_from=1), at(4, 8, None)]

    assert judge(MOVES, delivered, {("t", 1): "new"}) != []
