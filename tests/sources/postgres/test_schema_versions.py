"""Version and sequence of PostgreSQL's events: the same on a replay over every change."""

from airflow_provider_deltaforge.engine.read.registrar import Registrar
from airflow_provider_deltaforge.schemas.registry import RegisteredHistory, Registry
from airflow_provider_deltaforge.sources.postgres.source import PostgresSource
from airflow_provider_deltaforge.storage.memory import MemoryStore
from tests.sources.postgres.stream_reading import drop, execute, fresh, source_of

DATABASE = "versions"
CHANGES = [
    "ALTER TABLE t ADD COLUMN note varchar(20) NOT NULL DEFAULT 'n'",
    "ALTER TABLE t ALTER COLUMN note SET DEFAULT 'other'",
    "ALTER TABLE t ALTER COLUMN note TYPE varchar(40)",
    "ALTER TABLE t DROP COLUMN note",
    "ALTER TABLE t ALTER COLUMN v SET NOT NULL",
]
INSERT = "INSERT INTO t (v) VALUES ('a'), ('b')"


class _Context:
    """What a registrar needs of an open job."""

    fence = None

    class pipeline:  # noqa: N801
        class spec:  # noqa: N801
            source: PostgresSource


def read(source, registry, start, end):
    """Read a range as a lane does; return each event's version and sequence by its id."""
    context = _Context()
    context.pipeline.spec.source = source
    registrar = Registrar(context, registry, lambda call: call(), start)
    reader = source.open(start, lambda: False, RegisteredHistory(registry, source.compare))
    told, position = {}, start
    try:
        while source.compare(position, end) < 0:
            chunk = reader.read(0.1)
            if chunk is None:
                continue
            batch = registrar.admit(reader.decode(chunk))
            position = batch.end
            columns = ("event_id", "schema_version", "schema_sequence")
            for values in zip(*(batch.rows.column(c).to_pylist() for c in columns), strict=True):
                told[values[0]] = values[1:]
    finally:
        reader.close()
    return told


def test_a_second_reading_over_every_change_says_the_same(postgres_server):
    table = "CREATE TABLE t (id serial PRIMARY KEY, v text)"
    fresh(postgres_server, DATABASE, table)
    source = source_of(postgres_server, DATABASE)
    start = position = source.beginning()
    registry = Registry(MemoryStore(), "shop", "acme")
    first, places = {}, []
    execute(postgres_server, INSERT, database=DATABASE)
    for change in [*CHANGES, None]:
        # Each change is read before the next is made, as by a lane that keeps up.
        end = source.head()
        first |= read(source, registry, position, end)
        places.append(position := end)
        if change is not None:
            execute(postgres_server, change, INSERT, database=DATABASE)
    written = registry._store.read("schemas")

    for again in (start, places[1], places[3]):
        cold = Registry(registry._store, "shop", "acme")
        told = read(source, cold, again, position)
        assert told == {name: first[name] for name in told}
    assert registry._store.read("schemas") == written
    assert len(first) == 2 * (len(CHANGES) + 1)
    # The log does not tell of a default or NOT NULL alone: the form stays.
    assert len({version for version, _ in first.values()}) == 3
    (present,) = source.describe()
    assert [column.name for column in present.columns] == ["id", "v"]
    drop(postgres_server, DATABASE)


def test_without_patterns_what_the_publication_has_is_described(postgres_server):
    tables = (f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("told", "untold"))
    fresh(postgres_server, DATABASE, *tables, "CREATE PUBLICATION df FOR TABLE told")
    described = source_of(postgres_server, DATABASE, tables=()).describe()
    assert [table.table for table in described] == ["told"]
    matched = source_of(postgres_server, DATABASE).describe()
    assert [table.table for table in matched] == ["told", "untold"]
    drop(postgres_server, DATABASE)
