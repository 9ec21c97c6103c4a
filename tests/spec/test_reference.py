from pathlib import Path

from airflow_provider_deltaforge.spec.reference import write

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "document.md"


def test_the_page_is_what_the_models_say(golden):
    golden(PAGE, write().encode())


def test_every_key_says_what_it_means():
    rows = [line for line in write().splitlines() if line.startswith("| `")]

    assert len(rows) > 150
    assert [row for row in rows if row.endswith("|  |")] == []
