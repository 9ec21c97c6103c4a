"""The preflight finds what would stop a snapshot or its stream."""

import pytest

from airflow_provider_deltaforge.schemas.table import TableSchema
from airflow_provider_deltaforge.sources.mysql.catalog import TableFacts
from airflow_provider_deltaforge.sources.mysql.connection import ServerInfo
from airflow_provider_deltaforge.sources.mysql.forecast import forecast, retention_s
from airflow_provider_deltaforge.sources.mysql.grants import missing_privileges
from airflow_provider_deltaforge.sources.mysql.preflight import log_findings
from tests.servers import mysql, sql
from tests.sources.mysql.reading import fresh_database, source_of

GIB = 1 << 30


@pytest.fixture(params=["mysql", "mariadb"])
def server(request):
    return request.getfixturevalue(f"{request.param}_server")


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
    assert found["binlog_row_image"].verdict == "fail"
    assert found["binlog_row_value_options"].verdict == "fail"
    assert found["binlog_row_metadata"].verdict == "warn"
    assert found["gtid_mode"].verdict == "warn"
    assert found["privileges"].data["missing"] == ["LOCK TABLES on bad.*"]
    assert found["retention"].data["retention_s"] == 3600


def test_log_off_and_statement_format_fail():
    server = ServerInfo(mariadb=False, uuid="u", gtids=True, checksum=True)
    found = verdicts(log_findings({"log_bin": "OFF", "binlog_format": "STATEMENT"}, server))
    assert (found["log_bin"], found["binlog_format"]) == ("fail", "fail")


def table_of(data_bytes):
    return TableFacts(TableSchema("d", None, "t", ()), "InnoDB", 1, data_bytes)


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
    everything = ["GRANT ALL PRIVILEGES ON *.* TO `root`@`%`"]
    assert missing_privileges(everything, ["x"], mariadb=True, gtids=True) == []
