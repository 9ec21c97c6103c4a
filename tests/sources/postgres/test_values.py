"""Every type becomes the JSON of the type matrix, from the log and from COPY alike."""

import pytest

from tests.sources.postgres.type_matrix import PREPARE, tables
from tests.sources.postgres.wal_messages import Wal, any_table, changes, copied, database


@pytest.fixture(scope="module", params=["postgres", "postgres18"])
def types_of_all_kinds(request):
    server = request.getfixturevalue(f"{request.param}_server")
    with database(server, "type_matrix") as (connection, connect):
        for statement in PREPARE:
            connection.execute(statement)
        yield connection, connect


def test_every_type_is_the_json_of_the_matrix(types_of_all_kinds):
    connection, connect = types_of_all_kinds
    wal = Wal(connection, "matrix")
    chosen = tables(connection.info.server_version // 10000)
    for table in chosen:
        for statement in table.statements():
            connection.execute(statement)
    planner = any_table("type_matrix", connect)
    log = changes(wal, planner)
    wal.drop()

    found = {
        table.column + str(table.rows[0]): [
            e["after"].decode() for e in log if e["table"] == table.name
        ]
        for table in chosen
    }
    wanted = {table.column + str(table.rows[0]): table.expected() for table in chosen}
    assert found == wanted
    for table in chosen:
        rows = copied(connection, planner, table.name)
        assert [row["after"].decode() for row in rows] == table.expected(), table.column
        assert [row["key"] for row in rows] == [b'{"id":%d}' % i for i in range(len(rows))]
