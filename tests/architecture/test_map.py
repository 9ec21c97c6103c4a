"""The map of the engine in docs/architecture.md shows each of its modules, in one place."""

import re

from tests.architecture.probe import CHECKOUT

PAGE = (CHECKOUT / "docs" / "architecture.md").read_text()
ENGINE = CHECKOUT / "airflow_provider_deltaforge" / "engine"


def shown(text):
    return sorted(re.findall(r"`(\w+)`", text))


def modules(folder):
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def test_the_map_of_the_engine_shows_every_module_once():
    chapter = PAGE.partition("## Where things are in `engine`\n")[2].partition("\n## ")[0]
    engine, _, spark = chapter.partition("**`engine/spark`**")

    assert shown(engine) == modules(ENGINE)
    assert shown(spark) == modules(ENGINE / "spark")
