"""docs/architecture.md shows each package of the engine, in the order that the imports keep."""

import re

from tests.architecture.probe import CHECKOUT

PAGE = (CHECKOUT / "docs" / "architecture.md").read_text()
CHAPTER = PAGE.partition("## Where things are in `engine`\n")[2].partition("\n## ")[0]
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
