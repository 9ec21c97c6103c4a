import json

import psycopg
import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from tests.control.bench import DOCUMENT


@pytest.mark.airflow
def test_a_connection_to_postgresql_is_the_state_store(postgres_server, monkeypatch):
    with psycopg.connect(postgres_server.dsn("postgres"), autocommit=True) as database:
        database.execute("CREATE ROLE cdc LOGIN PASSWORD 'p@ss/word'")
        database.execute("CREATE DATABASE cdc_state OWNER cdc")
    connection = {
        "conn_type": "deltaforge",
        "host": postgres_server.host,
        "port": postgres_server.port,
        "login": "cdc",
        "password": "p@ss/word",
        "schema": "cdc_state",
    }
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", json.dumps(connection))
    hook = DeltaForgeHook()
    with hook.store(create=True) as store:
        pipelines.apply(store, DOCUMENT)

    assert hook.get_pipelines() == ["orders"]
    assert hook.get_status("orders").status == "pending"
    assert hook.test_connection() == (True, "state store opened; 1 pipeline")


@pytest.mark.airflow
def test_the_folder_of_a_socket_is_a_host(postgres_server, monkeypatch):
    with psycopg.connect(postgres_server.dsn("postgres"), autocommit=True) as database:
        folder = database.execute("SHOW unix_socket_directories").fetchone()[0]
        database.execute("CREATE ROLE socket LOGIN PASSWORD 'p@ss/word'")
        database.execute('CREATE DATABASE "100%# state" OWNER socket')
    connection = {
        "conn_type": "deltaforge",
        "host": folder,
        "port": postgres_server.port,
        "login": "socket",
        "password": "p@ss/word",
        "schema": "100%# state",
    }
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", json.dumps(connection))
    hook = DeltaForgeHook()
    with hook.store(create=True) as store:
        pipelines.apply(store, DOCUMENT)

    assert hook.test_connection() == (True, "state store opened; 1 pipeline")


@pytest.mark.airflow
def test_a_database_that_is_away_is_reported_without_its_password(monkeypatch):
    address = "deltaforge://cdc:p%40ss@127.0.0.1:1/cdc_state"
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", address)
    reached, told = DeltaForgeHook().test_connection()

    assert not reached
    assert "127.0.0.1" in told
    assert "p@ss" not in told
    assert "p%40ss" not in told
