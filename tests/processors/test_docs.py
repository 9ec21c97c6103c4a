"""The examples on the pages of these processors are documents and queries that work."""

import re
from pathlib import Path

import pytest
import yaml

from airflow_provider_deltaforge.processors.sql import Sql
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.testing.changes import change, change_rows
from tests.spec.documents import document

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)


@pytest.mark.parametrize(
    ("page", "kinds"),
    [
        ("processors_python.md", ["python", "python", "python"]),
        ("processors_sql.md", ["sql"]),
        ("data_contracts.md", ["contract"]),
    ],
)
def test_the_documents_load(page, kinds):
    [text] = blocks(page, "yaml")
    processors = load(document(spec=text), {}).spec.processors
    assert [one["type"] for one in yaml.safe_load(text)["processors"]] == kinds
    assert len(processors) == len(kinds)


def test_the_functions_do_what_the_page_says(tmp_path, monkeypatch):
    [code] = blocks("processors_python.md", "python")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "clean.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    [text] = blocks("processors_python.md", "yaml")
    rows = change_rows([change(after=b'{"id":57}'), change(table="others", event_id=bytes(16))])

    for processor in load(document(spec=text), {}).spec.processors:
        worker = processor.open()
        rows = worker.process(rows).rows
        worker.close()

    assert rows["after"].to_pylist() == [b'{"id":57,"bucket":5,"number":101}']


def test_the_queries_do_what_the_page_says():
    [text] = blocks("processors_sql.md", "sql")
    rows = change_rows(
        [
            change(
                before=b'{"status":"new"}',
                after=b'{"status":"paid","items":[{"sku":1},{"sku":2}],"card_number":"4"}',
            )
        ]
    )
    images = []
    for query in text.split("\n\n"):
        worker = Sql(query=query).open()
        images.append(worker.process(rows).rows["after"].to_pylist())
        worker.close()

    assert images == [
        rows["after"].to_pylist(),
        [b'{"sku":1}', b'{"sku":2}'],
        [b'{"status":"paid","items":[{"sku":1},{"sku":2}]}'],
    ]
