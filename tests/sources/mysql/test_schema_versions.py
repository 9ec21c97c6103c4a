"""Version and sequence of MySQL's events: in force at their position, and the same on a replay."""

import random
from dataclasses import replace

import orjson
import pytest

from airflow_provider_deltaforge.engine.read.registrar import Registrar
from airflow_provider_deltaforge.schemas.registry import RegisteredHistory, Registry
from airflow_provider_deltaforge.sources.mysql.source import MySqlSource
from airflow_provider_deltaforge.storage.memory import MemoryStore
from tests.servers import sql
from tests.servers.process import Server
from tests.sources.mysql import type_matrix
from tests.sources.mysql.stream_reading import batches, source_of

CHANGES = [
    "ALTER TABLE t ADD COLUMN note varchar(20) NOT NULL DEFAULT 'n'",
    "ALTER TABLE t MODIFY note varchar(40) COMMENT 'longer'",
    "ALTER TABLE t COMMENT 'again', MODIFY note varchar(40) DEFAULT 'm' COMMENT 'longer'",
    "ALTER TABLE t DROP COLUMN note",
    "RENAME TABLE t TO t_old, other TO t, t_old TO other",
    "RENAME TABLE t TO t_old, other TO t, t_old TO other",
    "ALTER TABLE t ADD COLUMN price decimal(10,2) AFTER id, ADD KEY (price)",
]


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(f"{request.param}_server")


@pytest.fixture(
    params=[
        ("mysql", "FULL"),
        ("mariadb", "MINIMAL"),
        pytest.param(("mysql", "MINIMAL"), marks=pytest.mark.long),
        pytest.param(("mariadb", "FULL"), marks=pytest.mark.long),
    ],
    ids="-".join,
)
def writing(request: pytest.FixtureRequest) -> tuple[Server, str]:
    """Return a server, and how much its log says of tables."""
    name, metadata = request.param
    server = request.getfixturevalue(f"{name}_server")
    ((former,),) = sql.execute(server, "SELECT @@GLOBAL.binlog_row_metadata")
    sql.execute(server, f"SET GLOBAL binlog_row_metadata = '{metadata}'")
    yield server, metadata
    sql.execute(server, f"SET GLOBAL binlog_row_metadata = '{former}'")


class _Context:
    """What a registrar needs of an open job."""

    fence = None

    class pipeline:  # noqa: N801
        class spec:  # noqa: N801
            source: MySqlSource


def read(source, registry, start, end, rng):
    """Read a range as a lane does; return each event's version and sequence by its id."""
    context = _Context()
    context.pipeline.spec.source = source
    registrar = Registrar(context, registry, lambda call: call(), start)
    reader = source.open(start, lambda: False, RegisteredHistory(registry, source.compare))
    schemas_of_rows, position = {}, start
    try:
        while source.compare(position, end) < 0:
            segment = reader.read(rng.choice([0.02, 0.2]))
            if segment is None:
                continue
            batch = registrar.admit(reader.decode(segment))
            position = batch.end
            columns = ("event_id", "table", "schema_version", "schema_sequence", "after", "op")
            for values in zip(*(batch.rows.column(c).to_pylist() for c in columns), strict=True):
                schemas_of_rows[values[0]] = values[1:]
    finally:
        reader.close()
    return schemas_of_rows


def test_a_second_reading_over_every_change_says_the_same(writing: tuple[Server, str]) -> None:
    server, metadata = writing
    database = f"versions_{metadata.lower()}"
    sql.execute(server, f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    source = source_of(server, database, tables=[f"{database}.t%", f"{database}.other"])
    run = lambda *statements: sql.execute(server, *statements, database=database)  # noqa: E731
    run("CREATE TABLE t (id int PRIMARY KEY AUTO_INCREMENT, v varchar(9))")
    run("CREATE TABLE other (id int PRIMARY KEY AUTO_INCREMENT, v varchar(9), w blob)")
    start = source.head()
    registry = Registry(MemoryStore(), "shop", "acme")
    rng = random.Random(3)
    places, first, position = [], {}, start
    insert = "INSERT INTO {} (v) VALUES ('a'), ('b')"
    run(insert.format("t"), insert.format("other"))
    for change in CHANGES:
        # Each change is read before the next is made, as by a lane that keeps up.
        end = source.head()
        first |= read(source, registry, position, end, rng)
        places.append(position := end)
        run(change, insert.format("t"), insert.format("other"))
    end = source.head()
    first |= read(source, registry, position, end, rng)
    written = len(registry._store.read("schemas"))

    for again in (start, *places[1::2]):
        cold = Registry(registry._store, "shop", "acme")
        schemas_of_rows = read(source, cold, again, end, rng)
        assert schemas_of_rows == {name: first[name] for name in schemas_of_rows}
    assert len(registry._store.read("schemas")) == written
    rows = [values for values in first.values() if values[-1] == "c"]
    assert len(rows) == 4 * (len(CHANGES) + 1)
    for table, version, sequence, after, _ in rows:
        at = registry.at_sequence(database, None, table, sequence)
        assert at.fingerprint == version
        assert [column.name for column in at.schema.columns] == list(orjson.loads(after))
    forms = {version for table, version, *_ in rows if table == "t"}
    # Dropping the column and the second swap bring back what was there. A default alone is found
    # if the log tells of it while somebody reads; a reader that begins behind it keeps the form.
    assert len(forms) in (5, 6)


def test_catalog_log_and_statements_agree_about_every_type(writing: tuple[Server, str]) -> None:
    server, metadata = writing
    database = f"versions_types_{metadata.lower()}"
    sql.execute(server, f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    source = source_of(server, database)
    start = source.head()
    for table in type_matrix.TABLES:
        if table.only in ("", server.name):
            inserts = ("SET sql_mode='', time_zone='+00:00'", *table.statements())
            sql.execute(server, *inserts, database=database)
    found = {}
    for batch in batches(source, start, source.head()):
        found |= {schema.table: schema for schema in batch.schemas}

    for present in source.describe():
        if metadata == "FULL" and not any(c.data_type in NATIVE for c in present.columns):
            assert found[present.table] == present
        elif not any(c.extra and "GENERATED" in c.extra for c in present.columns):
            assert plain(found[present.table]).fingerprint == plain(present).fingerprint


NATIVE = {"uuid", "inet4", "inet6"}


def plain(schema):
    """Leave out labels, because the catalog cannot print all of their characters."""
    columns = [
        replace(c, column_type="enum") if c.data_type == "enum" else c for c in schema.columns
    ]
    return replace(schema, columns=tuple(columns))


def test_a_table_that_the_catalog_shows_later_is_described_by_the_log(server: Server) -> None:
    database = "versions_ahead"
    sql.execute(server, f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    source = source_of(server, database)
    start = source.head()
    sql.execute(
        server,
        "CREATE TABLE t (id int unsigned NOT NULL PRIMARY KEY, e enum('a','b'), d decimal(5,2), "
        "c varchar(7) CHARACTER SET utf8mb4, at datetime(3), b blob)",
        "INSERT INTO t (id) VALUES (1)",
        "ALTER TABLE t MODIFY d decimal(6,2), MODIFY e enum('a','b','c'), MODIFY c varchar(8) "
        "CHARACTER SET utf8mb4",
        "INSERT INTO t (id) VALUES (2)",
        database=database,
    )
    first, second = (s for batch in batches(source, start, source.head()) for s in batch.schemas)
    (present,) = source.describe()
    types = {column.name: column.column_type for column in first.columns}

    assert second == present
    assert first.primary_key == ("id",)
    assert [column.nullable for column in first.columns] == [False, *[True] * 5]
    assert types == {
        "id": "int unsigned" if server.name == "mysql" else types["id"],
        "e": "enum('a','b')",
        "d": "decimal(5,2)",
        "c": "varchar(7)",
        "at": "datetime(3)",
        "b": "blob",
    }
