"""``python -m tests.sources.types_page``: write ``docs/reference/types.md`` from the matrices.

What the page shows is what the matrices' tests hold against real servers.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.sources.mysql import type_matrix as mysql
from tests.sources.postgres import type_matrix as postgres

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "types.md"

_WIDTH = 60
_OWN = {
    "mood": "an enum",
    "positive": "a domain over `integer`",
    "price": "a domain over `numeric(10,2)`",
    "pair": "a composite",
    "span": "a range of its own",
    "ints[]": "an array of a domain over `int[]`",
}
_LEFT_OUT = {
    "small_positive",
    "flag",
    "ints",
    "mood[]",
    "positive[]",
    "pair[]",
    "bit(64)",
    "other.hstore",
}
_ATTRIBUTES = re.compile(r" (primary key|null|generated .*|collate \w+)$", re.IGNORECASE)

_HEAD = """\
# Types and their JSON

Made by `python -m tests.sources.types_page` from the type matrices, which tests hold against real
servers: the snapshot and the stream print every value alike. Values are as in SQL; NULL is `null`
everywhere. Each digit the server sent is in the JSON: read numbers beyond 2^53 with a reader that
keeps them.

`DECIMAL` and `numeric` are strings; with `decimal: number` in the source's config they are numbers
of the same digits and scale, in rows, keys and arrays (`NaN` and the infinities stay strings).
Avro is the same for both. Which columns of `after` are `{"_unchanged":true}` says the event's
`unchanged`, a list of their names; it is absent when there are none. A value of a `json` column
that reads like the mark has a space in it.
"""

_POSTGRES_HEAD = """\
## PostgreSQL

Types that are not named here are strings with the server's own text; so are PostGIS's.
A domain is what its base type is, and an array a list of what its elements are. Where a type was
dropped before its rows were read, its values are text.

- A value stored out of line that an update did not touch is `{"_unchanged":true}`. With
  `REPLICA IDENTITY FULL` the log has it in the old row, and it is filled in from there.
- `before` holds what the log has of the old row: all of it with `REPLICA IDENTITY FULL`, else the
  columns of the key, and of updates nothing when the key stayed the same.
- `key` holds the primary key's columns in table order. With `REPLICA IDENTITY USING INDEX`, whose
  old rows lack the primary key, it holds the index's columns, in inserts as well.
- Generated columns are in neither half, unless the publication publishes them (PostgreSQL 18).
"""

_MYSQL_HEAD = """\
## MySQL and MariaDB

Zero dates stay as they are. Text of every character set is Unicode by the server's own tables:
what the server shows as `?` is `?`. Half of a surrogate pair alone (`ucs2`; MariaDB's `utf32`) is
U+FFFD. With partial row images a value that the log lacks is `{"_unchanged":true}`
([mysql.md](../mysql.md)).
"""


def page() -> str:
    """Return the page."""
    return "\n".join(
        [
            _HEAD,
            _POSTGRES_HEAD,
            *_table(_postgres_rows()),
            "",
            _MYSQL_HEAD,
            *_table(_mysql_rows()),
            "",
        ]
    )


def _table(rows: Iterable[tuple[str, str, str]]) -> list[str]:
    return [
        "| type | value | JSON |",
        "|---|---|---|",
        *("| " + " | ".join(cells) + " |" for cells in rows),
    ]


def _postgres_rows() -> Iterator[tuple[str, str, str]]:
    samples: dict[str, list[tuple[str, str]]] = {}
    notes: dict[str, str] = {}
    for kind in postgres.TYPES:
        if kind.sql in _LEFT_OUT:
            continue
        samples.setdefault(kind.sql, []).extend(filter(_is_short, kind.samples))
        if kind.note:
            notes.setdefault(kind.sql, kind.note)
    for sql, found in samples.items():
        note = "; ".join(text for text in (_OWN.get(sql), _described(sql, notes)) if text)
        shown = found[:1] + found[-1:] * (len(found) > 1)
        for place, (value, text) in enumerate(shown):
            name = f"`{sql}`" + (f": {note}" if note else "") if place == 0 else ""
            yield name, _code(value), _code(text)


def _described(sql: str, notes: dict[str, str]) -> str:
    """Return a note without what ``_OWN`` says better."""
    note = notes.get(sql, "")
    return note.partition(": ")[2] if sql in _OWN else note


def _mysql_rows() -> Iterator[tuple[str, str, str]]:
    seen = set()
    for table in mysql.TABLES:
        columns = _split(table.columns)
        where = {"mysql": " (MySQL)", "mariadb": " (MariaDB)"}.get(table.only, "")
        for row, expected in zip(table.rows, table.expected, strict=False):
            texts = [member.partition('":')[2] for member in _split(expected[1:-1])]
            for column, value, text in zip(columns, _split(row), texts, strict=False):
                sql = _type_of(column)
                if (
                    sql
                    and not {sql, sql + where} & seen
                    and text != "null"
                    and _is_short((value, text))
                ):
                    seen.add(sql + where)
                    yield f"`{sql}`{where}", _code(value), _code(text)


def _type_of(column: str) -> str:
    """Return a column's type; nothing for what is no column or has an odd name."""
    name = re.match(r"\w+ ", column)
    if name is None or name.group() == "primary ":
        return ""
    rest = column[name.end() :]
    while (shorter := _ATTRIBUTES.sub("", rest)) != rest:
        rest = shorter
    return rest


def _split(text: str) -> list[str]:
    """Cut at the commas that stand in no quotes and no brackets."""
    parts, depth, quote, start = [], 0, "", 0
    for at, letter in enumerate(text):
        if quote:
            if letter == quote and text[at - 1] != "\\":
                quote = ""
        elif letter in "'\"`":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]


def _is_short(sample: tuple[str, str]) -> bool:
    return all(len(text) <= _WIDTH and text.isprintable() for text in sample)


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}".replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
