"""``deltaforge log``: what a person sees, and the exit code."""

import json

import pytest
from typer.testing import CliRunner

from airflow_provider_deltaforge.cli.app import app
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from tests.servers import sql

_DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: looked-at, tenant: t}}
spec:
  source:
    type: mysql
    config: {{id: looked-at, dsn: "mysql://df:${{PASSWORD}}@{host}:{port}/looked_at"}}
  sinks: [{{type: stdout, config: {{id: out}}}}]
"""


@pytest.fixture
def look(mysql_server, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PASSWORD", "df-secret")
    monkeypatch.setenv("DELTAFORGE_STORE", f"sqlite:///{tmp_path}/state.db")
    database = "looked_at"
    sql.execute(
        mysql_server,
        f"DROP DATABASE IF EXISTS {database}",
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.orders (id int primary key, note varchar(2000))",
    )
    file = tmp_path / "looked_at.yaml"
    file.write_text(_DOCUMENT.format(host=mysql_server.host, port=mysql_server.port))

    def invoked(*words):
        return CliRunner().invoke(app, ["log", str(file), *words])

    return invoked, load(file.read_text())


def test_the_two_readings_stand_side_by_side(look, mysql_server, tmp_path):
    invoked, pipeline = look
    source = pipeline.spec.source
    start = source.head()
    long = "x" * 1000
    sql.execute(mysql_server, f"INSERT INTO looked_at.orders VALUES (1, '{long}'), (2, '[b]')")

    refused = invoked()
    assert isinstance(refused.exception, SpecError)
    assert "has no position yet: name a place with --at" in str(refused.exception)
    assert "give one of them" in str(invoked("--at", "1", "--around", "2").exception)

    store = StoreLocation.from_environment().create()
    at = Checkpoints(store, pipeline.name, source.id)
    store.transact([at.put("out", start)])
    store.close()
    shown = invoked()
    assert shown.exit_code == 0, shown.output
    assert "2 changes, equal in both readings" in shown.stdout
    assert '"note": "[b]"' in shown.stdout
    assert long not in shown.stdout
    assert "df-secret" not in shown.output
    found = json.loads(invoked("--json", "--count", "1").stdout)
    assert [change["theirs"]["after"]["id"] for change in found["changes"]] == [1, 2]

    # A type that the library does not know: somebody has to look.
    sql.execute(
        mysql_server,
        "CREATE TABLE looked_at.places (id int primary key, v vector(2))",
        "INSERT INTO looked_at.places VALUES (1, STRING_TO_VECTOR('[1,2]'))",
    )
    shown = invoked("--table", "looked_at.places")
    assert shown.exit_code == 1
    assert "changes differ" in shown.stdout
    assert "it could not be read by the other" in shown.stdout
