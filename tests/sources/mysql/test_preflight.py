"""The preflight finds what would stop a snapshot or its stream."""

import pytest

from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.mysql.catalog import TableSize
from airflow_provider_deltaforge.sources.mysql.connection import MySqlServer
from airflow_provider_deltaforge.sources.mysql.grants import granted_by_column, missing_privileges
from airflow_provider_deltaforge.sources.mysql.preflight import forecast, log_findings, retention_s
from tests.docs.pages import blocks
from tests.servers import mysql, sql
from tests.sources.mysql.reading import fresh_database, source_of

GIB = 1 << 30
_NAMES = {"mysql": "MySQL", "mariadb": "MariaDB"}


def verdicts(findings):
    return {finding.check: finding.verdict for finding in findings}


def test_a_well_set_server_passes(server):
    fresh_database(server, "fine", "CREATE TABLE t (id int primary key)")
    found = source_of(server, "fine").preflight()
    bad = {finding.check: finding for finding in found if finding.verdict != "ok"}
    bad.pop("xa", None)  # The user may not look at XA on MySQL, which is a warning.
    assert not bad
    assert {"log_bin", "binlog_format", "binlog_row_image", "retention", "tables"} <= set(
        verdicts(found)
    )


def test_no_matching_table_fails_and_names_the_patterns(server):
    fresh_database(server, "fine", "CREATE TABLE t (id int primary key)")
    (finding,) = [f for f in source_of(server, "fine", "nope*").preflight() if f.check == "tables"]
    assert finding.verdict == "fail"
    assert "nope*" in finding.message


def test_tables_without_key_or_transactions_are_warned_about(server):
    fresh_database(
        server, "odd", "CREATE TABLE k (a int)", "CREATE TABLE m (a int primary key) ENGINE=MyISAM"
    )
    found = {f.check: f for f in source_of(server, "odd").preflight()}
    assert found["primary_key"].data["tables"] == ["odd.k"]
    assert found["engine"].data["tables"] == ["odd.m"]


def test_a_missing_privilege_fails_by_name(server):
    fresh_database(server, "poor", "CREATE TABLE t (id int primary key)")
    sql.execute(
        server,
        "DROP USER IF EXISTS 'poor'@'%'",
        "CREATE USER 'poor'@'%' IDENTIFIED BY 'poor-secret'",
        "GRANT SELECT ON poor.* TO 'poor'@'%'",
    )
    found = {f.check: f for f in source_of(server, "poor", user="poor:poor-secret").preflight()}
    assert found["privileges"].verdict == "fail"
    assert "REPLICATION SLAVE" in found["privileges"].data["missing"]
    assert not any("poor-secret" in str(finding) for finding in found.values())


@pytest.fixture
def by_column(server):
    """Make a user who may read some columns of two tables and all of a third."""
    fresh_database(
        server,
        "partly",
        "CREATE TABLE t (id int primary key, name text, secret text)",
        "CREATE TABLE `odd.name` (id int primary key, secret text)",
        "CREATE TABLE whole (id int primary key)",
    )
    sql.execute(
        server,
        "DROP USER IF EXISTS 'partly'@'%'",
        "CREATE USER 'partly'@'%' IDENTIFIED BY 'partly-secret'",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'partly'@'%'",
        "GRANT SELECT (id, name) ON partly.t TO 'partly'@'%'",
        "GRANT SELECT (id) ON partly.`odd.name` TO 'partly'@'%'",
        "GRANT SELECT ON partly.whole TO 'partly'@'%'",
    )

    def findings():
        source = source_of(server, "partly", user="partly:partly-secret")
        return {f.check: f for f in source.preflight()}

    return findings


def test_rights_to_some_columns_are_named_as_the_server_has_them(server, by_column):
    found = by_column()["privileges"]
    assert found.verdict == "fail"
    assert found.data["missing"] == [
        f"SELECT on every column of {name} (GRANT SELECT ON {name})"
        for name in ("`partly`.`odd.name`", "`partly`.`t`")
    ]
    for name in ("`odd.name`", "t"):
        sql.execute(server, f"GRANT SELECT ON partly.{name} TO 'partly'@'%'")
    assert by_column()["privileges"].verdict == "ok"


def test_the_privileges_of_the_page_are_enough(server):
    fresh_database(server, "shop", "CREATE TABLE orders (id int primary key)")
    shown = [block for block in blocks("sql") if block.page == "docs/mysql.md"]
    [grants] = [
        b.text for b in shown if b.text.startswith(f"-- {_NAMES[server.name]}\nCREATE USER")
    ]
    statements = [text.strip() for text in grants.split("\n", 1)[1].split(";") if text.strip()]
    sql.execute(server, "DROP USER IF EXISTS 'deltaforge'@'%'", *statements)
    found = source_of(server, "shop", user="deltaforge:change-me").preflight()
    assert [finding for finding in found if finding.verdict != "ok"] == []


def test_rights_that_a_pattern_or_a_role_brings_are_seen(server, by_column):
    sql.execute(server, "GRANT SELECT ON `part%`.* TO 'partly'@'%'")
    assert by_column()["privileges"].verdict == "ok"
    sql.execute(
        server,
        "REVOKE SELECT ON `part%`.* FROM 'partly'@'%'",
        "DROP ROLE IF EXISTS part_reader",
        "CREATE ROLE part_reader",
        "GRANT SELECT ON partly.t TO part_reader",
        "GRANT part_reader TO 'partly'@'%'",
        "SET DEFAULT ROLE part_reader FOR 'partly'@'%'"
        if server.name == "mariadb"
        else "SET DEFAULT ROLE part_reader TO 'partly'@'%'",
    )
    (missing,) = by_column()["privileges"].data["missing"]
    assert "`partly`.`odd.name`" in missing


@pytest.mark.parametrize(
    ("more", "warned"),
    [
        ({"ssl_mode": "required"}, True),
        ({"ssl_mode": "preferred"}, False),
        ({"ssl_mode": "required", "ssl_ca": "ca.pem"}, False),
        ({"ssl_mode": "verify_ca", "ssl_ca": "ca.pem"}, False),
    ],
)
def test_encryption_that_verifies_nothing_is_warned_about(mysql_server, more, warned):
    fresh_database(mysql_server, "fine", "CREATE TABLE t (id int primary key)")
    if "ssl_ca" in more:
        more = {**more, "ssl_ca": str(mysql_server.directory / "data" / "ca.pem")}
    found = {f.check: f for f in source_of(mysql_server, "fine", **more).preflight()}
    assert found["tables"].verdict == "ok"
    assert ("tls" in found) is warned
    if warned:
        assert found["tls"].verdict == "warn"
        assert "ssl_ca" in found["tls"].message
        assert "verify_identity" in found["tls"].message


def test_a_wrong_password_is_a_finding_without_the_password(server):
    fresh_database(server, "fine", "CREATE TABLE t (id int primary key)")
    (finding,) = source_of(server, "fine", user="df:wrong-secret").preflight()
    assert (finding.verdict, finding.data["error_class"]) == ("fail", "access")
    assert "wrong-secret" not in str(finding)


def test_a_badly_set_server_fails(tmp_path):
    server = mysql.start(
        tmp_path,
        gtid=False,
        row_metadata="MINIMAL",
        partial_json=True,
        args=["--binlog-row-image=MINIMAL", "--binlog-expire-logs-seconds=3600"],
    )
    try:
        fresh_database(server, "bad", "CREATE TABLE t (id int primary key)")
        found = {f.check: f for f in source_of(server, "bad").preflight()}
    finally:
        server.stop()
    assert found["binlog_row_image"].verdict == "warn"
    assert '{"_unchanged": true}' in found["binlog_row_image"].message
    assert found["binlog_row_value_options"].verdict == "warn"
    assert found["binlog_row_metadata"].verdict == "warn"
    assert found["gtid_mode"].verdict == "warn"
    assert found["privileges"].data["missing"] == ["LOCK TABLES on bad.*"]
    assert found["retention"].data["retention_s"] == 3600


def test_log_off_and_statement_format_fail():
    server = MySqlServer(mariadb=False, uuid="u", gtids=True, checksum=True)
    found = verdicts(log_findings({"log_bin": "OFF", "binlog_format": "STATEMENT"}, server))
    assert (found["log_bin"], found["binlog_format"]) == ("fail", "fail")


@pytest.mark.parametrize("written", ["STATEMENT", "MIXED"])
def test_a_log_of_statements_is_named(written):
    server = MySqlServer(mariadb=True, uuid="u", gtids=True, checksum=True)
    settings = {"log_bin": "ON", "binlog_format": written}
    found = {f.check: f for f in log_findings(settings, server)}
    assert found["binlog_format"].verdict == "fail"
    assert f"binlog_format is {written}" in found["binlog_format"].message
    assert "in every session" in found["binlog_format"].message


KEYS = (
    "CREATE TABLE parent (id int primary key)",
    "CREATE TABLE child (id int primary key, p int, FOREIGN KEY (p) REFERENCES parent (id) "
    "ON DELETE CASCADE)",
    "CREATE TABLE nulled (id int primary key, p int, FOREIGN KEY (p) REFERENCES parent (id) "
    "ON UPDATE SET NULL)",
    "CREATE TABLE kept (id int primary key, p int, FOREIGN KEY (p) REFERENCES parent (id))",
)


def test_cascades_that_no_log_holds_are_named(mariadb_server):
    fresh_database(mariadb_server, "cascades", *KEYS)
    source = source_of(mariadb_server, "cascades", "cascades.*", user="df:df-secret")
    found = {f.check: f for f in source.preflight()}["foreign_keys"]
    assert (found.verdict, found.data["tables"]) == ("warn", ["cascades.child", "cascades.nulled"])
    alone = source_of(mariadb_server, "cascades", "cascades.kept", user="df:df-secret")
    assert verdicts(alone.preflight())["foreign_keys"] == "ok"


def test_mysql_logs_its_cascades_unless_its_engine_does_them(mysql_server, tmp_path):
    from tests.sources.mysql.stream_reading import rows

    fresh_database(mysql_server, "cascades", *KEYS)
    source = source_of(mysql_server, "cascades", user="df:df-secret")
    assert "foreign_keys" not in verdicts(source.preflight())
    start = source.head()
    sql.execute(
        mysql_server,
        "INSERT INTO parent VALUES (1), (2)",
        "INSERT INTO child VALUES (1, 1)",
        "INSERT INTO nulled VALUES (2, 2)",
        "DELETE FROM parent WHERE id = 1",
        "UPDATE parent SET id = 3 WHERE id = 2",
        database="cascades",
    )
    found = [(row["op"], row["table"]) for row in rows(source, start)]
    assert ("d", "child") in found
    assert ("u", "nulled") in found
    old = mysql.start(tmp_path, args=["--innodb-native-foreign-keys=ON"])
    try:
        fresh_database(old, "cascades", *KEYS)
        named = {f.check: f for f in source_of(old, "cascades").preflight()}["foreign_keys"]
    finally:
        old.stop()
    assert named.data["tables"] == ["cascades.child", "cascades.nulled"]


def test_tables_whose_changes_the_log_does_not_hold_are_named(mariadb_server):
    fresh_database(
        mariadb_server,
        "untold",
        "CREATE TABLE a (id int primary key, s bigint unsigned GENERATED ALWAYS AS ROW START, "
        "e bigint unsigned GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (s, e)) "
        "WITH SYSTEM VERSIONING",
        "CREATE TABLE b (id int primary key) WITH SYSTEM VERSIONING",
        "SET GLOBAL mysql56_temporal_format = OFF",
        "CREATE TABLE c (id int primary key, t datetime(3))",
        "CREATE TABLE d (id int primary key, t datetime)",
        "SET GLOBAL mysql56_temporal_format = ON",
    )
    found = {f.check: f for f in source_of(mariadb_server, "untold").preflight()}
    versions, formats = found["system_versioning"], found["column_format"]
    assert (versions.verdict, versions.data["tables"]) == ("fail", ["untold.a"])
    assert (formats.verdict, formats.data["tables"]) == ("warn", ["untold.c"])


def table_of(data_bytes):
    return TableSize(TableSchema("d", None, "t", ()), "InnoDB", 1, data_bytes)


@pytest.mark.parametrize(
    ("count", "parallel", "kept_s", "verdict", "percent"),
    [
        (4, 8, 3600, "ok", 1.4),  # 4 GiB over 4 lanes of 20 MiB/s: 51 s.
        (4, 1, 400, "warn", 51.2),
        (4, 1, 256, "high_risk", 80.0),
        (4, 1, 100, "high_risk", 204.8),
        (4, 1, 0, "ok", None),
    ],
)
def test_the_forecast_compares_duration_and_retention(count, parallel, kept_s, verdict, percent):
    finding = forecast([table_of(GIB)] * count, parallel, kept_s)
    assert finding.verdict == verdict
    assert finding.data.get("percent") == percent


def test_retention_falls_back_to_days():
    assert retention_s({"binlog_expire_logs_seconds": "0", "expire_logs_days": "2"}) == 172_800
    assert retention_s({"binlog_expire_logs_seconds": "60", "expire_logs_days": "2"}) == 60
    assert retention_s({}) == 0


def test_grants_are_read_per_database():
    grants = [
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO `u`@`%`",
        "GRANT SELECT (`a`), INSERT ON `shop`.`orders` TO `u`@`%`",
        "GRANT ALL PRIVILEGES ON `ware\\_house`.* TO `u`@`%`",
    ]
    missing = missing_privileges(grants, ["shop", "ware_house", "other"], mariadb=False, gtids=True)
    assert missing == ["SELECT on other.*"]
    assert missing_privileges(grants[1:], ["shop"], mariadb=True, gtids=False) == [
        "REPLICATION SLAVE",
        "BINLOG MONITOR",
        "LOCK TABLES on shop.*",
    ]
    dotted = ["GRANT SELECT ON `sh.op`.`a.b` TO `u`@`%`", "GRANT SELECT ON `x``y`.* TO `u`@`%`"]
    missing = missing_privileges(dotted, ["sh.op", "x`y", "sh"], mariadb=False, gtids=True)
    assert missing[2:] == ["SELECT on sh.*"]
    everything = ["GRANT ALL PRIVILEGES ON *.* TO `root`@`%`"]
    assert missing_privileges(everything, ["x"], mariadb=True, gtids=True) == []


def test_rights_to_some_columns_only_are_not_rights_to_a_table():
    grants = [
        "GRANT USAGE ON *.* TO `u`@`%`",
        "GRANT SELECT (`a`, `b`), INSERT ON `shop`.`orders` TO `u`@`%`",
        "GRANT SELECT (`a`) ON `shop`.`both` TO `u`@`%`",
        "GRANT SELECT ON `shop`.`both` TO `u`@`%`",
        "GRANT SELECT (`a`) ON `whole`.`t` TO `u`@`%`",
        "GRANT SELECT ON `whole`.* TO `u`@`%`",
        "GRANT SELECT (`a`) ON `whole`.`a.b` TO `u`@`%`",
    ]
    assert granted_by_column(grants) == ["shop.orders"]
    assert granted_by_column([*grants, "GRANT SELECT ON *.* TO `u`@`%`"]) == []
