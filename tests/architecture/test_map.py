"""docs/architecture.md shows each package of the engine, in the order that the imports keep.

It and the decisions name no module that is not there, and no docstring a name that is gone.
"""

import ast
import re
from functools import cache

import pytest

from tests.architecture.probe import CHECKOUT

PAGE = (CHECKOUT / "docs" / "architecture.md").read_text()
CHAPTER = PAGE.partition("## Where things are in `engine`\n")[2].partition("\n## ")[0]
DECISIONS = sorted((CHECKOUT / "docs" / "decisions").glob("*.md"))
PACKAGE_FOLDERS = ("airflow_provider_deltaforge", "dags", "spark_jobs")
ENGINE = CHECKOUT / "airflow_provider_deltaforge" / "engine"


def packages():
    return {path.parent.name for path in ENGINE.glob("*/__init__.py")}


def test_the_table_shows_every_package_once():
    assert sorted(re.findall(r"^\| `(\w+)`", CHAPTER, re.MULTILINE)) == sorted(packages())


def test_the_picture_shows_the_order_of_the_contract():
    picture = CHAPTER.split("```")[1].replace("►", " ")
    contract = (CHECKOUT / "pyproject.toml").read_text().partition('deltaforge.engine"]')[2]
    layers = contract.partition("layers = [")[2].partition("]")[0]

    assert re.findall(r"\w+", picture) == re.findall(r"\w+", layers)


def test_every_package_says_what_it_promises():
    first = {name: (ENGINE / name / "__init__.py").read_text() for name in packages()}

    assert {name for name, text in first.items() if len(text) < 60} == set()


@cache
def modules():
    """Return the path of every Python file of the repository, with a slash before it."""
    folders = (*PACKAGE_FOLDERS, "tests", "benchmarks")
    found = (path for folder in folders for path in (CHECKOUT / folder).rglob("*.py"))
    return {f"/{path.relative_to(CHECKOUT).as_posix()}" for path in found}


@pytest.mark.parametrize(
    "page", [CHECKOUT / "docs" / "architecture.md", *DECISIONS], ids=lambda page: page.stem
)
def test_the_modules_that_a_page_names_are_there(page):
    named = re.findall(r"`([\w./]*\w\.py)[`:]", page.read_text())
    known = modules()

    assert [name for name in named if not any(path.endswith(f"/{name}") for path in known)] == []


FOREIGN = {
    *("M_MMAP_THRESHOLD", "M_ARENA_MAX", "operators.default_deferrable", "AssetWatcher"),
    *("NORMAL", "reserved", "extended", "DateStyle", "TimeZone", "ctid", "pg_current_snapshot"),
    *("_s", "_total"),
}
"""Names in the system's, Airflow's, SQLite's and PostgreSQL's words, and ends of names."""


def names_in(path):
    """Return the words of a module's code and short texts, and what its docstrings quote."""
    tree = ast.parse(path.read_text())
    known, quoted = {*path.parts, path.stem}, set()
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "module", "value"):
            word = getattr(node, field, None)
            if isinstance(word, bytes):
                word = word.decode("latin1")
            if isinstance(word, str):
                is_quoting = "``" in word
                (quoted if is_quoting else known).update(
                    re.findall(r"``([A-Za-z_][\w.]*)(?:\(\))?``" if is_quoting else r"\w+", word)
                )
    return known, quoted


def test_docstrings_quote_names_that_are_there():
    folders = (*PACKAGE_FOLDERS, "tests")
    found = [names_in(path) for folder in folders for path in (CHECKOUT / folder).rglob("*.py")]
    known = set().union(*(words for words, _ in found))
    quoted = set().union(*(words for _, words in found)) - FOREIGN

    gone = {name for name in quoted if set(name.strip(".").split(".")) - known}
    assert gone == set()
