"""``plan``, ``apply`` and ``delete``: documents that are compared, kept and forgotten."""

import json

import pytest
from typer.testing import CliRunner

from airflow_provider_deltaforge.cli.app import app
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.records.control import Control
from tests.control.bench import DOCUMENT


def deltaforge(*words):
    outcome = CliRunner().invoke(app, words)
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        raise outcome.exception
    return outcome.stdout


@pytest.fixture
def document(tmp_path):
    file = tmp_path / "orders.yaml"
    file.write_text(DOCUMENT)
    return file


def test_a_plan_shows_what_apply_then_keeps(pipeline, document):
    document.write_text(DOCUMENT.replace("transactions: 10", "transactions: 11"))
    shown = deltaforge("plan", str(document))
    assert "spec.source.config.transactions" in shown
    assert ("10" in shown, "11" in shown) == (True, True)
    assert json.loads(deltaforge("plan", str(document), "--json"))["changes"] == [
        {"key": "spec.source.config.transactions", "before": 10, "after": 11}
    ]
    assert "transactions: 10" in Control(pipeline, "orders").document()

    deltaforge("apply", str(document))
    assert "transactions: 11" in Control(pipeline, "orders").document()
    assert Control(pipeline, "orders").read().generation == 0
    assert "nothing changes" in deltaforge("plan", str(document))


def test_a_pipeline_is_deleted_with_its_name_only(pipeline):
    with pytest.raises(SpecError, match="--confirm"):
        deltaforge("delete", "orders", "--confirm", "order")
    assert Control.list_pipelines(pipeline) == ["orders"]
    assert "orders is deleted" in deltaforge("delete", "orders", "--confirm", "orders")
    assert Control.list_pipelines(pipeline) == []
