"""What servers, databases and roles set for every session changes nothing of what is read."""

import json

import pytest

from airflow_provider_deltaforge.errors import AccessError, FatalError
from airflow_provider_deltaforge.sources.postgres.snapshot import snapshotter
from tests.sources.postgres.copying import begun, copied, source_of
from tests.sources.postgres.stream_reading import events, execute, rows

NAME = "pinned"
HOSTILE = {
    "search_path": "trap, public, pg_catalog",
    "quote_all_identifiers": "on",
    "row_security": "on",
    "extra_float_digits": "-5",
    "datestyle": "'German, DMY'",
    "intervalstyle": "sql_standard",
    "bytea_output": "escape",
    "timezone": "'Asia/Kolkata'",
    "statement_timeout": "'10s'",
    "idle_in_transaction_session_timeout": "'10s'",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "xmlbinary": "hex",
    "xmloption": "document",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "gin_fuzzy_search_limit": "1",
    "client_encoding": "latin1",
    "client_min_messages": "error",
}
TABLES = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    r"""CREATE TABLE t (id int PRIMARY KEY, f float8, d date, i interval, b bytea, z timestamptz,
        m money, r regclass, p regtype, x xml, a text[], w varchar(20), s mood)""",
    r"""INSERT INTO t SELECT n, n / 7.0, '2024-02-29', '-1 day 2 hours', '\x00ff41',
        '2024-02-29 12:00:00+00', 12.5, 't', 'mood', '<a/>', ARRAY['NULL', NULL, 'a\b'], 'ä€\', 'ok'
        FROM generate_series(1, 500) n""",
    "CREATE TABLE k (a text[] PRIMARY KEY, b int)",
    r"INSERT INTO k SELECT ARRAY[NULL, 'x\' || n], n FROM generate_series(1, 50) n",
    # What a name finds that nobody wrote with its schema.
    "CREATE SCHEMA trap",
    "CREATE TABLE trap.pg_class AS SELECT * FROM pg_catalog.pg_class LIMIT 0",
    "CREATE FUNCTION trap.has_any_column_privilege(oid, text) RETURNS bool LANGUAGE sql "
    "AS 'SELECT false'",
    "GRANT ALL ON ALL TABLES IN SCHEMA public, trap TO pinned",
    "GRANT USAGE ON SCHEMA public, trap TO pinned",
)


@pytest.fixture
def defaults(either):
    """Make a role, and return a function that sets its defaults; gone behind the test."""
    if not execute(either, f"SELECT 1 FROM pg_roles WHERE rolname = '{NAME}'"):
        execute(either, f"CREATE ROLE {NAME} LOGIN REPLICATION SUPERUSER")

    def settle(**settings):
        for name, value in settings.items():
            execute(either, f"ALTER ROLE {NAME} SET {name} = {value}")

    yield settle
    execute(either, f"ALTER ROLE {NAME} RESET ALL", f"ALTER ROLE {NAME} SUPERUSER")


def rows_of(source, chunk_rows=100):
    return sorted((e["table"], e["after"]) for e in events(copied(source, chunk_rows)))


def test_defaults_of_a_role_change_nothing(shop, either, defaults):
    shop(*TABLES)
    execute(either, f"ALTER TABLE t OWNER TO {NAME}", database=NAME)
    source = source_of(either, NAME, "public.*", user=NAME)
    expected = rows_of(source)
    assert len(expected) == 550
    defaults(**HOSTILE)
    assert rows_of(source) == expected
    position = source.head()
    execute(either, "UPDATE t SET id = id + 500 WHERE id > 499", database=NAME)
    (event,) = [e for e in rows(source, position) if e["table"] == "t"]
    (row,) = (json.loads(row) for _, row in expected if b'"id":500,' in row)
    assert json.loads(event["after"]) == {**row, "id": 1000}
    assert row["r"] == "public.t"


def test_extensions_keys_are_compared_by_their_own_operators(shop, either, defaults):
    """Without the extension's schema in the path, text would be compared instead."""
    letter = "chr(CASE WHEN n % 2 = 0 THEN 64 ELSE 96 END + n)"
    letters = f"SELECT n, {letter} FROM generate_series(1, 26) n"
    shop(
        "CREATE EXTENSION citext",
        "CREATE TABLE c (k citext PRIMARY KEY, n int)",
        f"INSERT INTO c SELECT b, a FROM ({letters}) l(a, b)",
        "CREATE DOMAIN own AS citext",
        "CREATE TABLE d (a own, b int, PRIMARY KEY (a, b))",
        f"INSERT INTO d SELECT b, i FROM ({letters}) l(a, b), generate_series(1, 3) i",
    )
    defaults(search_path="pg_catalog")
    source = source_of(either, NAME, "public.*", user=NAME)
    batches = copied(source, 4)
    found = [(e["table"], e["after"]) for e in events(batches)]
    assert len(found) == len(set(found)) == 26 + 78


def test_conditions_are_read_as_the_role_reads_them(shop, either, defaults):
    shop(*TABLES, "CREATE SCHEMA own", "CREATE FUNCTION own.pick() RETURNS int RETURN 7")
    defaults(search_path="own, public")
    snapshotter = begun(source_of(either, NAME, "public.t", user=NAME))
    chunks = list(snapshotter.plan(100, ["public.t"], r"id = pick() AND w = 'ä€\'"))
    found = [e for chunk in chunks for e in events(snapshotter.read(chunk, "run"))]
    snapshotter.close()
    assert [json.loads(e["after"])["id"] for e in found] == [7]


def test_a_policy_that_hides_rows_is_an_error_that_names_the_mend(shop, either, defaults):
    source = shop(*TABLES)
    snapshotter = begun(source)
    (chunk,) = snapshotter.plan(1000, ["public.t"])
    snapshotter.close()
    policy = "CREATE POLICY few ON t USING (id < 10)"
    execute(either, "ALTER TABLE t ENABLE ROW LEVEL SECURITY", policy, database=NAME)
    execute(either, f"ALTER ROLE {NAME} NOSUPERUSER", f"ALTER ROLE {NAME} SET row_security = on")
    reading = source_of(either, NAME, user=NAME).open_snapshot()
    with pytest.raises(AccessError, match=r"policy for table .t.*BYPASSRLS"):
        list(reading.read(chunk, "run"))
    reading.close()


def test_a_copy_that_is_cut_is_an_error(shop, either, monkeypatch):
    source = shop(*TABLES)
    whole = snapshotter.decode_copy

    def cut(part, plan):
        kept, _, last = part[:-1].rpartition(b"\n")
        return whole(kept + b"\n", plan) if last else whole(part, plan)

    monkeypatch.setattr(snapshotter, "decode_copy", cut)
    with pytest.raises(FatalError, match=r"rows arrived, but the server says that it sent"):
        copied(source)
