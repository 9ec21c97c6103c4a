"""The preflight finds what would stop a snapshot or its stream, and says what to do."""

from contextlib import nullcontext

import pytest

from airflow_provider_deltaforge.errors import AccessError
from airflow_provider_deltaforge.sources.postgres.preflight import forecast
from airflow_provider_deltaforge.sources.postgres.tables import CapturedTable
from tests.servers import postgres
from tests.sources.postgres.copying import begun, copied, fresh_database, source_of
from tests.sources.postgres.stream_reading import connect, drop_slots, execute, tuned

GIB = 1 << 30
MIB = 1 << 20
NAME = "looked_at"
QUICK = tuned(rate_probe_s=0.01)


def checked(source):
    """Return the findings that are not fine, by check."""
    return {f.check: f for f in source.preflight() if f.verdict != "ok"}


@pytest.fixture
def shop(either):
    """Make a database with a table that nothing is wrong with, and what the test adds."""

    def make(*statements, tables=(), user="", kind=QUICK, **more):
        fresh_database(
            either,
            NAME,
            "CREATE TABLE fine (id int PRIMARY KEY)",
            "ALTER TABLE fine REPLICA IDENTITY FULL",
            *statements,
        )
        return source_of(either, NAME, *tables, user=user, kind=kind, **more)

    yield make
    drop_slots(either, NAME)


def test_a_well_set_server_passes(shop):
    source = shop()
    found = {f.check: f for f in source.preflight()}
    assert {f.verdict for f in found.values()} == {"ok"}
    assert {
        "version", "wal_level", "max_replication_slots", "max_wal_senders", "replication", "slot",
        "tables", "publication", "retention",
    } == set(found)  # fmt: skip
    assert found["tables"].data["count"] == 1
    assert "CREATE PUBLICATION" in found["publication"].data["sql"]
    assert "created" in found["slot"].message
    begun(source).close()
    assert not checked(source)


def test_the_server_does_what_the_findings_on_identity_say(shop, either):
    source = shop(
        "CREATE TABLE bare (a int)",
        "CREATE TABLE silent (a int PRIMARY KEY)",
        "ALTER TABLE silent REPLICA IDENTITY NOTHING",
        "CREATE TABLE keyed (a int PRIMARY KEY)",
        "CREATE TABLE indexed (a int NOT NULL UNIQUE)",
        "ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_a_key",
        "CREATE TABLE dropped (a int NOT NULL UNIQUE)",
        "ALTER TABLE dropped REPLICA IDENTITY USING INDEX dropped_a_key",
        "ALTER TABLE dropped DROP CONSTRAINT dropped_a_key",
        "CREATE TABLE computed (a int, g int GENERATED ALWAYS AS (a) STORED PRIMARY KEY)",
    )
    found = checked(source)
    assert "generated_key" in found or postgres.major_version(either) >= 18
    if "generated_key" in found:
        assert found["generated_key"].verdict == "high_risk"
        assert found["generated_key"].data["tables"] == ["public.computed"]
    assert found["replica_identity"].verdict == "high_risk"
    assert found["replica_identity"].data["tables"] == [
        "public.bare",
        "public.dropped",
        "public.silent",
    ]
    assert found["before_image"].data["tables"] == [
        "public.computed",
        "public.indexed",
        "public.keyed",
    ]
    assert found["primary_key"].data["tables"] == [
        "public.bare",
        "public.dropped",
        "public.indexed",
    ]
    begun(source).close()
    for table in ("bare", "silent", "dropped", "keyed", "indexed", "computed"):
        with connect(either, NAME) as connection:
            connection.execute(f"INSERT INTO {table} VALUES (1)")
            refused = table in ("bare", "silent", "dropped")
            with pytest.raises(Exception, match="replica identity") if refused else nullcontext():
                connection.execute(f"UPDATE {table} SET a = 2")


def test_generated_columns_leave_updates_possible_or_are_named(postgres18_server):
    fresh_database(
        postgres18_server,
        NAME,
        "CREATE TABLE stored (id int PRIMARY KEY, v int, g int GENERATED ALWAYS AS (v) STORED)",
        "ALTER TABLE stored REPLICA IDENTITY FULL",
        "CREATE TABLE lazy (id int PRIMARY KEY, v int, g int GENERATED ALWAYS AS (v) VIRTUAL)",
        "CREATE TABLE spoiled (LIKE lazy INCLUDING ALL)",
        "ALTER TABLE spoiled REPLICA IDENTITY FULL",
    )
    source = source_of(postgres18_server, NAME, kind=QUICK)
    found = checked(source)
    assert found["replica_identity"].data["tables"] == ["public.spoiled"]
    remedy = "ALTER TABLE public.spoiled REPLICA IDENTITY DEFAULT"
    assert remedy in found["replica_identity"].message
    assert "leave public.lazy as they are" in found["before_image"].message
    begun(source).close()
    for table in ("stored", "lazy", "spoiled"):
        with connect(postgres18_server, NAME) as connection:
            connection.execute(f"INSERT INTO {table} VALUES (1, 1)")
            refused = table == "spoiled"
            with pytest.raises(Exception, match="Replica identity") if refused else nullcontext():
                connection.execute(f"UPDATE {table} SET v = 2")
    execute(postgres18_server, remedy, "UPDATE spoiled SET v = 2", database=NAME)
    drop_slots(postgres18_server, NAME)


def test_what_a_publication_leaves_out_of_the_identity_is_named(shop, either):
    source = shop(
        "CREATE TABLE fits (id int PRIMARY KEY, v int, w int)",
        "CREATE TABLE whole (LIKE fits INCLUDING ALL)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "CREATE TABLE indexed (id int NOT NULL UNIQUE, v int PRIMARY KEY, w int)",
        "ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_id_key",
        "CREATE TABLE filtered (LIKE fits INCLUDING ALL)",
        "CREATE TABLE by_key (LIKE fits INCLUDING ALL)",
        "CREATE TABLE stored (id int PRIMARY KEY, v int, g int GENERATED ALWAYS AS (v) STORED)",
        "ALTER TABLE stored REPLICA IDENTITY FULL",
        "CREATE PUBLICATION shop_pub FOR TABLE fits (id, v), whole (id, v), indexed (v, w), "
        "filtered WHERE (v > 0 OR id > 7), by_key WHERE (id < 9), stored",
    )
    found = checked(source)
    identity = found["replica_identity"]
    refused = ["public.filtered", "public.indexed"]
    refused += ["public.stored"] * (postgres.major_version(either) >= 18) + ["public.whole"]
    assert (identity.verdict, identity.data["tables"]) == ("high_risk", refused)
    assert "ALTER TABLE public.whole REPLICA IDENTITY DEFAULT" in identity.message
    assert 'put id into the column list of "public"."indexed"' in identity.message
    assert 'filter the rows of "public"."filtered" by its replica identity, not by v' in (
        identity.message
    )
    assert ("SET (publish_generated_columns = stored)" in identity.message) == (len(refused) > 3)
    assert "leave public.fits as they are" in found["before_image"].message
    for table in ("fits", "whole", "indexed", "filtered", "by_key", "stored"):
        with connect(either, NAME) as connection:
            connection.execute(f"INSERT INTO {table} (id, v) VALUES (1, 1)")
            wrong = f"public.{table}" in refused
            with pytest.raises(Exception, match="cannot update") if wrong else nullcontext():
                connection.execute(f"UPDATE {table} SET v = 2")


def test_what_has_no_log_is_named(shop):
    source = shop(
        "CREATE UNLOGGED TABLE quick (id int PRIMARY KEY)",
        "CREATE VIEW seen AS SELECT 1",
        "CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF root FOR VALUES FROM (0) TO (9)",
        tables=["quick", "seen", "part"],
    )
    found = checked(source)
    assert found["unlogged"].data["tables"] == ["public.quick"]
    assert found["tables"].verdict == "fail"
    assert found["tables"].data["patterns"] == ["quick", "seen", "part"]
    assert "root" in found["tables"].message


def test_missing_rights_are_named_with_their_grants(shop, either):
    execute(either, "DROP ROLE IF EXISTS plain", "CREATE ROLE plain LOGIN")
    found = checked(shop("CREATE SCHEMA s", 'CREATE TABLE s."T" (id int PRIMARY KEY)',
                         tables=["*.*"], user="plain"))  # fmt: skip
    assert found["replication"].verdict == "fail"
    assert 'ALTER ROLE "plain" REPLICATION' in found["replication"].message
    assert "GRANT pg_read_all_stats" in found["pg_read_all_stats"].message
    assert found["privileges"].data["tables"] == ["public.fine", "s.T"]
    assert 'GRANT SELECT ON "public"."fine", "s"."T"' in found["privileges"].message
    assert found["publication"].verdict == "fail"
    assert "publish_via_partition_root" in found["publication"].data["sql"]
    execute(either, found["publication"].data["sql"], database=NAME)
    assert "publication" not in checked(source_of(either, NAME, "*.*", user="plain"))


def test_columns_that_the_user_may_not_read_are_named(shop, either):
    execute(
        either,
        "DROP ROLE IF EXISTS partly",
        "CREATE ROLE partly LOGIN REPLICATION PASSWORD 'partly-secret'",
    )
    source = shop(
        'CREATE TABLE "T" (id int PRIMARY KEY, a int, "B" int, c int)',
        'ALTER TABLE "T" DROP COLUMN c',
        "CREATE TABLE singly (id int PRIMARY KEY, a int)",
        'GRANT SELECT (id, a) ON "T" TO partly',
        "GRANT SELECT (id, a) ON singly TO partly",
        "GRANT SELECT ON fine TO partly",
        'CREATE PUBLICATION shop_pub FOR TABLE "T", singly, fine',
        user="partly:partly-secret",
    )
    found = checked(source)
    columns = found["column_privileges"]
    assert columns.verdict == "fail"
    assert columns.data["columns"] == {"public.T": ["B"], "public.singly": []}
    assert "public.T (lacks B)" in columns.message
    assert 'GRANT SELECT ON "public"."T", "public"."singly" TO "partly"' in columns.message
    assert "privileges" not in found
    with pytest.raises(AccessError, match="permission denied"):
        copied(source)
    drop_slots(either, NAME)
    execute(either, 'GRANT SELECT ON "T", singly TO partly', database=NAME)
    assert "column_privileges" not in checked(source)
    copied(source)


def test_rows_hidden_by_a_policy_fail(shop):
    found = checked(
        shop("ALTER TABLE fine ENABLE ROW LEVEL SECURITY", "GRANT SELECT ON fine TO df",
             "CREATE PUBLICATION shop_pub FOR TABLE fine", user="df:df-secret")
    )  # fmt: skip
    assert found["row_security"].verdict == "fail"
    assert "BYPASSRLS" in found["row_security"].message
    assert "privileges" not in found
    assert "replication" not in found


def test_a_publication_that_is_there_is_looked_at(shop):
    source = shop(
        "CREATE TABLE root (id int PRIMARY KEY, a int, b int) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF root FOR VALUES FROM (0) TO (9)",
        "ALTER TABLE fine ADD a int, ADD g int GENERATED ALWAYS AS (1) STORED",
        "ALTER TABLE fine REPLICA IDENTITY DEFAULT",
        "CREATE PUBLICATION halves FOR TABLE fine (id), root WITH (publish = 'insert')",
        "CREATE TABLE new (id int PRIMARY KEY)",
        publication={"name": "halves", "create": False},
    )
    found = checked(source)
    assert found["publication"].data["missing"] == ["public.new"]
    assert found["publication"].data["sql"] == 'ALTER PUBLICATION "halves" ADD TABLE "public"."new"'
    execute_in_place = found["publication"].message
    assert "create" in execute_in_place
    own = source.model_copy(update={"publication": "halves"})
    found = checked(own)
    assert "publication" not in found
    assert found["publication_partitions"].data["tables"] == ["public.root"]
    assert found["publication_narrowed"].data["tables"] == ["public.fine"]
    assert "publish = 'insert, update, delete, truncate'" in found["publication_kinds"].message


def test_without_patterns_the_publication_decides(shop):
    source = shop(
        "CREATE TABLE other (id int)",
        "CREATE PUBLICATION only_fine FOR TABLE fine",
        publication="only_fine",
    ).model_copy(update={"tables": ()})
    assert not checked(source)


def test_the_slot_is_looked_at(shop, either):
    source = shop(slot={"name": "mine", "create": False})
    assert (
        "pg_create_logical_replication_slot('mine', 'pgoutput')" in checked(source)["slot"].message
    )
    execute(
        either,
        "SELECT pg_create_logical_replication_slot('mine', 'pgoutput')",
        database="postgres",
    )
    found = checked(source)["slot"]
    assert (found.verdict, "'postgres'" in found.message) == ("fail", True)
    execute(either, "SELECT pg_drop_replication_slot('mine')")
    execute(
        either,
        "SELECT pg_create_logical_replication_slot('mine', 'pgoutput')",
        database=NAME,
    )
    assert "slot" not in checked(source)


def test_transactions_that_stay_open_are_named(shop, either):
    source = shop(kind=tuned(rate_probe_s=0.01, long_s=0))
    with connect(either, NAME) as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO fine VALUES (1)")
        pid = connection.info.backend_pid
        found = checked(source)["open_transactions"]
        connection.execute("ROLLBACK")
    assert found.verdict == "warn"
    assert f"session {pid}" in [one["what"] for one in found.data["open"]]
    assert "creating the slot waits" in found.message
    again = checked(source).get("open_transactions")  # Others may have one for a moment.
    assert again is None or f"session {pid}" not in [one["what"] for one in again.data["open"]]


def test_a_server_that_does_not_answer_is_a_finding(shop, either):
    source = shop()
    away = source.model_copy(update={"dsn": source_of(either, NAME).dsn})
    execute(either, f"DROP DATABASE {NAME} WITH (FORCE)")
    (finding,) = away.preflight()
    assert (finding.check, finding.verdict) == ("connection", "fail")
    assert finding.data["error_class"] == "access"
    (finding,) = shop(user="nobody:no-secret").preflight()
    assert finding.data["error_class"] == "access"
    assert "no-secret" not in str(finding)


def test_a_badly_set_server_fails(tmp_path):
    server = postgres.start(
        tmp_path,
        args=[
            "wal_level=replica", "max_replication_slots=1", "max_wal_senders=0",
            "wal_sender_timeout=0", "synchronous_commit=off", "max_slot_wal_keep_size=64MB",
            "max_prepared_transactions=2",
        ],
    )  # fmt: skip
    try:
        fresh_database(
            server,
            "bad",
            "SELECT pg_create_physical_replication_slot('taken')",
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "ALTER TABLE t REPLICA IDENTITY FULL",
            "INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 30000) i",
        )
        found = checked(source_of(server, "bad"))
        execute(server, "ALTER SYSTEM SET wal_sender_timeout = '2s'", "SELECT pg_reload_conf()")
    finally:
        server.stop()
    fails = {check for check, finding in found.items() if finding.verdict == "fail"}
    assert fails == {"wal_level", "max_replication_slots", "max_wal_senders"}
    assert "wal_level = logical" in found["wal_level"].message
    assert found["wal_sender_timeout"].verdict == "warn"
    assert found["synchronous_commit"].verdict == "warn"
    assert found["retention"].verdict == "high_risk"
    assert found["retention"].data["retention_bytes"] == 64 * MIB
    assert found["retention"].data["log_bytes"] > 60_000_000
    assert "ALTER SYSTEM SET max_slot_wal_keep_size" in found["retention"].message


def table_of(data_bytes):
    return CapturedTable(
        1, "public", "t", partitioned=False, unlogged=False, readable=True,
        owned=True, filtered=False, rows_estimate=1, data_bytes=data_bytes,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("count", "parallel", "kept", "rate", "verdict", "percent"),
    [
        pytest.param(4, 8, 100 * GIB, 0, "ok", 8.0, id="twice the data"),
        pytest.param(4, 8, 16 * GIB, 0, "warn", 50.0, id="half of it"),
        pytest.param(4, 8, 10 * GIB, 0, "high_risk", 80.0, id="most of it"),
        pytest.param(4, 8, 0, 0, "high_risk", 80.0, id="nothing left"),
        pytest.param(4, 8, None, 0, "ok", None, id="without limit"),
        # 4 GiB over 4 lanes of 20 MiB/s: 51.2 s.
        pytest.param(4, 8, 100 * GIB, GIB, "warn", 51.2, id="a busy server"),
        pytest.param(4, 1, 100 * GIB, GIB, "high_risk", 204.8, id="and one lane"),
    ],
)
def test_the_forecast_compares_the_log_with_what_is_kept(
    count, parallel, kept, rate, verdict, percent
):
    finding = forecast([table_of(GIB)] * count, parallel, kept, rate)
    assert finding.verdict == verdict
    assert finding.data.get("percent") == percent
    assert ("ALTER SYSTEM" in finding.message) == (verdict != "ok")
