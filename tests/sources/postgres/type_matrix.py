"""Every PostgreSQL type, with values at its borders and the JSON that becomes of them.

The snapshot and the stream are both held against ``Type.samples``, and the table of types in
``docs/reference/types.md`` is made from them. A sample is (SQL expression, JSON text).
"""

import json
from dataclasses import dataclass

PREPARE = (
    "CREATE EXTENSION hstore",
    "CREATE EXTENSION citext",
    "CREATE TYPE mood AS ENUM ('sad', 'it''s \"ok\"', 'ü')",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE DOMAIN positive AS int CHECK (value > 0)",
    "CREATE DOMAIN price AS numeric(10, 2)",
    "CREATE DOMAIN flag AS bit(1)",
    "CREATE DOMAIN ints AS int[]",
    "CREATE DOMAIN small_positive AS positive CHECK (value < 10)",
    "CREATE SCHEMA other",
    "CREATE TYPE other.hstore AS ENUM ('a=>1')",
    "CREATE TYPE span AS RANGE (subtype = float8)",
)


@dataclass(frozen=True)
class Type:
    """One type: its name in SQL, how its values look, and what the page says of it."""

    sql: str
    samples: tuple[tuple[str, str], ...]
    note: str = ""
    since: int = 13


def _text(*values: str) -> tuple[tuple[str, str], ...]:
    """Return samples that stay as they are."""
    return tuple((_quoted(value), json.dumps(value, ensure_ascii=False)) for value in values)


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _same(*values: str) -> tuple[tuple[str, str], ...]:
    """Return samples whose text is JSON already."""
    return tuple((_quoted(value), value) for value in values)


_ODD = "a\"b\\c/ü😀'\t\n\r\b\f\v\x01\x1f\x7f" + "long " * 9
_LONG = "9" * 100 + "." + "1" * 60

TYPES: tuple[Type, ...] = (
    Type("boolean", (("true", "true"), ("false", "false"))),
    Type("smallint", _same("-32768", "32767", "0")),
    Type("integer", _same("-2147483648", "2147483647", "7")),
    Type("bigint", _same("-9223372036854775808", "9223372036854775807", "9007199254740993")),
    Type("oid", _same("4294967295", "0")),
    Type(
        "real",
        (
            *_same("3.14", "-0", "1e+20", "1e-07", "1.1754944e-38", "3.4028235e+38", "1e-45"),
            *_text("NaN", "Infinity", "-Infinity"),
        ),
        "the shortest digits that read back as the same; `NaN` and the infinities are strings",
    ),
    Type(
        "double precision",
        (
            *_same("0.1", "-1.5", "1e+22", "1.7976931348623157e+308", "5e-324", "100"),
            *_text("NaN", "Infinity", "-Infinity"),
        ),
        "as `real`",
    ),
    Type(
        "numeric",
        _text("1.10", "-0.00001", "0", _LONG, "NaN", "1e4".replace("1e4", "10000")),
        "every digit and the scale are kept",
    ),
    Type("numeric", _text("Infinity", "-Infinity"), since=14),
    Type("numeric(10,2)", (("1.5", '"1.50"'), ("-99999999.99", '"-99999999.99"'))),
    Type("money", (("12.5", '"$12.50"'),), "text, as the locale `C` prints it"),
    Type("text", _text("Ada", "", "NULL", "\\N", "{}", _ODD, "x" * 5000)),
    Type("varchar(40)", _text("Ada", 'q"\\')),
    Type("char(4)", (("'ab'", '"ab  "'),), "padded with spaces, as the server has it"),
    Type('"char"', _text("a")),
    Type("name", _text("a_name")),
    Type("citext", _text("MiXed", "'")),
    Type("xml", _text('<a b="c"/>', '<a b="c">\n</a>')),
    Type("uuid", _text("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
    Type(
        "bytea",
        (
            (r"'\xdeadbeef'", '{"_base64":"3q2+7w=="}'),
            ("''", '{"_base64":""}'),
            (r"'\x00'", '{"_base64":"AA=="}'),
            (r"'\x0a5c09'", '{"_base64":"ClwJ"}'),
        ),
    ),
    Type(
        "date",
        _text("2024-02-29", "infinity", "-infinity", "0044-03-15 BC", "294276-12-31"),
        "ISO 8601; years before Christ and the infinities as the server prints them",
    ),
    Type("time", _text("12:34:56.789012", "00:00:00", "24:00:00")),
    Type(
        "time with time zone",
        (
            ("'12:34:56-07'", '"12:34:56-07:00"'),
            ("'12:34:56.5+05:30'", '"12:34:56.5+05:30"'),
            ("'00:00:00+00'", '"00:00:00+00:00"'),
            ("'01:02:03+05:30:15'", '"01:02:03+05:30:15"'),
        ),
        "with its own distance from UTC",
    ),
    Type(
        "timestamp",
        (
            ("'2024-02-29 12:34:56.789'", '"2024-02-29T12:34:56.789"'),
            ("'0044-03-15 12:00:00 BC'", '"0044-03-15 12:00:00 BC"'),
            ("'294276-12-31 23:59:59.999999'", '"294276-12-31T23:59:59.999999"'),
            *_text("infinity", "-infinity"),
        ),
        "ISO 8601; years before Christ and the infinities as the server prints them",
    ),
    Type(
        "timestamp with time zone",
        (
            ("'2024-02-29 12:34:56.789+02'", '"2024-02-29T10:34:56.789Z"'),
            ("'1890-01-01 00:00:00+00'", '"1890-01-01T00:00:00Z"'),
            ("'0044-03-15 12:00:00+00 BC'", '"0044-03-15 12:00:00+00 BC"'),
            ("'294276-12-31 23:59:59.999999+00'", '"294276-12-31T23:59:59.999999Z"'),
            *_text("infinity", "-infinity"),
        ),
        "in UTC; else as `timestamp`",
    ),
    Type("interval", _text("1 year 2 mons 3 days 04:05:06.7", "-00:00:01", "00:00:00")),
    Type("json", _same('{"a": [1.0,  9007199254740993], "b":"\\u0001"}', "null", '"x"')),
    Type("json", (("E'{\"a\":\\n1}'", '{"a": 1}'),), "as written, but on one line"),
    Type("jsonb", _same('{"a": 100000000000000000001, "b": [true, null]}', '"a\\nb\\"c"')),
    Type("jsonpath", _text('$."a"[*]')),
    Type(
        "hstore",
        (
            ("'a=>1, b=>NULL'", '{"a":"1","b":null}'),
            ("''", "{}"),
            ("hstore(E'q\"\\\\\\n', 'NULL, \"=>')", '{"q\\"\\\\\\n":"NULL, \\"=>"}'),
        ),
        "an object of strings",
    ),
    Type("other.hstore", _text("a=>1")),
    Type("bit(1)", (("B'1'", "true"), ("B'0'", "false")), "a boolean"),
    Type("bit(9)", (("B'100000001'", "257"), ("B'000000000'", "0")), "an unsigned number"),
    Type("bit(64)", (("repeat('1', 64)::bit(64)", "18446744073709551615"),)),
    Type("bit(65)", (("repeat('1', 65)::bit(65)", f'"{"1" * 65}"'),), "longer than 64: its digits"),
    Type("varbit(8)", _text("00101", ""), "its digits: the leading zeros are part of it"),
    Type("mood", _text("sad", 'it\'s "ok"', "ü"), "an enum: its label"),
    Type("positive", _same("5"), "a domain: as its base type"),
    Type("small_positive", _same("5")),
    Type("price", (("1.5", '"1.50"'),)),
    Type("flag", (("B'1'", "true"),)),
    Type("ints", (("'{1,NULL,3}'", "[1,null,3]"),)),
    Type("pair", _text('(1,"a ""b""")', "(,)"), "a composite: its text"),
    Type("int4range", _text("[1,10)", "empty", "(,)")),
    Type("tstzrange", _text('["2024-01-01 00:00:00+00",)')),
    Type("span", _text("[1.5,2)")),
    Type("int4multirange", _text("{[1,3),[5,7)}", "{}"), since=14),
    Type("inet", _text("192.168.0.1/24", "::1")),
    Type("cidr", _text("10.0.0.0/8")),
    Type("macaddr", _text("08:00:2b:01:02:03")),
    Type("macaddr8", _text("08:00:2b:01:02:03:04:05")),
    Type("point", _text("(1.5,-2)")),
    Type("line", _text("{1,-1,0}")),
    Type("lseg", _text("[(0,0),(1,1)]")),
    Type("box", _text("(1,1),(0,0)")),
    Type("path", _text("((0,0),(1,1))")),
    Type("polygon", _text("((0,0),(1,1),(1,0))")),
    Type("circle", _text("<(0,0),1>")),
    Type("tsvector", _text("'a':1A 'b''c':2")),
    Type("tsquery", _text("'a' & 'b'")),
    Type("pg_lsn", _text("16/B374D848")),
    Type("xid", _text("742")),
    Type("regclass", _text("pg_class")),
    Type("int2vector", (("'1 2 3'", "[1,2,3]"), ("''", "[]"))),
    Type(
        "integer[]",
        (
            ("'{1,-2,NULL}'", "[1,-2,null]"),
            ("'{}'", "[]"),
            ("'{{1,2},{3,NULL}}'", "[[1,2],[3,null]]"),
            ("'[2:4]={7,8,9}'", "[7,8,9]"),
            ("'[-1:0][5:6]={{1,2},{3,4}}'", "[[1,2],[3,4]]"),
            ("'{{{1},{2}},{{3},{4}}}'", "[[[1],[2]],[[3],[4]]]"),
        ),
        "each dimension is a list; lower bounds are not kept",
    ),
    Type(
        "text[]",
        (
            ("ARRAY['a', NULL, 'NULL', 'null', '']", '["a",null,"NULL","null",""]'),
            ("ARRAY['{x}', 'a,b', 'q\"', E'\\\\', E'\\n', ' ']",
             '["{x}","a,b","q\\"","\\\\","\\n"," "]'),
            ("ARRAY[ARRAY['123', 'true'], ARRAY['ü', NULL]]", '[["123","true"],["ü",null]]'),
        ),
    ),
    Type("boolean[]", (("'{t,f,NULL}'", "[true,false,null]"),)),
    Type("numeric[]", (("'{1.10,NaN}'", '["1.10","NaN"]'),)),
    Type("double precision[]", (("'{1.5,NaN,-Infinity}'", '[1.5,"NaN","-Infinity"]'),)),
    Type("bytea[]", ((r"ARRAY['\x00ff'::bytea, '']", '[{"_base64":"AP8="},{"_base64":""}]'),)),
    Type("bit(3)[]", (("'{101,000}'", "[5,0]"),)),
    Type("bit(1)[]", (("'{1,0}'", "[true,false]"),)),
    Type("varchar(5)[]", (("'{ab,\"c d\"}'", '["ab","c d"]'),)),
    Type("uuid[]", (("'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'",
                     '["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]'),)),
    Type("date[]", (("'{2024-02-29,infinity}'", '["2024-02-29","infinity"]'),)),
    Type("timestamp[]", (("'{2024-02-29 12:00:00}'", '["2024-02-29T12:00:00"]'),)),
    Type("timestamp with time zone[]",
         (("'{2024-02-29 12:00:00+00}'", '["2024-02-29T12:00:00Z"]'),)),
    Type("json[]", (("ARRAY['{\"a\": \"q\\\"\"}'::json, '1']", '[{"a": "q\\""},1]'),)),
    Type("jsonb[]", (("ARRAY['{\"a\": [1, null]}'::jsonb, 'null']", '[{"a": [1, null]},null]'),)),
    Type("hstore[]", (("ARRAY['a=>1'::hstore, NULL]", '[{"a":"1"},null]'),)),
    Type("mood[]", (("ARRAY['sad', 'it''s \"ok\"']::mood[]", '["sad","it\'s \\"ok\\""]'),)),
    Type("positive[]", (("'{1,2}'", "[1,2]"),)),
    Type("ints[]", (("'{\"{1,2}\",\"{NULL}\",NULL}'", "[[1,2],[null],null]"),),
         "of a domain over an array: lists in lists"),
    Type("pair[]", (("ARRAY[ROW(1,'a b')::pair]", '["(1,\\"a b\\")"]'),)),
    Type("box[]", (("'{(1,1),(0,0);(2,2),(0,0)}'", '["(1,1),(0,0)","(2,2),(0,0)"]'),)),
    Type("int4range[]", (("ARRAY['[1,3)'::int4range]", '["[1,3)"]'),)),
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table with one column of a type, and what its rows must become."""

    name: str
    column: str
    rows: tuple[tuple[str, str], ...]

    @property
    def create(self) -> str:
        """Create it."""
        return f"CREATE TABLE {self.name} (id int PRIMARY KEY, v {self.column})"

    @property
    def fill(self) -> str:
        """Insert its rows."""
        values = ", ".join(f"({i}, {sql})" for i, (sql, _) in enumerate(self.rows))
        select = f"SELECT id, v::{self.column} FROM (VALUES {values}) x(id, v)"
        return f"INSERT INTO {self.name} {select}"

    def expected(self) -> list[str]:
        """Return each row's JSON, in order."""
        return [f'{{"id":{i},"v":{text}}}' for i, (_, text) in enumerate(self.rows)]


def tables(version: int) -> list[Table]:
    """Return a table for each type a server of this version has; each has a null as well."""
    return [
        Table(f"m_{i}", kind.sql, (*kind.samples, ("NULL", "null")))
        for i, kind in enumerate(TYPES)
        if kind.since <= version
    ]
