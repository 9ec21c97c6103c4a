"""Every type becomes the JSON of the type matrix, from the log and from COPY alike."""

import pytest

from tests.sources.postgres.copying import copied
from tests.sources.postgres.stream_reading import connect, drop, events, fresh, rows, source_of
from tests.sources.postgres.type_matrix import PREPARE, tables


@pytest.fixture(params=["postgres", "postgres18"])
def server(request):
    return request.getfixturevalue(f"{request.param}_server")


def test_every_type_is_the_json_of_the_matrix(server):
    fresh(server, "type_matrix", *PREPARE)
    source = source_of(server, "type_matrix")
    with connect(server, "type_matrix") as connection:
        chosen = tables(connection.info.server_version // 10000)
        for table in chosen:
            connection.execute(table.create)
        start = source.beginning()
        for table in chosen:
            connection.execute(table.fill)
    log, copy = rows(source, start), events(copied(source))
    drop(server, "type_matrix")

    wanted = {table.name: (table.column, table.expected()) for table in chosen}
    for half in (log, copy):
        assert _texts(half, "after", wanted) == wanted
    assert _texts(log, "key", wanted) == _texts(copy, "key", wanted)
    versions = [{event["table"]: event["schema_version"] for event in half} for half in (log, copy)]
    assert versions[0] == versions[1]


def _texts(found, name, wanted):
    """Return a field of each table's events, beside the type the table is about."""
    return {
        table: (column, [e[name].decode() for e in found if e["table"] == table])
        for table, (column, _) in wanted.items()
    }
