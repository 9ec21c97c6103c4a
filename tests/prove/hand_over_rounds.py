"""A round: hand-overs of several pipelines over the same tables, whose writers never stop.

What a hand-over costs besides its own pipeline, the round has once: tables, writers, and the
history that others read of them.
"""

import time
from collections.abc import Mapping
from typing import Any

import psycopg

from tests.oracle.readers import NameOf
from tests.prove.hand_over_run import HandOverRun, History
from tests.prove.hot_tables import PLAIN, HotTables, rows_after
from tests.prove.unit import Case, Task
from tests.servers import mysql, postgres, sql
from tests.servers.process import Server
from tests.sources.turso.shop_run import Shop, name_of

PAUSES_S = (0.1, 0.05, 0.02)
"""Of each writer between two transactions, by round."""
SERVERS = {
    "mysql": "mysql",
    PLAIN: "mysql_plain",
    "mysql replica": "mysql",
    "mariadb": "mariadb",
    "postgres": "postgres",
    "postgres standby": "postgres",
}
"""The server that writers write to, by source."""
FILES = ("turso native", "turso triggers")
SOURCES = (*SERVERS, *FILES)
_PAUSE_S = 0.02
"""Of who waits for a pipeline between two looks."""
_APPLIED_S = 600
_REPEATS = "postgres standby"
"""Its views may contain a little more than is known of them."""


class Tables:
    """Tables of a server, and the pipelines that hand over from them.

    Args:
        task: has the servers.
        source: of ``SERVERS``.
        number: of the round, for names and the writers' pace.
    """

    def __init__(self, task: Task, source: str, number: int) -> None:
        self._task, self._source = task, source
        self._server = task.started[SERVERS[source]]
        kind = source if source == PLAIN else source.split(maxsplit=1)[0]
        name = f"hot_{time.time_ns()}"
        self._hot = HotTables(
            kind, self._server, name, PAUSES_S[number % len(PAUSES_S)], moves=True
        )
        self._other: Server | None = None
        self._slots: list[str] = []
        self._history: History | None = None

    def __enter__(self) -> "Tables":
        if self._source == "mysql replica":
            self._other = mysql.start(self._task.home / "replica", server_id=2)
            sql.execute(
                self._other,
                f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{self._server.host}', "
                f"SOURCE_PORT = {self._server.port}, SOURCE_USER = 'root', "
                "SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1",
                "START REPLICA",
            )
            # It begins with everything that others wrote there before.
            [[executed]] = sql.execute(self._server, "SELECT @@GLOBAL.gtid_executed")
            applied = f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{executed}', {_APPLIED_S})"
            assert sql.execute(self._other, applied) == [(0,)], "the replica does not catch up"
        elif self._source == "postgres standby":
            self._other = postgres.standby(self._server, self._task.home / "standby")
        self._hot.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._hot.end()
        if self._other is not None:
            self._other.kill()
        self._drop_slots()
        self._hot.close()

    def run(self, case: Case) -> HandOverRun:
        """Return a new pipeline over the tables."""
        settings = self._hot.settings
        if self._hot.is_postgres:
            names = f"{self._hot.name}_{len(self._slots)}"
            self._slots.append(names)
            settings |= {"publication": names, "slot": names, "start_position": "latest"}
        return HandOverRun(
            self._task.home / f"run{case['seed']}",
            source_type="postgres" if self._hot.is_postgres else "mysql",
            settings=settings,
            copied_from=self._other and f"{self._other.host}:{self._other.port}",
            sink=case["sink"],
            servers=self._task.started,
            seed=case["seed"],
            may_repeat=self._source == _REPEATS,
        )

    def work(self) -> None:
        """Writers are threads of their own."""
        time.sleep(_PAUSE_S)

    def history(self) -> History:
        """Return the tables' whole history; their writers end."""
        if self._history is None:
            self._hot.end()
            history = self._hot.whole_history()
            assert rows_after(history.changes) == self._hot.rows(), (
                "the oracle does not know the tables"
            )
            self._history = history
        return self._history

    def _drop_slots(self) -> None:
        if not self._slots:
            return
        with psycopg.connect(self._server.dsn(self._hot.name), autocommit=True) as connection:
            for name in self._slots:
                connection.execute(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                    " WHERE slot_name = %s AND NOT active",
                    (name,),
                )


class FileTables:
    """A file of its own for one pipeline; who waits for the pipeline writes to it meanwhile."""

    def __init__(self, task: Task, source: str, number: int) -> None:
        self._task, self._mode = task, source.split()[1]
        self._shop: Shop | None = None
        self._path = task.home / f"shop{number}-{time.time_ns()}.db"

    def __enter__(self) -> "FileTables":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shop is not None:
            self._shop.close()

    def run(self, case: Case) -> HandOverRun:
        """Return a new pipeline over the tables."""
        self._shop = shop = Shop(self._path, self._mode)
        shop.trade(60)
        shop.untriggered = len(shop.history)
        settings = {
            "url": str(self._path),
            "tables": ["customers", "orders"],
            "cdc_mode": self._mode,
            "auto_create_triggers": True,
            "poll_interval_ms": 20,
            "batch_size": 40,
        }
        run = HandOverRun(
            self._task.home / f"run{case['seed']}",
            source_type="turso",
            chunk_rows=(5, 8),
            settings=settings,
            sink=case["sink"],
            servers=self._task.started,
            seed=case["seed"],
        )
        run.source.head()  # Makes the triggers, whose count begins here.
        return run

    def work(self) -> None:
        """Write a little."""
        assert self._shop is not None
        self._shop.trade(2)
        time.sleep(_PAUSE_S)

    def history(self) -> History:
        """Return the shop's whole history."""
        assert self._shop is not None
        return _ShopHistory(self._shop)


class _ShopHistory:
    name_of: NameOf = staticmethod(name_of)

    def __init__(self, shop: Shop) -> None:
        self._shop, self.changes = shop, shop.history

    def count(self, position: Mapping[str, Any]) -> int:
        """Return how many changes lie at or before a position."""
        return self._shop.changes_before(dict(position))
