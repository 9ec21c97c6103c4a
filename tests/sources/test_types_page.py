"""The page of types is what the matrices say."""

from tests.sources import types_page


def test_the_page_is_what_the_matrices_say():
    page = types_page.PAGE.read_text(encoding="utf-8")

    assert page == types_page.page(), "run python -m tests.sources.types_page"


def test_every_type_is_on_it():
    page = types_page.page()

    for kind in ("`jsonb`", "`timestamp with time zone`", "`xml`", "`hstore`", "`integer[]`"):
        assert f"| {kind}" in page
    for kind in (
        "`bigint unsigned`",
        "`json` (MySQL)",
        "`uuid` (MariaDB)",
        "`geometry`",
        "`bit(1)`",
    ):
        assert f"| {kind}" in page
