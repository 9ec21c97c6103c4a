"""``plan``, ``apply`` and ``delete``: documents that are compared, kept and forgotten."""

import json

import pytest
from typer.testing import CliRunner

from airflow_provider_deltaforge.cli import serve
from airflow_provider_deltaforge.cli.app import app
from airflow_provider_deltaforge.cli.options import DEFAULT_STORE, common_store
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
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


def test_plan_and_apply_say_that_another_source_id_will_not_start(pipeline, document):
    pipeline.transact([Checkpoints(pipeline, "orders", "shop-db").put("files", {"tx": 1})])
    document.write_text(DOCUMENT.replace("id: shop-db", "id: other-db"))
    for command in ("plan", "apply"):
        found = json.loads(deltaforge(command, str(document), "--json"))
        assert "its driver will not start: spec.source.config.id" in found["effects"][0]
    [warning] = found["warnings"]
    assert "Keep the id (shop-db)" in warning


def test_a_pipeline_is_deleted_with_its_name_only(pipeline):
    with pytest.raises(SpecError, match="--confirm"):
        deltaforge("delete", "orders", "--confirm", "order")
    assert Control.list_pipelines(pipeline) == ["orders"]
    assert "orders is deleted" in deltaforge("delete", "orders", "--confirm", "orders")
    assert Control.list_pipelines(pipeline) == []


def test_serve_keeps_the_store_that_its_documents_name(tmp_path, monkeypatch):
    """As `deltaforge --config` does in the documents; an option or variable goes before."""
    monkeypatch.delenv("DELTAFORGE_STORE", raising=False)
    own = f"{DOCUMENT}  storage: {{backend: sqlite, path: {tmp_path}/own.db}}\n"
    other = own.replace("own.db", "other.db")
    assert common_store([DOCUMENT, own, "wrong: ["], None) == f"sqlite:///{tmp_path}/own.db"
    assert common_store([own, other], "sqlite:///x.db") == "sqlite:///x.db"
    assert common_store([DOCUMENT], None) == DEFAULT_STORE
    with pytest.raises(SpecError, match=r"several state stores \(.*own\.db, .*other\.db\)"):
        common_store([own, other], None)

    assert serve.store_of("sqlite", None, None) is None
    monkeypatch.setenv("DELTAFORGE_STORE", "sqlite:///env.db")
    assert serve.store_of("sqlite", None, None) == "sqlite:///env.db"
    assert serve.store_of("sqlite", tmp_path / "s.db", None) == f"sqlite:///{tmp_path}/s.db"
    assert serve.store_of("postgres", None, "host=h") == "host=h"
    with pytest.raises(SpecError, match="drivers are processes of their own"):
        serve.store_of("memory", None, None)
