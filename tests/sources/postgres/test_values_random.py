"""Random values made by the server: log, COPY and the server's own JSON say the same."""

import json

import pytest

from tests.sources.postgres.wal_messages import Wal, any_table, changes, copied, database

# What a row holds, how the server makes it, and how the server's own JSON functions print it.
_COLUMNS = {
    "b": ("boolean", "random() < 0.5", "b"),
    "i2": ("smallint", "(random() * 65535 - 32768)::smallint", "i2"),
    "i8": ("bigint", "((random() - 0.5) * 1.8e19)::bigint", "i8"),
    "f4": ("real", "((random() - 0.5) * power(10::float8, random() * 70 - 35))::real", "f4"),
    "f8": ("float8", "(random() - 0.5) * power(10::float8, random() * 600 - 300)", "f8"),
    "n": ("numeric", "round(((random() - 0.5) * 1e15)::numeric * 1e9 / 7, (random() * 30)::int)",
          "n::text"),
    "t": ("text", "random_text(40)", "t"),
    "v": ("varchar(9)", "left(random_text(9), 9)", "v"),
    "c": ("char(5)", "left(random_text(5), 5)", "c"),
    "x": ("bytea", "substr(decode(md5(random()::text), 'hex'), 1, (random() * 16)::int)",
          "json_build_object('_base64', encode(x, 'base64'))"),
    "d": ("date", "'0001-01-01'::date + (random() * 4000000)::int", "d"),
    "tm": ("time", "'00:00'::time + random() * interval '1 day'", "tm"),
    "ts": ("timestamp", "'0001-01-01'::timestamp + random() * interval '9000 years'", "ts"),
    "tz": ("timestamptz", "to_timestamp((random() - 0.2) * 1e11)",
           "replace(to_json(tz)::text, '+00:00', 'Z')::json"),
    "u": ("uuid", "md5(random()::text)::uuid", "u"),
    "iv": ("interval", "(random() - 0.5) * interval '9 years 7 days 3.25 seconds'", "iv"),
    "j": ("jsonb", "jsonb_build_object(random_text(5), random_text(9), 'n', random() * 1e9)", "j"),
    "h": ("hstore", "hstore(random_text(9), random_text(9)) || 'k=>NULL'", "hstore_to_json(h)"),
    "ai": ("int[]", "ARRAY[(random() * 1e9)::int, NULL, -(random() * 9)::int]", "ai"),
    "at": ("text[]", "ARRAY[[random_text(9), NULL, 'NULL'], ['', random_text(5), '{\"\\']]", "at"),
    "af": ("float8[]", "ARRAY[random(), 'NaN', -random() * 1e30]", "af"),
    "an": ("numeric[]", "ARRAY[random()::numeric, 'NaN', 1.50]", "an::text[]"),
    "ax": ("bytea[]", "ARRAY[decode(md5(random()::text), 'hex'), NULL, '']",
           "ARRAY[json_build_object('_base64', encode(ax[1], 'base64')), NULL, "
           "json_build_object('_base64', '')]"),
    "ad": ("timestamp[]", "ARRAY['2000-01-01'::timestamp + random() * interval '9 years', NULL]",
           "ad"),
    "aj": ("jsonb[]", "ARRAY[jsonb_build_array(random_text(9), 1), 'null']", "aj"),
    "p": ("pair", "ROW((random() * 9)::int, random_text(9))::pair", "p::text"),
    "ap": ("pair[]", "ARRAY[ROW(1, random_text(9))::pair, NULL]", "ap::text[]"),
    "r": ("int4range", "int4range((random() * 9)::int, 9 + (random() * 9)::int)", "r::text"),
    "bi": ("bit(40)", "(random() * 1e11)::bigint::bit(40)", "bi::bigint"),
}  # fmt: skip
# Everything JSON, COPY, arrays or hstore give a meaning to, control characters, and all planes.
_SETUP = r"""
CREATE EXTENSION hstore;
CREATE TYPE pair AS (a int, b text);
CREATE FUNCTION random_text(longest int) RETURNS text LANGUAGE sql VOLATILE AS $body$
  SELECT coalesce(string_agg(CASE (random() * 8)::int
    WHEN 0 THEN substr(E'"\\{},()=>''/ \t\n\r\b\f\v.NULL', 1 + (random() * 24)::int, 1)
    WHEN 1 THEN chr(1 + (random() * 31)::int)
    WHEN 2 THEN chr(160 + (random() * 50000)::int)
    WHEN 3 THEN chr(65536 + (random() * 900000)::int)
    ELSE chr(32 + (random() * 95)::int) END, ''), '')
  FROM generate_series(1, (random() * longest)::int)
$body$;
"""


@pytest.fixture(scope="module")
def world(postgres_server):
    with database(postgres_server, "random_values") as (connection, connect):
        connection.execute(_SETUP)
        columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in _COLUMNS.items())
        connection.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
        wal = Wal(connection, "random_values")
        yield connection, wal, any_table("random_values", connect)
        wal.drop()


@pytest.mark.parametrize(
    ("seed", "count"),
    [(0.25, 400), *(pytest.param(i / 10, 3000, marks=pytest.mark.long) for i in range(10))],
)
def test_log_copy_and_the_servers_own_json_agree(world, seed, count):
    connection, wal, planner = world
    connection.execute("TRUNCATE t")
    connection.execute(f"SELECT setseed({seed})")
    made = ", ".join(
        f"CASE WHEN random() < 0.1 THEN NULL ELSE {made} END" for _, made, _ in _COLUMNS.values()
    )
    connection.execute(f"INSERT INTO t SELECT i, {made} FROM generate_series(1, {count}) i")
    log = [event["after"] for event in changes(wal, planner)]
    copy = [row["after"] for row in copied(connection, planner, "t")]
    printed = ", ".join(
        f"'{name}', CASE WHEN {name} IS NOT NULL THEN to_json({shown}) END"
        for name, (_, _, shown) in _COLUMNS.items()
    )
    own = connection.execute(
        f"SELECT json_build_object('id', id, {printed})::text FROM t ORDER BY id"
    ).fetchall()

    assert copy == log
    assert len(copy) == count
    for row, (text,) in zip(copy, own, strict=True):
        assert _digits(row.decode()) == _digits(text)
    assert [row["after"] for row in copied(connection, planner, "t", size=1777)] == copy


def _digits(text):
    """Read JSON with every digit kept, and without the breaks of the server's base64."""
    return json.loads(text, parse_float=str, parse_int=str)
