"""The catalog is read exactly, on both servers."""

import pytest

from airflow_provider_deltaforge.sources.mysql.catalog import (
    SYSTEM_SCHEMAS,
    captured_facts,
    captured_tables,
    load_table,
    parse_labels,
)
from airflow_provider_deltaforge.spec.patterns import TableMatcher
from tests.servers import sql
from tests.sources.mysql.reading import fresh_database


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def server(request):
    server = request.getfixturevalue(f"{request.param}_server")
    fresh_database(
        server,
        "catalogued",
        "CREATE TABLE everything (id bigint unsigned, part int, name varchar(30) "
        "CHARACTER SET latin1 NOT NULL DEFAULT 'x', price decimal(10,2), at datetime(3), "
        "kind enum('a','it''s','with,comma','(paren)','back\\\\slash','new\\nline',''), "
        "flags set('x','y z') , twice int GENERATED ALWAYS AS (part * 2) VIRTUAL, "
        "PRIMARY KEY (part, id)) DEFAULT CHARSET=utf8mb4 COMMENT 'all of it'",
        "CREATE TABLE plain (a int) ENGINE=MyISAM",
        "CREATE TABLE `o``dd na.me` (`c``ol` int primary key)",
        "CREATE VIEW watched AS SELECT part FROM everything",
    )
    return server


@pytest.fixture
def connection(server):
    connection = sql.connect(server)
    yield connection
    connection.close()


def test_a_table_is_described_with_its_key_in_key_order(connection):
    schema = load_table(connection, "catalogued", "everything")
    assert schema.full_name == "catalogued.everything"
    assert schema.primary_key == ("part", "id")
    columns = {column.name: column for column in schema.columns}
    assert list(columns) == ["id", "part", "name", "price", "at", "kind", "flags", "twice"]
    assert (columns["id"].unsigned, columns["part"].unsigned) == (True, False)
    assert (columns["name"].charset, columns["name"].char_max_length) == ("latin1", 30)
    assert not columns["name"].nullable
    assert (columns["price"].numeric_precision, columns["price"].numeric_scale) == (10, 2)
    assert columns["at"].datetime_precision == 3
    assert "GENERATED" in columns["twice"].extra
    assert columns["kind"].labels == (
        "a",
        "it's",
        "with,comma",
        "(paren)",
        "back\\slash",
        "new\nline",
        "",
    )
    assert columns["flags"].labels == ("x", "y z")


def test_views_and_missing_tables_are_not_tables(connection):
    assert load_table(connection, "catalogued", "watched") is None
    assert load_table(connection, "catalogued", "never") is None
    assert load_table(connection, "no_such_database", "never") is None


def test_captured_tables_follow_the_patterns(connection):
    def names(*patterns):
        matcher = TableMatcher(patterns, "catalogued", SYSTEM_SCHEMAS)
        return [schema.table for schema in captured_tables(connection, matcher)]

    assert names("catalogued.*") == ["everything", "o`dd na.me", "plain"]
    assert names("pl*") == ["plain"]
    assert names("mysql.*", "sys.*", "performance_schema.*") == []
    assert {"everything", "plain"} <= set(names())


def test_engines_without_views_are_flagged(connection):
    matcher = TableMatcher(("catalogued.*",), None, SYSTEM_SCHEMAS)
    transactional = {f.schema.table: f.transactional for f in captured_facts(connection, matcher)}
    assert transactional == {"everything": True, "o`dd na.me": True, "plain": False}


def test_a_fingerprint_changes_with_the_table(server, connection):
    before = load_table(connection, "catalogued", "plain").fingerprint
    assert before == load_table(connection, "catalogued", "plain").fingerprint
    sql.execute(server, "ALTER TABLE catalogued.plain ADD b int")
    assert load_table(connection, "catalogued", "plain").fingerprint != before
    sql.execute(server, "ALTER TABLE catalogued.plain DROP b")
    assert load_table(connection, "catalogued", "plain").fingerprint == before


def test_labels_of_every_kind_are_parsed():
    assert parse_labels("enum('a','b''c','d,e')") == ("a", "b'c", "d,e")
    assert parse_labels("set('')") == ("",)
    assert parse_labels("enum(')','''')") == (")", "'")
