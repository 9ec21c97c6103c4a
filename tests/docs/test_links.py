"""Links lead to pages that are there, and to headings on them."""

from pathlib import Path

import pytest

from tests.docs.pages import DOCS, Link, anchors, links, name_of, pages, tokens

_MARKDOWN_PAGES = pages()


def broken(link: Link) -> bool:
    target = link.page.parent / link.target if link.target else link.page
    if not target.exists():
        return True
    if not link.anchor or target.suffix != ".md":
        return False
    return link.anchor not in anchors(target.resolve())


def test_links_lead_somewhere():
    found = [link for page in _MARKDOWN_PAGES for link in links(tokens(page), page)]

    assert len(found) > 150
    assert [str(link) for link in found if broken(link)] == []


@pytest.mark.parametrize(
    ("target", "anchor"),
    [("no_such.md", ""), ("mysql.md", "no-such-heading"), ("", "no-such"), ("images/none.png", "")],
)
def test_a_planted_lie_is_found(target, anchor):
    assert broken(Link(DOCS / "operations.md", target, anchor))


def test_headings_that_are_equal_have_anchors_of_their_own(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# What `deltaforge run` does\n## Limits\n## Limits\n")

    assert anchors(page) == {"what-deltaforge-run-does", "limits", "limits-1"}


def test_every_page_is_reached_from_the_index():
    seen: set[Path] = set()
    ahead = [DOCS / "index.md"]
    while ahead:
        page = ahead.pop()
        if page not in seen and page.suffix == ".md" and page.exists():
            seen.add(page)
            ahead += [(page.parent / link.target).resolve() for link in links(tokens(page), page)]

    assert [name_of(page) for page in DOCS.rglob("*.md") if page not in seen] == []
