"""Views that open while others commit: their rows tell what they contain.

One oracle judges all orders beside writers that never pause: it finds what is lost and what is
repeated of real tables.
"""

import json
import random
from contextlib import closing

import pytest

from airflow_provider_deltaforge.plugins import SOURCES
from airflow_provider_deltaforge.sources.mysql.catalog import fetch, load_table
from airflow_provider_deltaforge.sources.mysql.connection import server_info
from airflow_provider_deltaforge.sources.mysql.snapshot.exact_cuts import ExactCutFinder
from airflow_provider_deltaforge.sources.mysql.snapshot.text_rows_kernel import shape_of
from airflow_provider_deltaforge.sources.mysql.snapshot.views import log_end, prepare_session
from airflow_provider_deltaforge.sources.shared.table_snapshotter import View
from tests.prove.hot_tables import HotTables
from tests.prove.seam_orders import HandOver
from tests.servers import sql
from tests.sources.mysql.reading import events, fresh_database, source_of
from tests.sources.mysql.stream_reading import batches, tuned

CHUNK_ROWS = 120
HurriedSource = tuned(quiet_views=1, settled_s=10)


def test_beside_writers_that_never_pause_each_view_is_exact(mysql_server, monkeypatch):
    monkeypatch.setitem(SOURCES.shipped, "mysql", f"{__name__}:HurriedSource")
    hot = HotTables("mysql", mysql_server, "exact_cuts", pause_s=0)
    try:
        hot.begin()
        hand_over = HandOver(hot, CHUNK_ROWS)
        hand_over.copy()
        hot.end()
        wrong = hand_over.wrong()
    finally:
        hot.close()

    assert wrong["own"] == []
    assert not hand_over.inexact
    assert wrong["in front"]


class OpenedView:
    """A view of table ``t`` that opened between transactions; nobody else writes to the server.

    Attributes:
        rows: that it shows.
        opened: the log's end when it opened.
        cut: what is found of it; None if nothing is.
    """

    def __init__(self, server, database, before, behind):
        self._server, self._database = server, database
        self.source = source_of(server, database, "t", user="root", ssl_mode="disabled")
        with closing(self.source.connect()) as connection:
            prepare_session(connection)
            executed, since = self._place(connection)
            self._run(before)
            connection.cursor().execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            self.rows = set(fetch(connection, f"SELECT * FROM {database}.t"))
            _, self.opened = self._place(connection)
            self._run(behind)
            _, upto = self._place(connection)
            known = {"gtid_set": executed, "since": since, "upto": upto, "inexact": True}
            schema = load_table(connection, database, "t")
            finder = ExactCutFinder(self.source.connect, decimal_numbers=False)
            args = View(known, 0), schema, shape_of(schema)
            cut = finder.find(connection, server_info(connection), *args).cut
            self.cut = None if cut.get("inexact") else cut

    def left(self):
        """Return the changes behind the cut."""
        return events(batches(self.source, self.cut, self.source.head()))

    @staticmethod
    def _place(connection):
        [[executed]] = fetch(connection, "SELECT @@GLOBAL.gtid_executed")
        return executed, log_end(connection)

    def _run(self, transactions):
        with closing(sql.connect(self._server, self._database, autocommit=False)) as connection:
            for statements in transactions:
                for statement in statements:
                    connection.cursor().execute(statement)
                connection.commit()


def test_a_cut_lies_between_the_last_change_that_a_view_shows_and_the_next(mysql_server):
    fresh_database(
        mysql_server,
        "cut_between",
        "CREATE TABLE t (id varchar(9) COLLATE utf8mb4_0900_ai_ci, n int, v int,"
        " PRIMARY KEY (id, n))",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "INSERT INTO t VALUES ('a', 1, 0), ('b', 1, 0), ('c', 1, 0)",
    )
    before = [
        ["INSERT INTO other VALUES (1)"],
        ["UPDATE t SET v = 1 WHERE id = 'a'", "DELETE FROM t WHERE id = 'b'"],
        ["UPDATE t SET id = 'B' WHERE id = 'c'", "INSERT INTO t VALUES ('é', 2, 7)"],
    ]
    behind = [
        ["UPDATE t SET v = 2 WHERE id = 'a'"],
        ["INSERT INTO t VALUES ('c', 1, 3)"],
        ["DELETE FROM t WHERE id = 'b'"],
    ]
    view = OpenedView(mysql_server, "cut_between", before, behind)

    assert (view.cut["file"], view.cut["pos"]) == view.opened
    left = [(event["op"], json.loads(event["key"])["id"]) for event in view.left()]
    assert left == [("u", "a"), ("c", "c"), ("d", "B")]


@pytest.mark.parametrize("seed", range(4))
def test_at_its_cut_the_log_has_just_the_rows_of_a_view(mysql_server, seed):
    """Of rows that go back and forth, too."""
    chance = random.Random(seed)
    key = "NOT NULL UNIQUE" if seed == 3 else "PRIMARY KEY"
    fresh_database(mysql_server, "forth", f"CREATE TABLE t (id int {key}, v int)")
    sql.execute(mysql_server, "INSERT INTO forth.t VALUES (1, 0), (2, 0), (3, 0)")

    def statement():
        key, other, value = chance.randint(1, 5), chance.randint(1, 5), chance.randint(0, 1)
        choices = (
            f"INSERT INTO t VALUES ({key}, {value}) ON DUPLICATE KEY UPDATE v = {value}",
            f"DELETE FROM t WHERE id = {key}",
            f"UPDATE IGNORE t SET id = {other} WHERE id = {key}",
        )
        return chance.choice(choices)

    def some():
        return [[statement() for _ in range(chance.randint(1, 3))] for _ in range(6)]

    view = OpenedView(mysql_server, "forth", some(), some())
    rows = dict(view.rows)
    for event in view.left():
        before, after = (json.loads(event[name] or "null") for name in ("before", "after"))
        if before is not None:
            assert rows.pop(before["id"]) == before["v"]
        if after is not None:
            assert after["id"] not in rows
            rows[after["id"]] = after["v"]
    assert rows == dict(sql.execute(mysql_server, "SELECT id, v FROM forth.t"))


TWO = ["INSERT INTO t (id, v) VALUES (2, 0)"]
PLAIN = "CREATE TABLE t (id int PRIMARY KEY, v int, w int)"


@pytest.mark.parametrize(
    ("create", "before"),
    [
        ("CREATE TABLE t (id float PRIMARY KEY, v int)", [TWO]),
        ("CREATE TABLE t (id int, v int)", [TWO]),
        (PLAIN, [TWO, ["TRUNCATE t"]]),
        (PLAIN, [TWO, ["ALTER TABLE t ADD x int"]]),
        (PLAIN, [["SET SESSION binlog_row_image = MINIMAL", *TWO, "UPDATE t SET v = 1"]]),
    ],
    ids=["inexact key", "no key", "truncated", "altered", "parts of rows"],
)
def test_what_rows_do_not_tell_stays_open(mysql_server, create, before):
    fresh_database(mysql_server, "open_cut", create, "INSERT INTO t (id, v) VALUES (1, 0)")
    assert OpenedView(mysql_server, "open_cut", before, [["DELETE FROM t"]]).cut is None
