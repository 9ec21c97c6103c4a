"""The site builds without a warning, leads nowhere else for what it needs, and has every page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS

CONF = (DOCS / "conf.py").read_text()
_FOREIGN = re.compile(r"""(?:src=["']|url\(["']?|@import ["']|<link[^>]+href=["'])(https?:)?//""")


def build(pages: Path, site: Path) -> "subprocess.CompletedProcess[str]":
    """Build as ``./dev.sh docs-build`` does."""
    options = ["-q", "-E", "-W", "--keep-going", "-d", str(site.with_suffix(".pages"))]
    command = [sys.executable, "-m", "sphinx", *options, "-b", "html", str(pages), str(site)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = tmp_path_factory.mktemp("site") / "html"
    done = build(DOCS, place)
    assert done.returncode == 0, done.stderr
    return place


def test_every_page_is_in_the_site_and_in_its_search(site):
    made = {path.relative_to(site).with_suffix(".md") for path in site.rglob("*.html")}
    searched = (site / "searchindex.js").read_text()

    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS)
        assert name in made
        assert f'"{name.with_suffix("")}"' in searched


def test_nothing_is_fetched_from_another_host(site):
    texts = [path for suffix in ("html", "css") for path in site.rglob(f"*.{suffix}")]

    assert len(texts) > 50
    assert [path.name for path in texts if _FOREIGN.search(path.read_text())] == []
    assert _FOREIGN.search('<script src="https://cdn.example/x.js">')
    assert _FOREIGN.search("@import url('//fonts.example/a.css')")


def test_the_navigation_is_the_index(site):
    page = (site / "index.html").read_text()

    assert re.search(r'class="caption"[^>]*><span[^>]*>Mend it</span>', page)
    assert re.search(r'<li class="toctree-l1"><a[^>]+href="operations.html">Operations</a>', page)


@pytest.fixture
def small(tmp_path):
    """Two pages and the settings of ours, without the pictures."""
    settings = re.sub(r"^html_(favicon|static_path|css_files) .*$", "", CONF, flags=re.MULTILINE)
    (tmp_path / "conf.py").write_text(settings.replace('"furo"', '"alabaster"'))
    (tmp_path / "index.md").write_text("# Pages\n\n## All\n\n- [One](one.md)\n")
    (tmp_path / "one.md").write_text("# One\n\n## There\n\n[up](index.md) [here](#there)\n")
    return tmp_path


def test_good_pages_pass(small):
    assert build(small, small / "html").returncode == 0


def test_planted_lies_fail_the_build(small):
    (small / "one.md").write_text("# One\n\n[no page](three.md) [no heading](index.md#there)\n")
    (small / "two.md").write_text("# In no list\n")
    done = build(small, small / "html")

    assert done.returncode != 0
    assert [lie for lie in ("three", "there", "two.md") if lie not in done.stderr] == []
