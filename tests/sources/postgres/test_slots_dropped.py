"""The command that lists slots and drops those nobody reads from any more."""

import json

import pytest
from typer.testing import CliRunner

from airflow_provider_deltaforge.cli.app import app
from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.sources.postgres.slots import held_slots
from airflow_provider_deltaforge.storage.location import StoreLocation
from tests.sources.postgres.stream_reading import connect, execute, source_of
from tests.sources.postgres.table_run import DOCUMENT
from tests.waiting import wait_for

TABLE = "CREATE TABLE t (id int PRIMARY KEY)"


@pytest.fixture
def command(postgres_server, database, tmp_path):
    """Run a command about the document, which is applied in a state store."""
    file, store = tmp_path / "shop.yaml", f"sqlite:///{tmp_path}/state.db"
    dsn = postgres_server.dsn(database)
    settings = {"policy": "halt", "tables": '["*"]', "create": "true"}
    file.write_text(DOCUMENT.format(name="shop", dsn=dsn, database=database, **settings))
    state = StoreLocation.from_dsn(store).create()
    pipelines.apply(state, file.read_text())

    def run(name, *given):
        return CliRunner().invoke(app, [name, str(file), *given, "--store", store])

    yield run
    state.close()


def listed(command):
    found = json.loads(command("slots", "--json").stdout)
    return {one["name"]: (one["owner"], one["kept_for"]) for one in found}


def test_only_a_readers_slot_that_nobody_reads_from_is_dropped(postgres_server, database, command):
    source = source_of(postgres_server, database)
    start = source.beginning()
    execute(
        postgres_server,
        "SELECT pg_create_logical_replication_slot('somebodys', 'pgoutput')",
        "SELECT pg_create_physical_replication_slot('physical')",
        database=database,
    )
    mine = f"{database}_mine"
    reader = source.beside("mine").open(start)
    reader.read(0.1)
    try:
        wait_for("the reader", lambda: "stop the query" in (listed(command)[mine][1] or ""))
        kept = listed(command)
        reasons = {
            database: "pipeline 'shop'",
            "somebodys": "none that DeltaForge",
            mine: "somebody reads",
            "physical": "no slot 'physical'",
        }
        for slot, why in reasons.items():
            refused = command("slots", "--drop", slot, "--confirm", slot)
            assert isinstance(refused.exception, SpecError)
            assert why in str(refused.exception)
    finally:
        reader.close()
    assert kept[database][0] == "pipeline shop"
    assert kept[mine][0] == f"by its name a DataFrame reader 'mine' of {database}"
    assert kept["somebodys"][0] is None
    wait_for("the reader to end", lambda: listed(command)[mine][1] is None)
    assert "confirm with its name" in str(
        command("slots", "--drop", mine, "--confirm", "x").exception
    )
    assert command("slots", "--drop", mine, "--confirm", mine).output.startswith(
        f"{mine} is dropped; "
    )
    assert sorted(listed(command)) == sorted([database, "somebodys"])
    assert "somebodys" in command("slots").stdout
    execute(postgres_server, "SELECT pg_drop_replication_slot('physical')")


def test_no_slot_is_dropped_that_an_unread_document_may_name(
    postgres_server, database, command, tmp_path
):
    source = source_of(postgres_server, database)
    source.beside("old").beginning()
    state = StoreLocation.from_dsn(f"sqlite:///{tmp_path}/state.db").create()
    settings = {"policy": "halt", "tables": "[a]", "create": "true"}
    document = DOCUMENT.format(
        name="other", dsn="${A_DSN}", database="${A_SLOT:-given}", **settings
    )
    pipelines.apply(state, document)
    state.close()
    old = f"{database}_old"
    assert "pipeline 'other' cannot be read here" in listed(command)[old][1]
    assert "cannot be read here" in str(command("slots", "--drop", old, "--confirm", old).exception)


@pytest.mark.long
def test_a_lost_slot_keeps_nothing_though_it_says_from_where_on(postgres18_server):
    timeout = "idle_replication_slot_timeout"
    with connect(postgres18_server) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('idle', 'pgoutput')")
        try:
            for statement in (f"ALTER SYSTEM SET {timeout} = '1s'", "SELECT pg_reload_conf()"):
                connection.execute(statement)

            def status():
                connection.execute("CHECKPOINT")
                (slot,) = (one for one in held_slots(connection) if one.name == "idle")
                return slot.wal_status, slot.kept_bytes

            wait_for("the slot to be lost", lambda: status() == ("lost", None))
        finally:
            for statement in (f"ALTER SYSTEM RESET {timeout}", "SELECT pg_reload_conf()"):
                connection.execute(statement)
            connection.execute("SELECT pg_drop_replication_slot('idle')")
