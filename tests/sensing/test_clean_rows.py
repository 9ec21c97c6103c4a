"""Rows of every column type, as servers hold them, show no data drift."""

import pyarrow as pa
import pytest

from tests.sensing.drift_rows import detector
from tests.servers import sql
from tests.sources.mysql import reading, stream_reading
from tests.sources.mysql.type_matrix import tables_for
from tests.sources.postgres import copying
from tests.sources.postgres import stream_reading as postgres_reading
from tests.sources.postgres.type_matrix import PREPARE, tables

ROWS = 100_000


def assert_clean(batches, type_system, table_count):
    """Hold batches to their own schemas, as often as it takes for so many rows."""
    schemas = {schema for batch in batches for schema in batch.schemas}
    found_by = detector(*schemas, type_system=type_system)
    images = [batch.rows.filter(batch.rows["after"].is_valid()) for batch in batches]
    table = pa.Table.from_batches(images).unify_dictionaries().combine_chunks()
    whole = pa.concat_tables([table] * (ROWS // table.num_rows + 1)).combine_chunks()
    (rows,) = whole.unify_dictionaries().to_batches()

    found = found_by.examine(rows, rows)
    wrong = {f.table: [*f.columns, f.absent] for f in found if f.columns or f.absent or f.drifted}
    assert wrong == {}
    assert sum(f.events for f in found) >= ROWS
    assert len(found) == table_count


@pytest.mark.parametrize("name", ["mysql", pytest.param("mariadb", marks=pytest.mark.long)])
def test_mysql(name, request):
    server = request.getfixturevalue(f"{name}_server")
    chosen = tables_for(name)
    reading.fresh_database(server, "clean_rows")
    source = stream_reading.source_of(server, "clean_rows", tables=["clean_rows.m_*"])
    start = source.head()
    session = "SET SESSION sql_mode = '', time_zone = '+00:00'"
    statements = [statement for table in chosen for statement in table.statements()]
    sql.execute(server, session, *statements, database="clean_rows")

    log = [*stream_reading.batches(source, start, source.head())]
    assert_clean(log, "mysql", len(chosen))
    assert_clean(reading.copied(source), "mysql", len(chosen))


def test_postgres(postgres_server):
    server = postgres_server
    postgres_reading.fresh(server, "clean_rows", *PREPARE)
    source = postgres_reading.source_of(server, "clean_rows")
    with postgres_reading.connect(server, "clean_rows") as connection:
        chosen = tables(connection.info.server_version // 10000)
        for table in chosen:
            connection.execute(table.create)
        start = source.beginning()
        for table in chosen:
            connection.execute(table.fill)

    log = [*postgres_reading.batches(source, start, source.head())]
    copy = copying.copied(source)
    postgres_reading.drop(server, "clean_rows")
    assert_clean(log, "postgresql", len(chosen))
    assert_clean(copy, "postgresql", len(chosen))
