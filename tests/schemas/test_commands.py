"""What people see of the registry on the command line."""

import json
import sys

import pytest

from airflow_provider_deltaforge.cli import app
from airflow_provider_deltaforge.control import pipelines, schemas
from airflow_provider_deltaforge.control.schemas import SchemaVersionQuery
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.schemas.registry import Registry
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.storage.location import StoreLocation
from tests.schemas.registered import register

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {name: shop, tenant: acme}
spec:
  source: {type: scripted, config: {id: shop-source, transactions: 15, alter_every: 10}}
  sinks: [{type: memory, config: {id: out}}]
"""
TABLE = ("script", None, "rows")


@pytest.fixture
def dsn(tmp_path):
    return f"sqlite:///{tmp_path}/state.db"


@pytest.fixture
def store(dsn):
    opened = StoreLocation.from_dsn(dsn).create()
    pipelines.apply(opened, DOCUMENT)
    source = ScriptedSource(alter_every=10)
    registry = Registry(opened, "shop-source", "acme")
    for tx in (0, 20, 30):
        register(registry, source.schema_of(tx), {"tx": tx}, compare=source.compare)
    yield opened
    opened.close()


@pytest.fixture
def deltaforge(dsn, capsys, monkeypatch):
    """Run the command in this process; return exit code, output and error text."""
    monkeypatch.setenv("DELTAFORGE_STORE", dsn)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["deltaforge", "schemas", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app.main()
        told = capsys.readouterr()
        return ended.value.code or 0, told.out, told.err

    return run


def test_the_command_shows_tables_versions_and_history(deltaforge, store):
    listed = deltaforge("shop")[1]
    (told,) = json.loads(deltaforge("shop", "--json")[1])
    one = deltaforge("shop", "script.rows")[1]
    second = json.loads(deltaforge("shop", "rows", "--version", "2", "--json")[1])

    assert "script.rows" in listed
    assert (told["database"], told["table"], told["primary_key"]) == ("script", "rows", ["id"])
    assert told["registry_version"] == 1
    assert one.count("bigint") == 3
    assert '{"tx": 20}' in one
    assert second["registry_version"] == 2
    assert second["fingerprint"] == ScriptedSource(alter_every=10).schema_of(20).fingerprint


def test_reload_registers_what_the_catalog_says(deltaforge, store):
    told = json.loads(deltaforge("shop", "--reload", "--json")[1])

    assert told["tables_reloaded"] == 1
    assert told["tables"] == [
        {"database": "script", "table": "rows", "status": "ok", "changed": True, "error": None}
    ]
    present = Registry(store, "shop-source", "acme").latest(*TABLE)
    assert present.number == 3
    assert present.schema == ScriptedSource(alter_every=10).schema_of(15)
    assert present.position == {"tx": 15}
    assert schemas.reload(store, "shop", "script.rows")["tables"][0]["changed"] is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("nobody",), "there is no pipeline", id="pipeline"),
        pytest.param(("shop", "nothing"), "no schema of a table 'nothing'", id="table"),
        pytest.param(("shop", "rows", "--version", "9"), "known: 1, 2", id="version"),
        pytest.param(("shop", "--version", "1"), "name it", id="version of no table"),
        pytest.param(("shop", "rows", "--at", "soon"), "is no time", id="time"),
        pytest.param(("shop", "rows", "--version=1", "--sequence=1"), "give one of", id="two"),
        pytest.param(("shop", "other", "--reload"), "captures no table", id="reload"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_the_way_out(deltaforge, store, words, said):
    code, _, error = deltaforge(*words)

    assert code == 2
    assert said in " ".join(error.split())


def test_a_version_is_found_by_time_and_sequence(store):
    history = schemas.versions(store, "shop", "rows")
    assert [entry["version"] for entry in history] == [1, 2, 1]
    by_sequence = schemas.schema(store, "shop", "rows", SchemaVersionQuery.of(None, None, 2))
    by_time = schemas.schema(store, "shop", "rows", SchemaVersionQuery.of(None, "2999-01-01", None))

    assert by_sequence["registry_version"] == 2
    assert by_time["registry_version"] == 1
    with pytest.raises(SpecError, match="no such version"):
        schemas.schema(
            store, "shop", "rows", SchemaVersionQuery.of(None, "2001-01-01T00:00:00Z", None)
        )
