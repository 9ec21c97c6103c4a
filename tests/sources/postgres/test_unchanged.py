"""What the log does not repeat is named in the event, so that no value can be taken for it."""

import json

import orjson
import pytest

from airflow_provider_deltaforge.columns.marks import UNCHANGED
from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.sources.postgres.server import row_of
from tests.sources.postgres.copying import begun, copied
from tests.sources.postgres.stream_reading import connect, events, execute, rows

NAME = "unchanged"
SAME = '{"_unchanged": true}'
LARGE = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 400) i)"


def changed(shop, either, make, *statements):
    """Return the snapshot's rows, and the events of some statements."""
    source = shop(*make)
    begun(source).close()
    position = source.head()
    snapshot = events(copied(source))
    execute(either, *statements, database=NAME)
    return snapshot, [event for event in rows(source, position) if event["op"] != "ddl"]


def test_values_that_look_like_the_mark_are_values(shop, either):
    make = (
        """CREATE TABLE t (id int PRIMARY KEY, "b ""ig" text, j jsonb, k json, l jsonb[], n int)""",
        "ALTER TABLE t ALTER 2 SET STORAGE EXTERNAL".replace(" 2 ", ' "b ""ig" '),
        f"INSERT INTO t VALUES (1, {LARGE}, '{SAME}', '{SAME.replace(' ', '')}', "
        f"ARRAY['{SAME}'::jsonb], 1), (2, 'small', '{SAME}', NULL, NULL, 1)",
    )
    snapshot, found = changed(
        shop,
        either,
        make,
        "UPDATE t SET n = 2",
        f"UPDATE t SET j = '[1]', \"b \"\"ig\" = {LARGE} || 'x' WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
    )
    mark = json.loads(UNCHANGED)
    for event in snapshot:
        assert event["unchanged"] is None
        assert UNCHANGED not in event["after"]
    first = found[0]
    assert json.loads(first["unchanged"]) == ['b "ig']
    assert first["after"].count(UNCHANGED) == 1
    row = json.loads(first["after"])
    assert row == {"id": 1, 'b "ig': mark, "j": mark, "k": mark, "l": [mark], "n": 2}
    assert [event["unchanged"] for event in found[1:]] == [None, None, None]
    assert json.loads(found[1]["after"])["j"] == mark
    assert [event["op"] for event in found] == ["u", "u", "u", "d"]


def test_several_columns_and_a_full_identity(shop, either):
    columns = ", ".join(f"c{i} text" for i in range(5))
    values = ", ".join([LARGE] * 5)
    storage = ", ".join(f"ALTER c{i} SET STORAGE EXTERNAL" for i in range(5))
    make = []
    for table in ("few", "whole"):
        make += [f"CREATE TABLE {table} (id int PRIMARY KEY, {columns}, n int)"]
        make += [f"ALTER TABLE {table} {storage}"]
        make += [f"INSERT INTO {table} VALUES (1, {values}, 1)"]
    make += ["ALTER TABLE whole REPLICA IDENTITY FULL"]
    _, found = changed(
        shop,
        either,
        make,
        f"UPDATE few SET n = 2, c1 = 'x', c3 = {LARGE} || 'y'",
        "UPDATE whole SET n = 2",
        *(f"UPDATE few SET n = {n}" for n in range(200)),
    )
    assert orjson.loads(found[0]["unchanged"]) == ["c0", "c2", "c4"]
    assert found[1]["unchanged"] is None
    assert {event["unchanged"] for event in found[2:]} == {b'["c0","c2","c3","c4"]'}


def test_the_end_of_a_row_that_needs_room(shop, either):
    """Many long names, so that the kernel is given more room in the middle."""
    names = [f"{'n' * 50}_{i}" for i in range(200)]
    columns = ", ".join(f'"{name}" text' for name in names)
    storage = ", ".join(f'ALTER "{name}" SET STORAGE EXTERNAL' for name in names)
    values = ", ".join(["repeat('x', 9000)"] * len(names))
    make = (
        f"CREATE TABLE t (id int PRIMARY KEY, {columns}, n int)",
        f"ALTER TABLE t {storage}",
        f"INSERT INTO t VALUES (1, {values}, 0)",
    )
    statement = "UPDATE t SET n = i FROM generate_series(1, 1) i"
    _, found = changed(shop, either, make, *[statement] * 30)
    assert [json.loads(event["unchanged"]) for event in found] == [names] * 30


def test_a_moved_rows_value_is_read_under_any_name(shop, either):
    """A driver takes a percent sign for a parameter's place, and tries for ever to fill it."""
    source = shop(
        """CREATE TABLE "100%" ("i'd %s" text PRIMARY KEY, "50% off" text)""",
        'ALTER TABLE "100%" ALTER "50% off" SET STORAGE EXTERNAL',
    )
    position = source.beginning()
    execute(
        either,
        f"""INSERT INTO "100%" VALUES ('1%', {LARGE})""",
        """UPDATE "100%" SET "i'd %s" = '2%''s'""",
        database=NAME,
    )
    inserted, moved = (json.loads(event["after"]) for event in rows(source, position))
    assert moved == {**inserted, "i'd %s": "2%'s"}


@pytest.mark.parametrize(
    "behind",
    [
        ("ALTER TABLE t RENAME big TO old; ALTER TABLE t ADD big text",),
        ("COMMIT", "ALTER TABLE t RENAME big TO old", "ALTER TABLE t ADD big text"),
        ("COMMIT", "ALTER TABLE t DROP big", "ALTER TABLE t ADD big text DEFAULT 'x'"),
        ("COMMIT", "ALTER TABLE t RENAME TO old", "ALTER TABLE n RENAME TO t"),
        ("COMMIT", "ALTER TABLE t RENAME id TO i", "ALTER TABLE t RENAME n TO id"),
    ],
)
def test_a_moved_rows_value_is_not_taken_from_what_bears_the_name_now(shop, either, behind):
    source = shop(
        "CREATE TABLE t (id int PRIMARY KEY, big text, n int UNIQUE)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "CREATE TABLE n AS SELECT 2 AS id, 'of another' AS big, 0 AS n",
    )
    position = source.beginning()
    insert = f"INSERT INTO t VALUES (1, {LARGE}, 3), (9, 'of another', 2)"
    with connect(either, NAME) as connection:
        for statement in (insert, "BEGIN", "UPDATE t SET id = 2 WHERE id = 1", *behind, "COMMIT"):
            connection.execute(statement)
    _, _, moved, *_ = (json.loads(event["after"]) for event in rows(source, position))
    assert moved == {"id": 2, "big": {"_unchanged": True}, "n": 3}


@pytest.mark.parametrize(
    ("kind", "former", "latter"),
    [
        ("apart.ltree", "'a.b'", "'c.d'"),
        ("own", "'a.b'", "'c.d'"),
        ("pair", "'(1,a)'", "'(2,b)'"),
        ("mood", "'sad'", "'ok'"),
        ("char(3)", "'a'", "'b'"),
    ],
)
def test_a_moved_rows_value_is_read_by_a_key_of_any_type(shop, either, kind, former, latter):
    """Operators of an extension lie in its schema, which no search path needs to hold."""
    source = shop(
        "CREATE SCHEMA apart",
        "CREATE EXTENSION ltree SCHEMA apart",
        "CREATE DOMAIN own AS apart.ltree",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        f"CREATE TABLE t (id {kind} PRIMARY KEY, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    )
    position = source.beginning()
    execute(
        either,
        f"INSERT INTO t VALUES ({former}, {LARGE})",
        f"UPDATE t SET id = {latter}",
        database=NAME,
    )
    inserted, moved = (json.loads(event["after"]) for event in rows(source, position))
    assert moved["big"] == inserted["big"]


def test_what_the_driver_refuses_is_not_asked_again(either):
    with connect(either) as connection, pytest.raises(FatalError, match="placeholder"):
        row_of(connection, "SELECT '%', %s", "asking the server", (1,))
