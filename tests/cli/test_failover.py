"""What the command line says of changes of server, and how a pipeline begins anew."""

import json

import pytest
from typer.testing import CliRunner

from airflow_provider_deltaforge.cli.app import app
from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.failover import Failovers, Reconciliation, pair_id

FORMER = {"type": "my_sql", "server_uuid": "aaa"}
PRESENT = {"type": "my_sql", "server_uuid": "bbb"}


@pytest.fixture
def source_id(pipeline):
    return pipelines.existing(pipeline, "orders").read().source_id


def deltaforge(*words):
    return CliRunner().invoke(app, words, catch_exceptions=True)


def changed(state, **more):
    told = {"former": FORMER, "present": PRESENT, "state": state, "on_schema_drift": "adapt"}
    told |= {"position": {"pos": 4}, "started_at_ms": 1_700_000_000_000}
    return Reconciliation(id=pair_id(FORMER, PRESENT), **{**told, **more})


def test_before_the_first_server_there_is_nothing_to_show(pipeline):
    outcome = deltaforge("failovers", "orders")
    assert outcome.exit_code == 0
    assert "none was read yet" in outcome.stdout


def test_every_change_of_server_is_shown_with_its_outcome(pipeline, source_id):
    records = Failovers(pipeline, source_id)
    drift = [{"table": "shop.t", "kind": "column_added", "column": "x", "was": None, "now": "int"}]
    failed = changed("failed", reason="position lost: aaa:7-9", error_class="position_lost")
    pipeline.transact([records.meet(FORMER), *records.end(failed)])
    pipeline.transact(records.end(changed("done", drift=drift)))
    pipeline.transact([records.put(changed("reading", started_at_ms=1_700_000_100_000))])

    text = deltaforge("failovers", "orders").stdout
    assert "server    bbb" in text
    assert "failed: position lost: aaa:7-9" in text
    assert "done: shop.t.x: column_added" in text
    assert "reading" in text
    assert "2023-11-14 22:13:20 UTC" in text

    told = json.loads(deltaforge("failovers", "orders", "--json").stdout)
    assert told["server"] == PRESENT
    assert [each["state"] for each in told["failovers"]] == ["failed", "done", "reading"]


def test_a_reset_begins_anew_only_when_it_is_meant(pipeline, source_id):
    checkpoints = Checkpoints(pipeline, "orders", source_id)
    pipeline.transact([checkpoints.put("out", {"tx": 5})])

    wrong = deltaforge("reset", "orders", "--confirm", "order")
    assert isinstance(wrong.exception, SpecError)
    assert checkpoints.load() == {"out": {"tx": 5}}

    assert deltaforge("reset", "orders", "--confirm", "orders").exit_code == 0
    assert checkpoints.load() == {}
