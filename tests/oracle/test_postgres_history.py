"""What the oracle of PostgreSQL reads, on a real server and in planted text."""

import psycopg
import pytest

from tests.oracle.postgres_history import History, number, read, table_rows, values
from tests.oracle.verdict import UNCHANGED, AllRows, judge
from tests.oracle.verdict import Seen as Event

TABLES = ["public.t", "public.parts"]
NOTE = '"the ""Note"""'


@pytest.fixture(scope="module", params=["postgres_server", "postgres18_server"])
def server(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def told(server):
    """A history with everything in it, and the tables after it."""
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
        connection.execute("CREATE DATABASE told")
    with psycopg.connect(
        server.dsn("told"), autocommit=True, options="-c timezone=UTC"
    ) as connection:
        for statement in (
            f"CREATE TABLE t (id int PRIMARY KEY, {NOTE} text, amount numeric(9,2),"
            " at timestamptz, fine bool)",
            f"ALTER TABLE t ALTER {NOTE} SET STORAGE EXTERNAL",
            "CREATE TABLE noise (id int)",
            "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY LIST (id)",
            "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1)",
        ):
            connection.execute(statement)
        truth = History(server, "told", {"public.parts_1": "public.parts"})
        for transaction in (
            ["INSERT INTO t VALUES (1, E'it''s [a] \\n null', 1.50, '2026-01-02 03:04:05Z', true)"],
            ["INSERT INTO noise VALUES (1)", "INSERT INTO parts VALUES (1)"],
            [f"UPDATE t SET amount = NULL, {NOTE} = repeat('x', 9000)"],
            ["UPDATE t SET id = 5, fine = false"],
            ["INSERT INTO t VALUES (6)", "SAVEPOINT s", "DELETE FROM t", "ROLLBACK TO s"],
            ["DELETE FROM t WHERE id = 6", "TRUNCATE parts, noise"],
        ):
            with connection.transaction():
                for statement in transaction:
                    connection.execute(statement)
    yield truth
    truth.close()


def test_every_kind_of_change_is_read(told):
    changes = told.changes(None, TABLES)

    note = 'the "Note"'
    first = {"id": 1, note: "it's [a] \n null", "amount": "1.50", "fine": True}
    first["at"] = "2026-01-02T03:04:05Z"
    updated = first | {note: "x" * 9000, "amount": None}
    empty = {"id": 6, note: None, "amount": None, "at": None, "fine": None}
    assert [(c.key, c.state, c.moved_from) for c in changes] == [
        (("told.public.t", 1), first, None),
        (("told.public.parts", 1), {"id": 1}, None),
        (("told.public.t", 1), updated, None),
        (
            ("told.public.t", 5),
            updated | {"id": 5, note: UNCHANGED, "fine": False},
            ("told.public.t", 1),
        ),
        (("told.public.t", 6), empty, None),
        (("told.public.t", 6), None, None),
        (AllRows("told.public.parts"), None, None),
    ]
    assert [c.name[1] for c in changes] == [0, 0, 0, 0, 0, 0, 1]
    assert len({c.name[0] for c in changes}) == 6


def test_a_faithful_copy_is_accepted_and_a_row_left_out_is_not(told):
    changes = told.changes(None, TABLES)
    rows = table_rows(told.server, "told", TABLES)
    seen = [Event(c.name, c.key, c.state, str(c.name), c.moved_from) for c in changes]

    assert judge(changes, seen, rows, exactly_once=True) == []
    for left_out in range(len(seen)):
        assert judge(changes, seen[:left_out] + seen[left_out + 1 :], rows) != []


def test_what_a_position_covers_is_left_out():
    lines = [
        ("0/10", "7", "BEGIN 7"),
        ("0/11", "7", "table public.t: INSERT: id[integer]:1"),
        ("0/20", "7", "COMMIT 7"),
        ("0/18", "8", "BEGIN 8"),
        ("0/19", "8", "table public.t: DELETE: id[integer]:1"),
        ("0/30", "8", "COMMIT 8"),
    ]

    def names(lsn):
        placed = read(lines, TABLES, {}, "d")
        return [change.name for place, change in placed if place > number(lsn)]

    # A transaction that began before the position and ends after it counts.
    assert names("0/1F") == [(7, 0), (8, 0)]
    assert names("0/20") == [(8, 0)]
    assert names("0/30") == []


def test_text_that_cannot_be_read_is_no_silence():
    with pytest.raises(ValueError, match="no type 'point'"):
        values("id[integer]:1 at[point]:'(1,2)'")
    with pytest.raises(ValueError, match="cannot read"):
        values("id[integer]:1 and more")
    with pytest.raises(ValueError, match="cannot read"):
        list(read([("0/1", "7", "table broken")], TABLES, {}, "d"))


def test_log_positions_are_numbers():
    assert number("2/A") == (2 << 32) + 10
