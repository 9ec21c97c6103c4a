"""Tables that are altered or truncated between the beginning of their first copy and its end."""

import json
import time

from airflow_provider_deltaforge.engine.catch_up.snapshot_seam import SnapshotSeam, TableCuts
from airflow_provider_deltaforge.sources.mysql.snapshot.views import ViewOpener
from tests.servers import sql
from tests.sources.mysql.reading import events, fresh_database, source_of
from tests.sources.mysql.stream_reading import batches
from tests.waiting import wait_until


class Copy:
    """A copy of table ``t`` in two chunks, and the log behind its beginning."""

    def __init__(self, server):
        self.server = server
        fresh_database(
            server,
            "statements",
            "CREATE TABLE t (id int PRIMARY KEY, v int)",
            "INSERT INTO t VALUES (1, 0), (2, 0), (3, 0), (4, 0)",
        )
        self.source = source_of(server, "statements", "t", user="root", ssl_mode="disabled")
        self.reader = self.source.open_snapshot()
        self.start = self.reader.begin()
        self.left = list(self.reader.plan(2))
        self.cuts, self.seen = [], []

    def run(self, *statements):
        sql.execute(self.server, *statements, database="statements")

    def read(self):
        """Read the next chunk."""
        chunk = self.left.pop(0)
        copied = list(self.reader.read(chunk, "run"))
        self.cuts.append((chunk, copied[0].end))
        self.seen += [self.brief(event) for event in events(copied)]

    def deliver(self):
        """Read what is left, then the log; return all that a consumer is given of the log."""
        while self.left:
            self.read()
        self.reader.close()
        self.run("UPDATE t SET v = 99 WHERE id = 2")
        tables = {"statements.t": TableCuts.of(self.source, self.cuts)}
        seam = SnapshotSeam(self.source, tables, [cut for _, cut in self.cuts], lambda *_: None)
        log = batches(self.source, self.start, self.source.head())
        found = [self.brief(event) for event in events(map(seam.without_shown, log))]
        seam.close()
        self.seen += found
        return found

    @staticmethod
    def brief(event):
        row = json.loads(event["after"] or event["before"] or "null")
        return (event["op"], *(row or {"": event["table"]}).values())

    def applied(self):
        """Return the rows that a consumer has who does blindly what events say."""
        rows = {}
        for op, *row in self.seen:
            if op == "t":
                rows = {}
            elif op != "ddl":
                rows[row[0]] = tuple(row)
        return {*rows.values()}

    def table(self):
        return set(sql.execute(self.server, "SELECT * FROM t", database="statements"))


def test_what_all_views_show_of_an_altered_table_does_not_follow(server):
    copy = Copy(server)
    copy.run(
        "UPDATE t SET v = 1 WHERE id = 1",
        "ALTER TABLE t ADD w int DEFAULT 7",
        "UPDATE t SET w = 8 WHERE id IN (1, 4)",
    )

    assert copy.deliver() == [("u", 2, 99, 7)]
    assert copy.seen[:4] == [("r", 1, 1, 8), ("r", 2, 0, 7), ("r", 3, 0, 7), ("r", 4, 0, 8)]
    assert copy.applied() == copy.table()


def test_what_all_views_show_of_a_truncated_table_does_not_follow(server):
    copy = Copy(server)
    copy.run("DELETE FROM t WHERE id = 1", "TRUNCATE t", "INSERT INTO t VALUES (2, 5), (9, 6)")

    assert copy.deliver() == [("u", 2, 99)]
    assert copy.seen[:2] == [("r", 2, 5), ("r", 9, 6)]
    assert copy.applied() == copy.table()


def test_behind_what_some_views_do_not_show_everything_follows(server):
    copy = Copy(server)
    copy.run("UPDATE t SET v = 1 WHERE id IN (1, 4)")
    copy.read()
    copy.run("TRUNCATE t", "INSERT INTO t VALUES (2, 5), (4, 6)", "ALTER TABLE t ADD w int")
    copy.run("UPDATE t SET w = 8")

    assert copy.deliver() == [
        ("t", "t"),
        *[("c", 2, 5), ("c", 4, 6)],
        ("ddl", "_ddl"),
        *[("u", 2, 5, 8), ("u", 4, 6, 8)],
        ("u", 2, 99, 8),
    ]
    assert copy.applied() == copy.table()


def test_a_table_that_takes_the_name_behind_a_view_is_not_read_from_it(server, monkeypatch):
    """As at the end of gh-ost: the view contains a change of the table, but not of its copy."""
    copy = Copy(server)
    begun_s = time.time()
    wait_until(lambda: time.time() > begun_s + 1)  # Servers count seconds.
    copy.run("CREATE TABLE _t_gho LIKE t", "INSERT INTO _t_gho SELECT * FROM t")
    copy.run("UPDATE t SET v = 7 WHERE id = 1")
    real, swapped = ViewOpener.open, []

    def open_and_swap(*opened):
        view = real(*opened)
        if not swapped:
            swapped.append(view)
            copy.run("UPDATE _t_gho SET v = 7 WHERE id = 1")
            copy.run("RENAME TABLE t TO _t_del, _t_gho TO t")
        return view

    monkeypatch.setattr(ViewOpener, "open", open_and_swap)
    copy.deliver()
    assert swapped
    assert (1, 7) in copy.applied()


def test_a_rest_between_chunks_is_longer_than_the_server_keeps_idle_sessions(server):
    sql.execute(server, "SET GLOBAL wait_timeout = 1")
    try:
        copy = Copy(server)
        copy.read()
        begun_s = time.time()
        wait_until(lambda: time.time() > begun_s + 2.5)  # A server looks once a second.
        copy.deliver()
    finally:
        sql.execute(server, "SET GLOBAL wait_timeout = 28800")
    assert copy.applied() == {(1, 0), (2, 99), (3, 0), (4, 0)}
