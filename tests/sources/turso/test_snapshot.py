"""Copies of tables: chunks, wishes, and readers in several processes at once."""

import multiprocessing

import pytest

from airflow_provider_deltaforge.errors import PositionLostError, SchemaError, SpecError
from tests.sources.splitting import split
from tests.sources.turso.database import Writer, copied, events_of, source, told


@pytest.fixture
def writer(path):
    writer = Writer(path)
    writer.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    writer.run("CREATE TABLE _df_own (a)", "CREATE TABLE _litestream_seq (a)")
    writer.many("INSERT INTO orders VALUES (?, ?)", [(n * n, f"i{n}") for n in range(57)])
    yield writer
    writer.close()


def test_chunks_are_of_one_size_however_sparse_the_keys(path, writer):
    snapshotter = source(path).open_snapshot()

    sizes = [
        sum(batch.rows.num_rows for batch in snapshotter.read(chunk, "run"))
        for chunk in snapshotter.plan(10)
    ]

    assert sizes == [10, 10, 10, 10, 10, 7]
    snapshotter.close()


def test_a_chunk_is_split_into_parts_of_one_size(path, writer):
    snapshotter = source(path).open_snapshot()
    first, second, last = snapshotter.plan(20)
    for chunk in (first, second, last):
        part, *_ = split(snapshotter, chunk, 8)
        split(snapshotter, part, 1)
    snapshotter.close()


def test_rows_are_what_the_table_holds(path, writer):
    rows = copied(source(path))

    assert [told(row)[3] for row in rows] == [{"id": n * n, "item": f"i{n}"} for n in range(57)]
    assert {(row["op"], row["table"]) for row in rows} == {("r", "orders")}
    assert rows[0]["key"] == b'{"id":0}'


def test_ids_belong_to_the_run(path, writer):
    taken = source(path)
    ids = [{row["event_id"] for row in copied(taken, run=run)} for run in ("one", "one", "two")]

    assert ids[0] == ids[1]
    assert not ids[0] & ids[2]


def test_wishes_choose_tables_and_rows(path, writer):
    writer.run("CREATE TABLE notes (id INTEGER PRIMARY KEY)", "INSERT INTO notes VALUES (1)")
    taken = source(path)

    assert [told(row)[1] for row in copied(taken, tables=["main.notes"])] == ["notes"]
    some = copied(taken, tables=["ord%"], where="id < 10 -- few")
    assert [told(row)[3]["id"] for row in some] == [0, 1, 4, 9]


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ({"tables": ["none"]}, "tables: 'none' matches none"),
        ({"where": "wrong = 1", "tables": ["orders"]}, "where: the engine refuses"),
        ({"where": "id > 4) OR (true", "tables": ["orders"]}, "where: the engine refuses"),
        ({"where": "id > 4) OR true --", "tables": ["orders"]}, "where: the engine refuses"),
        ({"where": "id > 4) OR true /*", "tables": ["orders"]}, "where: the engine refuses"),
        ({"where": "id > 4 THEN 1 END --", "tables": ["orders"]}, "where: the engine refuses"),
        ({"where": "id = 1"}, "where: give exactly one table"),
    ],
)
def test_wishes_that_cannot_be_met(path, writer, wish, text):
    writer.run("CREATE TABLE notes (id INTEGER PRIMARY KEY)")

    with pytest.raises(SpecError, match=text):
        copied(source(path), **wish)


def test_a_table_that_is_gone_gives_an_empty_batch(path, writer):
    snapshotter = source(path).open_snapshot()
    (chunk, *_) = snapshotter.plan(100)
    writer.run("DROP TABLE orders")

    (batch,) = snapshotter.read(chunk, "run")

    assert batch.rows.num_rows == 0
    assert "main.orders is gone" in snapshotter.warnings[0]
    snapshotter.close()


def test_another_key_since_the_plan_needs_a_new_run(path, writer):
    snapshotter = source(path).open_snapshot()
    (chunk, *_) = snapshotter.plan(100)
    writer.run("DROP TABLE orders", "CREATE TABLE orders (id INT, item TEXT PRIMARY KEY)")

    with pytest.raises(SchemaError, match="key changed"):
        list(snapshotter.read(chunk, "run"))
    snapshotter.close()


def test_a_run_whose_changes_were_pruned_is_worthless(path, writer):
    snapshotter = source(path).open_snapshot()
    begin = snapshotter.begin()
    writer.run("UPDATE orders SET item = 'x'")
    snapshotter.guard(begin)
    writer.run(f"DELETE FROM turso_cdc WHERE change_id <= {begin['last_change_id'] + 5}")

    with pytest.raises(PositionLostError, match="begins at change"):
        snapshotter.guard(begin)
    snapshotter.close()


def _read(taken, chunk):
    snapshotter = taken.open_snapshot()
    rows = [
        (told(row)[3]["id"], row["event_id"])
        for batch in snapshotter.read(chunk, "run")
        for row in batch.rows.to_pylist()
    ]
    snapshotter.close()
    return rows


def test_readers_in_several_processes_beside_a_writer(path, writer):
    taken = source(path)
    snapshotter = taken.open_snapshot()
    begin = snapshotter.begin()
    chunks = list(snapshotter.plan(10))
    snapshotter.close()

    with multiprocessing.get_context("spawn").Pool(2) as pool:
        reading = pool.starmap_async(_read, [(taken, chunk) for chunk in chunks])
        writer.many("INSERT INTO orders VALUES (?, 'late')", [(-n,) for n in range(1, 40)])
        rows = [row for part in reading.get(120) for row in part]
    reader = taken.open(begin)
    late = [told(event)[3]["id"] for event in events_of(reader)]
    reader.close()

    assert {n * n for n in range(57)} <= {key for key, _ in rows}
    assert late == [-n for n in range(1, 40)]
    assert len({name for _, name in rows}) == len(rows)
