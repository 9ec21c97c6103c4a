"""Images, keys and schemas of decoded rows: replica identities, DDL, partitions, TOAST."""

import json
import pickle

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_deltaforge.errors import TableError
from airflow_provider_deltaforge.sources.postgres.wal.decode_plans import Planner
from airflow_provider_deltaforge.sources.postgres.wal.decoder import decode_segment
from airflow_provider_deltaforge.sources.postgres.wal.log_segment import Marker
from airflow_provider_deltaforge.spec.patterns import TableMatcher
from tests.sources.postgres.wal_messages import (
    KEY,
    Wal,
    any_table,
    changes,
    chunk_of,
    copied,
    database,
)


@pytest.fixture(scope="module")
def world(postgres_server):
    with database(postgres_server, "decode") as (connection, connect):
        wal = Wal(connection, "decode")
        yield connection, connect, wal
        wal.drop()


@pytest.fixture
def log(world):
    """Return a function that runs statements and returns what came of them."""
    connection, connect, wal = world
    wal.messages()

    def run(*statements, planner=None):
        for statement in statements:
            connection.execute(statement)
        return changes(wal, planner or any_table("decode", connect))

    return run


def images(events):
    """Return (op, before, after, key) of each event, as objects."""
    return [
        (e["op"], *(None if e[n] is None else json.loads(e[n]) for n in ("before", "after", "key")))
        for e in events
    ]


def test_an_update_shows_no_old_row_unless_the_key_changed(log):
    events = log(
        "CREATE TABLE by_key (b int, a int, t text, PRIMARY KEY (a, b))",
        "INSERT INTO by_key VALUES (1, 2, 'x')",
        "UPDATE by_key SET t = 'y'",
        "UPDATE by_key SET a = 3",
        "DELETE FROM by_key",
    )

    assert images(events) == [
        ("c", None, {"b": 1, "a": 2, "t": "x"}, {"b": 1, "a": 2}),
        ("u", None, {"b": 1, "a": 2, "t": "y"}, {"b": 1, "a": 2}),
        ("u", {"b": 1, "a": 2}, {"b": 1, "a": 3, "t": "y"}, {"b": 1, "a": 3}),
        ("d", {"b": 1, "a": 3}, None, {"b": 1, "a": 3}),
    ]


def test_full_identity_shows_the_whole_old_row_and_keeps_the_primary_key(log):
    events = log(
        "CREATE TABLE by_row (id int PRIMARY KEY, t text)",
        "ALTER TABLE by_row REPLICA IDENTITY FULL",
        "INSERT INTO by_row VALUES (1, 'x')",
        "UPDATE by_row SET t = NULL",
        "DELETE FROM by_row",
    )

    assert images(events) == [
        ("c", None, {"id": 1, "t": "x"}, {"id": 1}),
        ("u", {"id": 1, "t": "x"}, {"id": 1, "t": None}, {"id": 1}),
        ("d", {"id": 1, "t": None}, None, {"id": 1}),
    ]


def test_an_index_as_identity_is_the_key_of_inserts_as_well(log):
    events = log(
        "CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL UNIQUE, v int)",
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_code_key",
        "INSERT INTO by_index VALUES (1, 'a', 1)",
        "UPDATE by_index SET id = 2",
        "UPDATE by_index SET code = 'b'",
        "DELETE FROM by_index",
    )

    assert images(events) == [
        ("c", None, {"id": 1, "code": "a", "v": 1}, {"code": "a"}),
        ("u", None, {"id": 2, "code": "a", "v": 1}, {"code": "a"}),
        ("u", {"code": "a"}, {"id": 2, "code": "b", "v": 1}, {"code": "b"}),
        ("d", {"code": "b"}, None, {"code": "b"}),
    ]


def test_without_a_key_the_key_is_null_and_full_rows_still_come(log, world):
    events = log(
        "CREATE TABLE keyless (a int, b text)",
        "ALTER TABLE keyless REPLICA IDENTITY FULL",
        "INSERT INTO keyless VALUES (1, 'x')",
        "DELETE FROM keyless",
        "INSERT INTO keyless VALUES (1, 'x')",
    )
    connection, connect, _ = world

    assert images(events)[:2] == [
        ("c", None, {"a": 1, "b": "x"}, None),
        ("d", {"a": 1, "b": "x"}, None, None),
    ]
    assert copied(connection, any_table("decode", connect), "keyless") == [
        {"after": b'{"a":1,"b":"x"}', "key": None}
    ]


def test_nothing_as_identity_still_gives_inserts_their_primary_key(log):
    events = log(
        "CREATE TABLE nothing (id int PRIMARY KEY)",
        "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
        "INSERT INTO nothing VALUES (1)",
    )

    assert images(events) == [("c", None, {"id": 1}, {"id": 1})]


def test_a_toasted_value_is_filled_in_from_the_old_row_or_marked(log):
    make = "CREATE TABLE {} (id int PRIMARY KEY, n int, big text)"
    fill = "INSERT INTO {} SELECT 1, 1, string_agg(md5(i::text), '') FROM generate_series(1, 300) i"
    events = log(
        make.format("toasted"), fill.format("toasted"), "UPDATE toasted SET n = 2",
        make.format("toasted_full"), "ALTER TABLE toasted_full REPLICA IDENTITY FULL",
        fill.format("toasted_full"), "UPDATE toasted_full SET n = 2",
    )  # fmt: skip
    _, plain, _, full = (after for _, _, after, _ in images(events))
    big = images(events)[0][2]["big"]

    assert len(big) == 9600
    assert plain == {"id": 1, "n": 2, "big": {"_unchanged": True}}
    assert full == {"id": 1, "n": 2, "big": big}


def test_a_key_stored_out_of_line_is_whole_and_no_change_of_itself(log):
    events = log(
        "CREATE TABLE long_key (id text PRIMARY KEY, n int)",
        "INSERT INTO long_key SELECT string_agg(md5(i::text), ''), 1 FROM generate_series(1, 80) i",
        "UPDATE long_key SET n = 2",
        "UPDATE long_key SET id = reverse(id)",
        "DELETE FROM long_key",
    )
    (_, _, first, _), *later = images(events)
    key = {"id": first["id"]}
    turned = {"id": first["id"][::-1]}

    assert len(first["id"]) == 2560
    assert later == [
        ("u", None, {**key, "n": 2}, key),
        ("u", key, {**turned, "n": 2}, turned),
        ("d", turned, None, turned),
    ]


def test_generated_and_dropped_columns_are_in_neither_half(log, world):
    events = log(
        "CREATE TABLE shaped (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, gone text, "
        "a int DEFAULT 7, twice int GENERATED ALWAYS AS (a * 2) STORED)",
        "ALTER TABLE shaped DROP COLUMN gone",
        "INSERT INTO shaped DEFAULT VALUES",
    )
    connection, connect, _ = world
    planner = any_table("decode", connect)

    assert images(events) == [("c", None, {"id": 1, "a": 7}, {"id": 1})]
    assert copied(connection, planner, "shaped")[0]["after"] == events[0]["after"]
    plan = planner.plan_of_table("public", "shaped")
    assert plan is not None
    assert plan.schema.fingerprint == events[0]["schema_version"]
    identity, default = plan.schema.columns
    assert (identity.is_identity, identity.identity_generation) == (True, "ALWAYS")
    assert (default.default_value, default.nullable) == ("7", True)


def test_rows_of_a_partition_come_under_its_root(world):
    connection, connect, _ = world
    wal = Wal(connection, "roots")
    connection.execute("ALTER PUBLICATION roots SET (publish_via_partition_root = true)")
    connection.execute("CREATE TABLE root (id int PRIMARY KEY, t text) PARTITION BY RANGE (id)")
    # The partition's columns stand in another order.
    connection.execute("CREATE TABLE part (t text, id int NOT NULL)")
    connection.execute("ALTER TABLE root ATTACH PARTITION part FOR VALUES FROM (0) TO (9)")
    connection.execute("INSERT INTO root VALUES (1, 'x')")
    connection.execute("UPDATE root SET id = 2")
    events = changes(wal, any_table("decode", connect))
    wal.drop()

    assert [e["table"] for e in events] == ["root", "root"]
    assert images(events) == [
        ("c", None, {"id": 1, "t": "x"}, {"id": 1}),
        ("u", {"id": 1}, {"id": 2, "t": "x"}, {"id": 2}),
    ]


def test_each_row_has_the_schema_of_its_place_in_the_log(log):
    events = log(
        "CREATE TABLE moving (id int PRIMARY KEY, a int)",
        "INSERT INTO moving VALUES (1, 5)",
        "ALTER TABLE moving ALTER a TYPE text, ADD b timestamptz",
        "INSERT INTO moving VALUES (2, 'x', '2024-01-01 00:00:00+00')",
        "ALTER TABLE moving RENAME a TO c",
        "INSERT INTO moving VALUES (3, 'y', NULL)",
        "ALTER TABLE moving RENAME TO moved",
        "INSERT INTO moved VALUES (4, 'z', NULL)",
    )

    assert [(e["table"], json.loads(e["after"])) for e in events] == [
        ("moving", {"id": 1, "a": 5}),
        ("moving", {"id": 2, "a": "x", "b": "2024-01-01T00:00:00Z"}),
        ("moving", {"id": 3, "c": "y", "b": None}),
        ("moved", {"id": 4, "c": "z", "b": None}),
    ]
    assert len({e["schema_version"] for e in events}) == 3


def test_what_was_dropped_meanwhile_is_decoded_from_the_log_alone(log):
    events = log(
        "CREATE TYPE colour AS ENUM ('red')",
        "CREATE DOMAIN code AS int",
        "CREATE DOMAIN codes AS bool[]",
        "CREATE TABLE dropped (id int PRIMARY KEY, c colour, d code, e codes, n numeric(4,1))",
        "INSERT INTO dropped VALUES (1, 'red', 1, '{t,f}', 1.5)",
        "ALTER TYPE colour ADD VALUE 'blue'",
        "INSERT INTO dropped VALUES (2, 'blue', 2, NULL, 2)",
        "DELETE FROM dropped WHERE id = 1",
        "DROP TABLE dropped",
        "DROP DOMAIN code, codes",
        "DROP TYPE colour",
    )

    assert images(events) == [
        ("c", None, {"id": 1, "c": "red", "d": 1, "e": [True, False], "n": "1.5"}, {"id": 1}),
        ("c", None, {"id": 2, "c": "blue", "d": 2, "e": None, "n": "2.0"}, {"id": 2}),
        ("d", {"id": 1}, None, {"id": 1}),
    ]


@pytest.mark.parametrize("kind", ["doubtful[]", "bits"])
def test_a_dropped_type_that_the_log_does_not_hold_is_not_guessed(log, kind):
    with pytest.raises(
        TableError, match=r"public\.dropped: types were dropped .* are 'd'"
    ) as error:
        log(
            "CREATE DOMAIN doubtful AS int",
            "CREATE DOMAIN bits AS bit(1)",
            f"CREATE TABLE dropped (id int PRIMARY KEY, d {kind})",
            "INSERT INTO dropped VALUES (1, NULL)",
            "DROP TABLE dropped",
            "DROP DOMAIN doubtful, bits",
        )
    assert error.value.table == "public.dropped"


def test_types_are_asked_for_once_and_tables_nobody_captures_never(world):
    connection, connect, wal = world
    opened = []

    def counted():
        opened.append(1)
        return connect()

    planner = Planner("decode", TableMatcher(("public.seen",), "public"), counted)
    connection.execute("CREATE TABLE unseen (id int PRIMARY KEY)")
    connection.execute("CREATE TABLE seen (id int PRIMARY KEY, v int[])")
    connection.execute("INSERT INTO unseen VALUES (1)")
    connection.execute("INSERT INTO seen SELECT i, ARRAY[i] FROM generate_series(1, 50) i")
    events = changes(wal, planner)

    assert len(opened) == 1
    assert [e["table"] for e in events] == ["seen"] * 50


def test_odd_names_are_escaped(log, world):
    events = log(
        'CREATE TABLE "odd "" name" ("quo""te" int PRIMARY KEY, "ü" int, "a\\b" int)',
        'INSERT INTO "odd "" name" VALUES (1, 2, 3)',
    )

    assert images(events) == [("c", None, {'quo"te': 1, "ü": 2, "a\\b": 3}, {'quo"te': 1})]
    assert events[0]["table"] == 'odd " name'


def test_a_table_without_columns_has_empty_rows(log, world):
    events = log("CREATE TABLE empty ()", "INSERT INTO empty DEFAULT VALUES")

    assert images(events) == [("c", None, {}, None)]


def test_batches_carry_names_times_ids_and_schemas(world):
    connection, connect, wal = world
    connection.execute("CREATE TABLE carried (id int PRIMARY KEY, t text)")
    with connection.transaction():
        connection.execute("INSERT INTO carried VALUES (1, 'a'), (2, 'b')")
        connection.execute("DELETE FROM carried WHERE id = 1")
    chunk = chunk_of(wal.messages(), any_table("decode", connect), db="decode")
    batch = decode_segment(chunk, KEY)
    again = decode_segment(pickle.loads(pickle.dumps(chunk)), KEY)
    rows = batch.rows.to_pylist()

    assert batch.rows.equals(again.rows)
    assert [row["tx_end"] for row in rows] == [False, False, True]
    assert [row["row"] for row in rows] == [0, 1, 2]
    assert {(row["db"], row["schema"], row["table"]) for row in rows} == {
        ("decode", "public", "carried")
    }
    xid = int(chunk.positions.xids[-1])
    lsn = f"{chunk.positions.commits[-1] >> 32:X}/{chunk.positions.commits[-1] & 0xFFFFFFFF:X}"
    assert {row["source_position"] for row in rows} == {f'"lsn":"{lsn}","txId":{xid}'.encode()}
    assert {row["tx_id"] for row in rows} == {str(xid)}
    assert len({row["event_id"] for row in rows}) == 3
    assert [schema.fingerprint for schema in batch.schemas] == [rows[0]["schema_version"]]


def test_tables_that_look_alike_have_a_schema_each(world):
    connection, connect, wal = world
    for name in ("like_one", "like_two"):
        connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    with connection.transaction():
        for name in ("like_two", "like_one", "like_two"):
            connection.execute(f"INSERT INTO {name} SELECT count(*) FROM {name}")
    batch = decode_segment(chunk_of(wal.messages(), any_table("decode", connect)), KEY)
    versions = batch.rows.column("schema_version")

    assert [schema.table for schema in batch.schemas] == ["like_two", "like_one"]
    assert versions.indices.to_pylist() == [0, 1, 0]
    assert versions.dictionary.to_pylist() == [s.fingerprint for s in batch.schemas]


def test_markers_stand_where_they_happened(world):
    connection, connect, wal = world
    connection.execute("CREATE TABLE marked (id int PRIMARY KEY)")
    with connection.transaction():
        connection.execute("INSERT INTO marked VALUES (1), (2)")
    chunk = chunk_of(wal.messages(), any_table("decode", connect))
    tx = int(chunk.rows[0, 3])
    markers = (
        Marker(tx, 0, 7, "c", "__wal_message", "outbox", after=b'{"a":1}'),
        Marker(tx, 1, 8, "t", "public", "marked"),
        Marker(tx, 2, 9, "ddl", "public", "other", ddl=b'{"sql":"x"}'),
    )
    fields = {name: getattr(chunk, name) for name in chunk.__slots__}
    batch = decode_segment(type(chunk)(**fields | {"markers": markers}), KEY)
    rows = batch.rows.to_pylist()
    version = batch.schemas[0].fingerprint

    assert [(r["op"], r["table"], r["row"], r["after"], r["schema_version"]) for r in rows] == [
        ("c", "outbox", 7, b'{"a":1}', None),
        ("c", "marked", 0, b'{"id":1}', version),
        ("t", "marked", 8, None, version),
        ("c", "marked", 1, b'{"id":2}', version),
        ("ddl", "other", 9, None, None),
    ]
    assert rows[4]["ddl"] == b'{"sql":"x"}'
    assert [r["tx_end"] for r in rows] == [False, False, False, False, True]


def test_rows_larger_than_the_first_guess_are_decoded_with_more_room(world):
    """Each byte here becomes six of JSON: twice as much room as there was is too little, too."""
    connection, connect, wal = world
    connection.execute("CREATE TABLE roomy (id int PRIMARY KEY, t text)")
    connection.execute(
        "INSERT INTO roomy SELECT i, repeat(chr(1), 10000 + i) FROM generate_series(1, 99) i"
    )
    connection.execute("DELETE FROM roomy")
    chunk = chunk_of(wal.messages(), any_table("decode", connect))

    rows = decode_segment(chunk, KEY).rows

    after = [b'{"id":%d,"t":"%b"}' % (i, rb"\u0001" * (10000 + i)) for i in range(1, 100)]
    assert rows.column("after").to_pylist() == [*after, *[None] * 99]
    assert sum(map(len, after)) > 2 * (2 * len(chunk.data) + (1 << 16))


def test_a_row_that_does_not_fit_its_description_is_refused(world):
    connection, connect, wal = world
    connection.execute("CREATE TABLE narrow (id int PRIMARY KEY, a int)")
    connection.execute("INSERT INTO narrow VALUES (1, 2)")
    chunk = chunk_of(wal.messages(), any_table("decode", connect))
    data = np.array(chunk.data)
    data[chunk.rows[0, 0] + 2] = 3
    fields = {name: getattr(chunk, name) for name in chunk.__slots__}

    with pytest.raises(TableError, match=r"public\.narrow: a row .* 2 columns") as error:
        decode_segment(type(chunk)(**fields | {"data": data}), KEY)
    assert error.value.table == "public.narrow"


@pytest.mark.parametrize(
    ("column", "value", "wrong"),
    [("int", "12345", b"12,45"), ("bool", "true", b"x"), ("int[]", "{1,2}", b"1,2,3")],
)
def test_a_value_of_another_type_makes_no_broken_json(world, column, value, wrong):
    connection, connect, wal = world
    connection.execute(f"CREATE TABLE broken (id int PRIMARY KEY, v {column})")
    connection.execute("INSERT INTO broken VALUES (1, %s)", (value,))
    connection.execute("DROP TABLE broken")
    chunk = chunk_of(wal.messages(), any_table("decode", connect))
    data, stop = np.array(chunk.data), int(chunk.rows[0, 1])
    data[stop - len(wrong) : stop] = np.frombuffer(wrong, np.uint8)
    fields = {name: getattr(chunk, name) for name in chunk.__slots__}

    with pytest.raises(TableError, match=r"public\.broken: column 'v' .* no value of type"):
        decode_segment(type(chunk)(**fields | {"data": data}), KEY)


def test_a_chunk_without_rows_is_an_empty_batch(world):
    _, connect, wal = world
    wal.messages()
    batch = decode_segment(chunk_of([], any_table("decode", connect)), KEY)

    assert batch.rows.num_rows == 0
    assert batch.rows.schema.field("after").type == pa.binary()


def test_arrays_more_than_two_deep_by_domains_end_in_text(log):
    events = log(
        "CREATE DOMAIN once AS int[]",
        "CREATE DOMAIN twice AS once[]",
        "CREATE TABLE deep (id int PRIMARY KEY, v twice[])",
        r"""INSERT INTO deep VALUES (1, '{"{\"{1,2}\",NULL}"}')""",
    )

    assert images(events)[0][2] == {"id": 1, "v": [["{1,2}", None]]}
