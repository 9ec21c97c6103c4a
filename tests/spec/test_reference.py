from pathlib import Path

import pytest

from airflow_provider_deltaforge.plugins import SINKS
from airflow_provider_deltaforge.sinks.contract import Sink
from airflow_provider_deltaforge.spec.reference import write

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reference" / "document.md"


def test_the_page_is_what_the_models_say(golden):
    golden(PAGE, write().encode())


def test_every_key_says_what_it_means():
    rows = [line for line in write().splitlines() if line.startswith("| `")]

    assert len(rows) > 150
    assert [row for row in rows if row.endswith("|  |")] == []


@pytest.mark.parametrize("kind", ["http", "kafka", "nats", "redis"])
def test_the_page_of_a_sink_names_every_key_of_its_own(kind):
    page = (DOCS / f"sinks_{kind}.md").read_text()
    own = SINKS.load(kind).model_fields.keys() - Sink.model_fields.keys()

    assert {key for key in own if f"`{key}`" not in page} == set()
