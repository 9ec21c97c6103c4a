"""docs/decisions/seeds.md says which example documents load and start; this holds it to that."""

from pathlib import Path

import pytest

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.load import check, load, spec_hash
from tests.spec.documents import DOCUMENTS, ENVIRONMENT

PAGE = Path(__file__).parents[2] / "docs" / "decisions" / "seeds.md"
HEADING = "## The documents\n"
PATHS = list(DOCUMENTS.values())
LOADING = [path for path in PATHS if not check(path.read_text(), ENVIRONMENT)]


def table():
    lines = ["", "| document | loads | refused at start for |", "|---|---|---|"]
    for path in PATHS:
        problems = check(path.read_text(), ENVIRONMENT)
        loads = "<br>".join(str(problem) for problem in problems) or "yes"
        asked = [] if problems else load(path.read_text(), ENVIRONMENT).unbuilt()
        lines.append(f"| `{path.stem}` | {loads} | {'<br>'.join(asked) or 'nothing'} |")
    return "\n".join([*lines, ""])


def test_the_page_is_what_happens(golden):
    written, heading, _ = PAGE.read_text().partition(HEADING)

    golden(PAGE, (written + heading + table()).encode())


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
class TestDocument:
    def test_its_first_line_says_where_it_comes_from(self, path):
        assert path.read_text().startswith("# ")

    def test_no_secret_shows(self, path):
        text = path.read_text()
        problems = "\n".join(str(problem) for problem in check(text, ENVIRONMENT))
        shown = problems or repr(load(text, ENVIRONMENT))

        assert "planted" not in shown

    def test_every_misspelt_key_is_found(self, path):
        text = path.read_text().replace("tables:", "tabels:").replace("batch:", "bacth:")

        told = "\n".join(str(problem) for problem in check(text, ENVIRONMENT))

        assert "unknown key; did you mean 'tables'?" in told


@pytest.mark.parametrize("path", LOADING, ids=lambda path: path.stem)
def test_a_document_that_loads_can_be_stored_unexpanded(path):
    text = path.read_text()

    assert load(text, expand=False).name == load(text, ENVIRONMENT).name
    assert len(spec_hash(text)) == 64


def test_all_that_load_have_names_of_their_own():
    names = {load(path.read_text(), ENVIRONMENT).name for path in LOADING}

    assert len(names) == len(LOADING)


def test_all_load():
    assert LOADING == PATHS


def test_our_own_example_starts():
    pipeline = load(DOCUMENTS["orders"].read_text(), ENVIRONMENT)

    assert pipeline.unbuilt() == []
    pipeline.refuse_unbuilt()


def test_a_schema_registry_has_both_names_of_the_pages():
    """``schema_registry_url``, and ``schema_registry`` as the page on encodings has it."""
    text = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {name: avro, tenant: t}
spec:
  source: {type: scripted, config: {id: s}}
  sinks:
    - {type: kafka, config: {id: k, brokers: b, topic: t, encoding: {type: avro, KEY: "http://r"}}}
"""
    for key in ("schema_registry", "schema_registry_url"):
        encoding = load(text.replace("KEY", key)).spec.sinks[0].encoding
        assert encoding.schema_registry_url == "http://r"
    both = text.replace("KEY", 'schema_registry: "http://q", schema_registry_url')
    with pytest.raises(SpecError, match="schema_registry: unknown key"):
        load(both)
