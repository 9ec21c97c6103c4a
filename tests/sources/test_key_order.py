"""The chunk of a key that only the server can tell is the one that the row is copied in."""

import json
import random

import pytest

from tests.servers import sql
from tests.sources.mysql import reading as mysql
from tests.sources.postgres import copying as postgres
from tests.sources.postgres.stream_reading import connect

DATABASE = "key_order"
# Cases, accents, blanks at the end, signs and characters of several bytes, which each collation
# has in an order of its own.
LETTERS = "aAbBcCzZäÄßéÉ_- .0129éΩж字😀"
MYSQL = {
    "accents": "varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "spanish": "varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_spanish_ci",
    "western": "varchar(20) CHARACTER SET latin1 COLLATE latin1_german1_ci",
    "bytes": "varbinary(20)",
    "amount": "decimal(12,4)",
    "moment": "datetime(3)",
    "large": "bigint unsigned",
}
POSTGRES = {
    "plain": 'text COLLATE "C"',
    "language": 'varchar(20) COLLATE "und-x-icu"',
    "percents": 'text COLLATE "100%s"',
    "bytes": "bytea",
    "amount": "numeric(12,4)",
    "moment": "timestamp",
}


def drawn(name, kind):
    """Return values of a column, as the driver takes them."""
    source = random.Random(name)
    if "char" in kind or "text" in kind:
        letters = LETTERS if "latin1" not in kind else "aAbBzZäÄßéÉ_- .0129"
        return ["".join(source.choices(letters, k=source.randint(0, 6))) for _ in range(160)]
    if "binary" in kind or kind == "bytea":
        return [source.randbytes(source.randint(0, 6)) for _ in range(160)]
    if kind.startswith(("decimal", "numeric")):
        return [f"{source.randint(-(10**6), 10**6) / 10**4:.4f}" for _ in range(160)]
    if kind.startswith(("datetime", "timestamp")):
        days = (source.randint(1, 28) for _ in range(160))
        return [f"19{source.randint(71, 99)}-0{day % 9 + 1}-{day:02} 01:02:03.5" for day in days]
    return [source.randint(0, 2**64 - 1) for _ in range(160)]


def fill(connection, ignoring, tables):
    with connection.cursor() as cursor:
        for name, kind in tables.items():
            rows = [(number % 3, value) for number, value in enumerate(drawn(name, kind))]
            before, behind = ignoring
            sql = f"INSERT {before} INTO {name} VALUES (%s, %s) {behind}"
            cursor.executemany(sql, rows)
    connection.commit()
    connection.close()


def misplaced(snapshotter, names):
    """Return by table the keys that are not in the chunk that is said, and how many are unknown."""
    found = {}
    for name in names:
        chunks = list(snapshotter.plan(30, [name]))
        assert len(chunks) > 3
        copied = [
            (at, json.loads(key, parse_float=str))
            for at, chunk in enumerate(chunks)
            for batch in snapshotter.read(chunk, "run")
            for key in batch.rows["key"].to_pylist()
        ]
        said = snapshotter.chunks_of(chunks, [key for _, key in copied])
        wrong = [key for (at, key), place in zip(copied, said, strict=True) if at != place]
        if wrong:
            found[name] = wrong[:5]
    return found


@pytest.mark.parametrize("server", ["mysql", "mariadb"])
def test_mysql_says_which_chunk_a_key_is_in(server, request):
    server = request.getfixturevalue(f"{server}_server")
    tables = MYSQL if server.name != "mysql" else {**MYSQL, "newer": "varchar(20)"}
    mysql.fresh_database(
        server,
        DATABASE,
        *(
            f"CREATE TABLE {name} (part int, k {kind}, PRIMARY KEY (part, k)) CHARSET utf8mb4"
            for name, kind in tables.items()
        ),
    )
    fill(sql.connect(server, DATABASE), ("IGNORE", ""), tables)
    snapshotter = mysql.source_of(server, DATABASE).open_snapshot()

    assert misplaced(snapshotter, [f"{DATABASE}.{name}" for name in tables]) == {}
    snapshotter.close()


def test_postgres_says_which_chunk_a_key_is_in(postgres_server):
    postgres.fresh_database(
        postgres_server,
        DATABASE,
        """CREATE COLLATION "100%s" (provider = icu, locale = 'und')""",
        *(
            f"CREATE TABLE {name} (part int, k {kind}, PRIMARY KEY (part, k))"
            for name, kind in POSTGRES.items()
        ),
    )
    connection = connect(postgres_server, DATABASE)
    connection.autocommit = False
    fill(connection, ("", "ON CONFLICT DO NOTHING"), POSTGRES)
    snapshotter = postgres.begun(postgres.source_of(postgres_server, DATABASE))

    assert misplaced(snapshotter, [f"public.{name}" for name in POSTGRES]) == {}
    snapshotter.close()
    postgres.drop_slots(postgres_server, DATABASE)
