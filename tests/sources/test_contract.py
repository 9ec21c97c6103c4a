"""Every source of the package keeps the contract that plug-ins are tested by."""

import pytest

from airflow_provider_deltaforge.plugins import SOURCES
from airflow_provider_deltaforge.testing import ScriptedSource, SourceContract
from tests.servers import sql
from tests.servers.hrana import HranaFront
from tests.sources.mysql.reading import fresh_database
from tests.sources.mysql.reading import source_of as mysql_source
from tests.sources.postgres.stream_reading import drop, execute, fresh
from tests.sources.postgres.stream_reading import source_of as postgres_source
from tests.sources.turso.database import Writer
from tests.sources.turso.database import source as turso_source

DATABASE = "source_contract"
TABLE = "CREATE TABLE orders (id int PRIMARY KEY, item varchar(20))"
TRANSACTIONS = (
    "INSERT INTO orders VALUES (1, 'tea'), (2, 'mug'), (3, 'jug')",
    "UPDATE orders SET item = 'cup' WHERE id = 2",
    "DELETE FROM orders WHERE id = 1",
)


class TestScriptedSource(SourceContract):
    @pytest.fixture
    def source(self):
        return ScriptedSource(transactions=7, chunk_transactions=2, alter_every=3)

    @pytest.fixture
    def start(self):
        return {"tx": 2}


class TestTursoSource(SourceContract):
    @pytest.fixture
    def writer(self, tmp_path):
        writer = Writer(tmp_path / "shop.db")
        writer.run(TABLE.replace("int", "INTEGER"))
        yield writer
        writer.close()

    @pytest.fixture
    def source(self, writer, tmp_path):
        return turso_source(tmp_path / "shop.db")

    @pytest.fixture
    def start(self, source, writer):
        start = source.head()
        for statement in TRANSACTIONS:
            writer.run(statement)
        return start


class TestTursoServerSource(SourceContract):
    @pytest.fixture
    def server(self, tmp_path):
        with HranaFront(tmp_path / "shop.db") as front:
            front.run(TABLE.replace("int", "INTEGER"))
            yield front

    @pytest.fixture
    def source(self, server):
        return turso_source(server.url, cdc_mode="triggers", auto_create_triggers=True)

    @pytest.fixture
    def start(self, source, server):
        start = source.head()
        for statement in TRANSACTIONS:
            server.run(statement)
        return start


class TestMySqlSource(SourceContract):
    @pytest.fixture(params=["mysql", "mariadb"])
    def server(self, request):
        server = request.getfixturevalue(f"{request.param}_server")
        fresh_database(server, DATABASE, TABLE)
        return server

    @pytest.fixture
    def source(self, server):
        return mysql_source(server, DATABASE)

    @pytest.fixture
    def start(self, source, server):
        start = source.head()
        for statement in TRANSACTIONS:
            sql.execute(server, statement, database=DATABASE)
        return start


class TestPostgresSource(SourceContract):
    @pytest.fixture
    def source(self, postgres_server):
        fresh(postgres_server, DATABASE, TABLE)
        yield postgres_source(postgres_server, DATABASE)
        drop(postgres_server, DATABASE)

    @pytest.fixture
    def start(self, source, postgres_server):
        start = source.beginning()
        execute(postgres_server, *TRANSACTIONS, database=DATABASE)
        return start


def test_every_source_is_held_to_it():
    assert set(SOURCES.shipped) == {"mysql", "postgres", "scripted", "turso"}
