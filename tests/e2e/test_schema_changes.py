"""Tables that change under load: each row is read by the columns it was written with."""

import pytest

from tests.e2e import shop
from tests.e2e.pipeline_run import run_in
from tests.servers import sql

CHANGES = [
    "ALTER TABLE orders ADD COLUMN urgency INT DEFAULT 7",
    # More than 255 bytes: the length before each text grows to two bytes.
    "ALTER TABLE items MODIFY sku VARCHAR(400)",
    "ALTER TABLE orders DROP COLUMN note",
    "ALTER TABLE orders ADD COLUMN place VARCHAR(10) DEFAULT 'größer' FIRST",
    "ALTER TABLE items ADD COLUMN size ENUM('s', 'm') DEFAULT 'm' AFTER id",
]


@pytest.fixture(params=["mysql", pytest.param("mariadb", marks=pytest.mark.long)])
def server(request):
    return request.getfixturevalue(f"{request.param}_server")


def test_changes_under_load_are_read_by_the_log_s_own_columns(tmp_path, server, kafka_server):
    run = run_in(tmp_path, server, kafka_server, f"changing_{server.port}")
    with shop.Writers(server, run.name):
        driver = run.start()
        run.wait_status("running")
        for statement in CHANGES:
            run.wait_events(100)
            sql.execute(server, statement, database=run.name)
        run.wait_events(100)
        swap_tables(server, run.name)
        run.wait_events(100)
    shop.settle()
    run.wait_caught_up()

    assert run.stop(driver) == 0
    # Renaming moves rows to another table's name without an event, so tables are not compared.
    assert run.judge(tables=False) == []
    columns = {tuple(event.state) for event in run.seen() if event.state is not None}
    assert len(columns) >= 5, columns


def swap_tables(server, database):
    """Put a copy in the table's place, under the names that pt-online-schema-change gives."""
    sql.execute(
        server,
        "CREATE TABLE _orders_new LIKE orders",
        "ALTER TABLE _orders_new ADD COLUMN swapped TINYINT DEFAULT 1",
        "INSERT INTO _orders_new SELECT *, 1 FROM orders",
        "RENAME TABLE orders TO _orders_old, _orders_new TO orders",
        database=database,
    )
