"""A row is read by the columns its table had when it was written, whatever happened since."""

import json

import pytest

from airflow_provider_deltaforge.errors import TableError
from airflow_provider_deltaforge.sources.mysql.catalog import load_table
from tests.servers import sql
from tests.sources.mysql.reading import fresh_database
from tests.sources.mysql.stream_reading import batches, source_of

NAME = "moving"
SWAP = f"ALTER TABLE {NAME}.t RENAME COLUMN a TO b, RENAME COLUMN b TO a"
CREATE = "CREATE TABLE t (id int PRIMARY KEY, a int, b int, c varchar(9) CHARACTER SET latin1)"
# Understood by the server, but by nobody who reads the statement alone.
OPAQUE = f"ALTER TABLE {NAME}.t ADD d int FIRST, CONVERT TO CHARACTER SET DEFAULT"


@pytest.fixture(params=["mysql", "mariadb"])
def server(request):
    """A server whose log does not name columns."""
    server = request.getfixturevalue(f"{request.param}_server")
    silent = "MINIMAL" if request.param == "mysql" else "NO_LOG"
    fresh_database(server, NAME, CREATE)
    sql.execute(server, f"SET GLOBAL binlog_row_metadata = {silent}")
    yield server
    sql.execute(server, "SET GLOBAL binlog_row_metadata = FULL")


class Remembered:
    """What a registry would say, at any position."""

    def __init__(self, *schemas):
        self.schemas = {(schema.db, schema.table): schema for schema in schemas}

    def schema_at(self, db, schema, table, position):
        return self.schemas.get((db, table))


def described(server, table="t"):
    with sql.connect(server) as connection:
        return load_table(connection, NAME, table)


def insert(server, *values, table="t"):
    sql.execute(server, f"INSERT INTO {NAME}.{table} VALUES ({','.join(map(str, values))})")


def read(source, start, history=None):
    """Return the rows after a position, up to the present end of the log."""
    source = Opening(source, history)
    return [
        json.loads(row["after"])
        for batch in batches(source, start, source.head())
        for row in batch.rows.to_pylist()
        if row["after"]
    ]


class Opening:
    """A source that is opened with a history."""

    def __init__(self, source, history):
        self.source, self.history = source, history
        self.head, self.compare = source.head, source.compare

    def open(self, position):
        return self.source.open(position, history=self.history)


def test_columns_that_swapped_names_since_are_not_mixed_up(server):
    source, before = source_of(server, NAME), described(server)
    start = source.head()
    insert(server, 1, 10, 20, "'x'")
    sql.execute(server, SWAP)
    insert(server, 2, 30, 40, "'ä'")
    first, second = read(source, start, Remembered(before))
    assert first == {"id": 1, "a": 10, "b": 20, "c": "x"}
    assert second == {"id": 2, "b": 30, "a": 40, "c": "ä"}


def test_without_a_witness_the_table_stops_with_the_statement(server):
    source = source_of(server, NAME)
    start = source.head()
    insert(server, 1, 10, 20, "'x'")
    sql.execute(server, SWAP)
    with pytest.raises(TableError, match="RENAME COLUMN a TO b") as stopped:
        read(source, start)
    assert stopped.value.table == f"{NAME}.t"


def test_what_does_not_touch_the_table_leaves_the_catalog_a_witness(server):
    source = source_of(server, NAME)
    start = source.head()
    insert(server, 1, 10, 20, "'x'")
    sql.execute(server, f"CREATE TABLE {NAME}.other LIKE {NAME}.t")
    sql.execute(server, f"CREATE INDEX i ON {NAME}.t (a)", f"TRUNCATE TABLE {NAME}.t")
    assert read(source, start) == [{"id": 1, "a": 10, "b": 20, "c": "x"}]


def test_statements_are_followed_from_the_head_on_and_over_a_break(server):
    source = source_of(server, NAME)
    reader = source.open(source.head())
    found = []

    def more(count):
        while len(found) < count:
            segment = reader.read(1)
            if segment is not None:
                rows = reader.decode(segment).rows.to_pylist()
                found.extend(json.loads(row["after"]) for row in rows if row["after"])
        return found[-1]

    insert(server, 1, 10, 20, "'x'")
    assert more(1) == {"id": 1, "a": 10, "b": 20, "c": "x"}
    sql.execute(server, SWAP)
    insert(server, 2, 30, 40, "'y'")
    assert more(2) == {"id": 2, "b": 30, "a": 40, "c": "y"}
    kill_dumps(server)
    sql.execute(server, SWAP, f"ALTER TABLE {NAME}.t DROP a, ADD a int")
    insert(server, 3, 50, "'z'", 60)
    assert more(3) == {"id": 3, "b": 50, "c": "z", "a": 60}
    reader.close()


def kill_dumps(server):
    with sql.connect(server) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog%'")
        for (dump,) in cursor.fetchall():
            cursor.execute(f"KILL {dump}")


def test_a_table_swapped_in_brings_its_columns(server):
    source, before = source_of(server, NAME, tables=[f"{NAME}.t"]), described(server)
    start = source.head()
    sql.execute(
        server,
        f"CREATE TABLE {NAME}._t_gho LIKE {NAME}.t",
        f"ALTER TABLE {NAME}._t_gho DROP a, ADD COLUMN (e int, a int)",
        f"RENAME TABLE {NAME}.t TO {NAME}._t_del, {NAME}._t_gho TO {NAME}.t",
    )
    insert(server, 1, 20, "'x'", 30, 10)
    sql.execute(server, f"DROP TABLE {NAME}.t")
    assert read(source, start, Remembered(before)) == [
        {"id": 1, "b": 20, "c": "x", "e": 30, "a": 10}
    ]


def test_a_table_swapped_in_from_nowhere_is_described_at_once(server):
    source, before = source_of(server, NAME, tables=[f"{NAME}.t"]), described(server)
    sql.execute(
        server,
        f"CREATE TABLE {NAME}._t_gho LIKE {NAME}.t",
        SWAP.replace(f"{NAME}.t ", f"{NAME}._t_gho "),
    )
    start = source.head()
    sql.execute(server, f"RENAME TABLE {NAME}.t TO {NAME}._t_del, {NAME}._t_gho TO {NAME}.t")
    reader = source.open(start, history=Remembered(before))
    changes = ()
    while not changes:
        segment = reader.read(1)
        changes = segment.changes if segment is not None else ()
    reader.close()
    # No row has come yet: without this, whoever starts here would trust what was registered.
    (schema,) = changes[0].schemas
    assert [column.name for column in schema.columns] == ["id", "b", "a", "c"]


@pytest.mark.parametrize("dropped", ["with its database", "before the reader began"])
def test_a_table_that_is_made_again_is_not_the_one_that_was_registered(server, dropped):
    source, before = source_of(server, NAME), described(server)
    start = source.head()
    if dropped == "with its database":
        sql.execute(server, f"DROP DATABASE {NAME}", f"CREATE DATABASE {NAME}")
    else:
        sql.execute(server, f"DROP TABLE {NAME}.t")
        start = source.head()
    made = "id int PRIMARY KEY, b int, a int, c varchar(9) CHARACTER SET latin1"
    sql.execute(server, f"CREATE TABLE IF NOT EXISTS {NAME}.t ({made})")
    insert(server, 1, 10, 20, "'x'")
    assert read(source, start, Remembered(before)) == [{"id": 1, "b": 10, "a": 20, "c": "x"}]


def test_a_table_that_was_there_stays_as_it_is(server):
    source, before = source_of(server, NAME), described(server)
    start = source.head()
    sql.execute(server, f"CREATE TABLE IF NOT EXISTS {NAME}.t (id int PRIMARY KEY, b int)")
    insert(server, 1, 10, 20, "'x'")
    sql.execute(server, f"ALTER TABLE {NAME}.t ADD COLUMN d int")
    expected = [{"id": 1, "a": 10, "b": 20, "c": "x"}]
    assert read(source, start, Remembered(before)) == expected


def test_a_statement_that_is_not_understood_asks_the_catalog_at_the_head_only(server):
    source, before = source_of(server, NAME), described(server)
    start = source.head()
    sql.execute(server, OPAQUE)
    insert(server, 5, 1, 10, 20, "'x'")
    expected = [{"d": 5, "id": 1, "a": 10, "b": 20, "c": "x"}]
    assert read(source, start, Remembered(before)) == expected
    sql.execute(server, SWAP)
    with pytest.raises(TableError, match="RENAME COLUMN"):
        read(source, start, Remembered(before))


def test_a_registered_schema_that_does_not_fit_the_log_is_not_used(server):
    source, before = source_of(server, NAME), described(server)
    sql.execute(server, f"ALTER TABLE {NAME}.t MODIFY b varchar(20) CHARACTER SET latin1")
    start = source.head()
    insert(server, 1, 10, "'b'", "'x'")
    assert read(source, start, Remembered(before)) == [{"id": 1, "a": 10, "b": "b", "c": "x"}]
    sql.execute(server, f"DROP TABLE {NAME}.t")
    with pytest.raises(TableError, match="DROP TABLE"):
        read(source, start, Remembered(before))


def test_a_source_vouches_for_tables_only_while_nothing_has_changed_them(server):
    source, before = source_of(server, NAME), described(server)
    start = source.head()
    assert source.schemas_at(start) == [before]
    sql.execute(server, f"CREATE TABLE {NAME}.other (id int)", SWAP)
    assert source.schemas_at(start) == []
    sql.execute(server, "SET GLOBAL binlog_row_metadata = FULL")
    assert source.schemas_at(source.head()) == []
