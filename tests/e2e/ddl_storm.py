"""Tables that change all the time under writers, a copy and restarts: one storm, from a seed."""

import contextlib
import random
import threading

import pymysql

from tests.e2e.shop import connect
from tests.oracle.moving_history import moving_history
from tests.oracle.mysql_history import name_of, new_file, table_rows
from tests.oracle.readers import seen_in
from tests.oracle.verdict import judge
from tests.servers import sql
from tests.servers.process import Server
from tests.sources.mysql.table_run import TableRun
from tests.waiting import wait_for

NAME = "storm"
TABLES = ("t1", "t2")
_TYPES = (
    "INT DEFAULT {n}",
    "BIGINT UNSIGNED DEFAULT {n}",
    "VARCHAR(40) CHARACTER SET utf8mb4 DEFAULT 'größer{n}'",
    "VARCHAR(300) CHARACTER SET latin1 DEFAULT 'e{n}'",
    "DECIMAL(12,2) DEFAULT {n}.25",
    "SMALLINT DEFAULT {n}",
)
_CREATE = (
    "CREATE TABLE {t} (id INT PRIMARY KEY AUTO_INCREMENT, n INT DEFAULT 0, a INT DEFAULT 11, "
    "b INT DEFAULT 22, c VARCHAR(20) CHARACTER SET latin1 DEFAULT 'x')"
)
_LOST_RACES = (pymysql.err.OperationalError, pymysql.err.ProgrammingError, pymysql.err.DataError)


class Storm:
    """One storm over one server.

    Args:
        server: MySQL or MariaDB.
        seed: decides everything but the interleaving.
        full: whether the log names columns.
    """

    def __init__(self, server: Server, seed: int, *, full: bool) -> None:
        self._server = server
        self._chance = random.Random(seed)
        self._count = 0
        self._over = threading.Event()
        names = {True: "FULL", False: "MINIMAL" if server.name == "mysql" else "NO_LOG"}
        sql.execute(
            server,
            f"DROP DATABASE IF EXISTS {NAME}",
            f"CREATE DATABASE {NAME} CHARACTER SET utf8mb4",
            f"SET GLOBAL binlog_row_metadata = {names[full]}",
        )
        self._file = new_file(server)
        self._diary = [{}]
        for table in TABLES:
            self._run(_CREATE.format(t=table))
            sql.execute(
                server,
                f"INSERT INTO {NAME}.{table} (n) WITH RECURSIVE k AS (SELECT 1 AS i UNION ALL "
                f"SELECT i + 1 FROM k WHERE i < 400) SELECT i FROM k",
            )
        self._run_of = TableRun(server, [f"{NAME}.t*"], snapshot="initial")
        self._writing = [threading.Lock() for _ in range(3)]
        self._threads = [
            threading.Thread(target=self._write, args=(seed * 10 + i, writing), daemon=True)
            for i, writing in enumerate(self._writing)
        ]

    def rage(self, statements: int) -> list[str]:
        """Run so many changes and return what the oracle finds wrong."""
        try:
            for thread in self._threads:
                thread.start()
            self._run_of.start()
            for number in range(statements):
                self._change(number)
                if number and number % 15 == 0:
                    self._restart()
            return self._judge()
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join(60)
            if not self._run_of.ended():
                self._run_of.stop()
            sql.execute(self._server, "SET GLOBAL binlog_row_metadata = FULL")

    def _restart(self) -> None:
        """Stop the driver, go on changing tables, and start another one."""
        self._run_of.stop()
        for _ in range(3):
            self._alter(self._chance.choice(TABLES))
        self._run_of.start()

    def _change(self, number: int) -> None:
        kind = self._chance.random()
        table = self._chance.choice(TABLES)
        if kind < 0.08:
            self._caught_up()
            self._swap(table)
            self._caught_up()
        elif kind < 0.13:
            self._appear(number)
        else:
            self._alter(table)
        before = len(self._run_of.values())
        if self._chance.random() < 0.7:
            wait_for("more events", lambda: len(self._run_of.values()) > before + 5)

    def _alter(self, table: str) -> None:
        free = [name for name in self._diary[-1][table] if name not in ("id", "n")]
        kind = self._chance.choice(
            ["add", "add", "list", "swap", "drop", "retype", "move", "index"]
        )
        places = ["", " FIRST", f" AFTER {self._chance.choice(self._diary[-1][table])}"]
        place = self._chance.choice(places)
        if kind == "list" or len(free) < 3:
            self._alter_by(table, f"ADD COLUMN ({self._new()}, {self._new()})")
        elif kind == "add":
            self._alter_by(table, f"ADD COLUMN {self._new()}{place}")
        elif kind == "swap":
            one, two = self._chance.sample(free, 2)
            self._alter_by(table, f"RENAME COLUMN {one} TO {two}, RENAME COLUMN {two} TO {one}")
        elif kind == "drop":
            self._alter_by(table, f"DROP {self._chance.choice(free)}, ADD {self._new()}")
        elif kind == "retype":
            self._count += 1
            kept = self._chance.choice(free)
            text = f"VARCHAR({self._chance.choice([100, 400])}) CHARACTER SET utf8mb4"
            self._alter_by(table, f"CHANGE {kept} r{self._count} {text} DEFAULT 'r{self._count}'")
        elif kind == "move":
            self._alter_by(table, f"MODIFY n BIGINT DEFAULT 0{places[1]}")
        else:
            self._count += 1
            self._alter_by(table, f"ADD INDEX i{self._count} (n)")
            self._alter_by(table, f"DROP INDEX i{self._count}")

    def _alter_by(self, table: str, clause: str) -> None:
        self._run(f"ALTER TABLE {table} {clause}")

    def _new(self) -> str:
        self._count += 1
        return f"c{self._count} {self._chance.choice(_TYPES).format(n=self._count)}"

    def _swap(self, table: str) -> None:
        """Do what gh-ost does, with its names; writers wait so that no row differs."""
        ghost, old = f"_{table}_gho", f"_{table}_del"
        self._run(f"CREATE TABLE {ghost} LIKE {table}")
        self._run(f"ALTER TABLE {ghost} ADD COLUMN {self._new()}")
        names = ", ".join(self._diary[-1][table])
        with contextlib.ExitStack() as calm:
            for writing in self._writing:
                calm.enter_context(writing)
            sql.execute(
                self._server,
                f"INSERT INTO {NAME}.{ghost} ({names}) SELECT {names} FROM {NAME}.{table}",
            )
            self._run(f"RENAME TABLE {table} TO {old}, {ghost} TO {table}")
        self._run(f"DROP TABLE {old}")

    def _appear(self, number: int) -> None:
        """Rename a table with rows into the captured names."""
        self._run(_CREATE.format(t=f"outside{number}"))
        sql.execute(self._server, f"INSERT INTO {NAME}.outside{number} (n) VALUES (1), (2), (3)")
        self._run(f"RENAME TABLE outside{number} TO t_in{number}")

    def _run(self, statement: str) -> None:
        with connect(self._server, NAME) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = '', lock_wait_timeout = 50")
            cursor.execute(statement)
            self._note(cursor)

    def _note(self, cursor: "pymysql.cursors.Cursor") -> None:
        """Write down every table's columns, as the catalog has them now."""
        cursor.execute(
            "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS"
            f" WHERE TABLE_SCHEMA = '{NAME}' ORDER BY TABLE_NAME, ORDINAL_POSITION"
        )
        columns: dict[str, list[str]] = {}
        for table, name in cursor.fetchall():
            columns.setdefault(table, []).append(name)
        self._diary.append(columns)

    def _write(self, seed: int, writing: threading.Lock) -> None:
        chance = random.Random(seed)
        with connect(self._server, NAME) as connection, connection.cursor() as cursor:
            while not self._over.wait(0.004):
                with writing, contextlib.suppress(*_LOST_RACES):
                    for _ in range(chance.randint(1, 4)):
                        table, row = chance.choice(TABLES), chance.randint(1, 600)
                        cursor.execute(
                            chance.choice(
                                [
                                    f"INSERT INTO {table} (n) VALUES ({row})",
                                    f"UPDATE {table} SET n = n + 1 WHERE id = {row}",
                                    f"UPDATE {table} SET n = n + 1 WHERE id = {row}",
                                    f"DELETE FROM {table} WHERE id = {row}",
                                ]
                            )
                        )
                    connection.commit()
                    continue
                connection.rollback()

    def _caught_up(self) -> None:
        source = self._run_of.source()
        head = source.head()
        wait_for(
            "the head of the log",
            lambda: self._run_of.ended() or source.compare(self._run_of.checkpoint(), head) >= 0,
        )
        assert not self._run_of.ended(), self._run_of.driving.outcome

    def _judge(self) -> list[str]:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
        # Every row gets an event that shows it whole, with the columns it has in the end.
        captured = [name for name in self._diary[-1] if name.startswith("t")]
        for table in captured:
            sql.execute(self._server, f"UPDATE {NAME}.{table} SET n = n + 1")
        self._caught_up()
        wait_for("the copies", lambda: all(one.settled for one in self._run_of.requests()))
        self._caught_up()
        stopped = self._run_of.status().stopped_tables
        if stopped:
            return [f"stopped: {dict(stopped)}"]
        failed = [one for one in self._run_of.requests() if one.state != "done"]
        if failed:
            return [f"not copied: {failed}"]
        start = self._run_of.snapshot_start()
        truth = moving_history(self._server, NAME, self._file, start, self._diary)
        truth = [one for one in truth if one.key[0].startswith(f"{NAME}.t")]
        assert len(truth) > 500, "the writers did nothing"
        seen = seen_in(self._run_of.values(), name_of)
        return judge(truth, seen, table_rows(self._server, NAME, captured))
