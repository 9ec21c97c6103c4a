"""Inserts into outbox tables are marked as messages; the tables may be black holes."""

import json

import pytest
from pydantic import ValidationError

from airflow_provider_deltaforge.sources.mysql.source import MySqlSource
from tests.servers import sql
from tests.sources.mysql.reading import copied, events, fresh_database, source_of
from tests.sources.mysql.stream_reading import rows

OUTBOX = (
    "CREATE TABLE {} (id INT AUTO_INCREMENT PRIMARY KEY, aggregate_type VARCHAR(64), "
    "aggregate_id VARCHAR(64), event_type VARCHAR(64), payload JSON) ENGINE={}"
)
INSERT = (
    "INSERT INTO {} (aggregate_type, aggregate_id, event_type, payload) "
    """VALUES ('Order', '42', 'OrderCreated', '{{"total": 99.99}}')"""
)


@pytest.fixture(params=["mysql", "mariadb"])
def server(request):
    found = request.getfixturevalue(f"{request.param}_server")
    if request.param == "mariadb":
        sql.execute(found, "INSTALL PLUGIN IF NOT EXISTS blackhole SONAME 'ha_blackhole'")
    fresh_database(
        found,
        "outboxes",
        "CREATE TABLE orders (id INT PRIMARY KEY, total DECIMAL(10,2))",
        OUTBOX.format("orders_outbox", "BLACKHOLE"),
        OUTBOX.format("kept_outbox", "InnoDB"),
    )
    return found


def write(server):
    with sql.connect(server, "outboxes") as connection, connection.cursor() as cursor:
        for statement in (
            "BEGIN",
            "INSERT INTO orders VALUES (1, 99.99)",
            INSERT.format("orders_outbox"),
            INSERT.format("kept_outbox"),
            "UPDATE kept_outbox SET aggregate_id = 43",
            "DELETE FROM kept_outbox",
            INSERT.format("orders_outbox"),
            "COMMIT",
            "BEGIN",
            INSERT.format("orders_outbox"),
            "ROLLBACK",
        ):
            cursor.execute(statement)


def marked_rows(found):
    return [(row["schema"], row["table"], row["op"]) for row in found]


def test_only_inserts_are_marked_if_wanted(server):
    outbox = {"tables": ["outboxes.*_outbox"], "tag": "inserts"}
    source = source_of(server, "outboxes", outbox=outbox)
    start = source.head()
    write(server)
    found = rows(source, start)
    assert marked_rows(found) == [
        (None, "orders", "c"),
        ("__outbox", "orders_outbox", "c"),
        ("__outbox", "kept_outbox", "c"),
        (None, "kept_outbox", "u"),
        (None, "kept_outbox", "d"),
        ("__outbox", "orders_outbox", "c"),
    ]
    assert len({row["tx_id"] for row in found}) == 1
    assert [row["tx_end"] for row in found] == [False] * 5 + [True]
    assert len({row["event_id"] for row in found}) == 6
    assert [row["event_id"] for row in rows(source, start)] == [row["event_id"] for row in found]
    image = json.loads(found[1]["after"])
    assert (image["aggregate_id"], image["event_type"]) == ("42", "OrderCreated")
    # A black hole does not count: AUTO_INCREMENT gives each statement's first row the same number.
    assert {json.loads(found[row]["after"])["id"] for row in (1, 5)} == {1}


def test_all_changes_are_marked(server):
    source = source_of(server, "outboxes", outbox={"tables": ["kept_outbox"]})
    start = source.head()
    write(server)
    found = rows(source, start)
    assert [row["schema"] for row in found] == [
        None,
        None,
        "__outbox",
        "__outbox",
        "__outbox",
        None,
    ]
    sql.execute(server, INSERT.format("kept_outbox"), database="outboxes")
    copies = events(copied(source))
    assert marked_rows(copies) == [("__outbox", "kept_outbox", "r"), (None, "orders", "r")]


def test_a_black_hole_is_copied_empty_and_no_trouble(server):
    source = source_of(server, "outboxes", outbox={"tables": ["orders_%"]})
    sql.execute(server, INSERT.format("kept_outbox"), database="outboxes")
    sql.execute(server, INSERT.format("orders_outbox"), database="outboxes")
    assert marked_rows(events(copied(source))) == [(None, "kept_outbox", "r")]
    found = {f.check: f for f in source.preflight()}
    assert found["outbox"].verdict == "ok"
    assert found["outbox"].data["tables"] == ["outboxes.orders_outbox"]
    assert "engine" not in found


def test_an_outbox_table_that_is_not_captured_is_warned_about(mysql_server):
    fresh_database(mysql_server, "outboxes", "CREATE TABLE t (id INT PRIMARY KEY)")
    source = source_of(mysql_server, "outboxes", "t", outbox={"tables": ["other"]})
    (finding,) = [f for f in source.preflight() if f.check == "outbox"]
    assert finding.verdict == "warn"
    assert "source.tables" in finding.message


@pytest.mark.parametrize(
    "outbox", [{}, {"tables": []}, {"tables": [".x"]}, {"tables": ["x"], "a": 1}]
)
def test_settings_that_mean_nothing_are_refused(outbox):
    with pytest.raises(ValidationError, match="outbox"):
        MySqlSource(id="s", dsn="mysql://u@h/db", outbox=outbox)
