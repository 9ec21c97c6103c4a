"""A written name is one table's, and those without dots are as they always were."""

from itertools import product

import pytest

from airflow_provider_deltaforge.events.table_names import (
    is_among,
    qualified_name,
    quoted_parts,
    unquoted,
)
from airflow_provider_deltaforge.spec.patterns import TableMatcher, splits

ALPHABET = ["".join(letters) for n in (1, 2, 3) for letters in product('a."', repeat=n)]


def test_names_without_dots_are_written_plainly():
    assert qualified_name("shop", "orders") == "shop.orders"
    assert qualified_name('we "ird', '"t"') == 'we "ird."t"'
    assert qualified_name("a.b", "c") == '"a.b".c'
    assert qualified_name("a", 'b".c') == 'a."b"".c"'
    assert qualified_name("db", "a.b", "c") == 'db."a.b".c'


def test_no_two_tables_share_a_name():
    written = {qualified_name(*pair): pair for pair in product(ALPHABET, repeat=2)}

    assert len(written) == len(ALPHABET) ** 2
    dotted = {name: pair for name, pair in written.items() if "." in "".join(pair)}
    assert {name: splits(name) for name in dotted} == {n: [p] for n, p in dotted.items()}


def test_names_that_quote_nothing_have_no_quoted_parts():
    assert quoted_parts("shop.orders") is None
    assert quoted_parts("a.b.c") is None
    assert quoted_parts('"a.b".') is None
    assert quoted_parts('"a.b"c') is None
    assert quoted_parts('"a.b".*') == [("a.b", True), ("*", False)]
    assert (unquoted('"a.b".c'), unquoted("a.b")) == ("a.b.c", "a.b")


def test_names_of_early_releases_mean_what_they_meant():
    assert is_among({"a.b.c"}, "a.b", "c")
    assert is_among({"a.b.c"}, "a", "b.c")
    assert is_among({'"a.b".c'}, "a.b", "c")
    assert not is_among({'"a.b".c'}, "a", "b.c")
    assert is_among({"a.b"}, "a", "b")


@pytest.mark.parametrize(
    ("pattern", "named", "others"),
    [
        ('"a.b".c', [("a.b", "c")], [("a", "b.c"), ('"a.b"', "c")]),
        ('"a.b".*', [("a.b", "c"), ("a.b", "d.e")], [("a", "b.c")]),
        ('a*."b.c"', [("a", "b.c"), ("aa", "b.c")], [("a.b", "c")]),
        ('"b.c"', [("public", "b.c")], [("b", "c"), ("a", "b.c")]),
        ('"a*.b".c', [("a*.b", "c")], [("ax.b", "c")]),
        ("a.b.c", [("a.b", "c"), ("a", "b.c")], [("a", "b")]),
    ],
)
def test_a_pattern_may_quote_its_parts(pattern, named, others):
    matcher = TableMatcher((pattern,), default="public")

    assert [matcher.matches(*table) for table in named] == [True] * len(named)
    assert [matcher.matches(*table) for table in others] == [False] * len(others)
    assert all(matcher.touches(qualifier) for qualifier, _ in named)
    assert all(matcher.matches_full(qualified_name(*table)) for table in named)
    assert not any(matcher.matches_full(qualified_name(*table)) for table in others)
