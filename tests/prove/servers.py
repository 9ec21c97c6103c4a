"""The servers that the chains of one worker share, started when the first one needs them."""

import contextlib
import shutil
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.servers import kafka, mariadb, mysql, nats, postgres, redis
from tests.servers.process import Server, ServerError, family

if TYPE_CHECKING:
    from tests.engine.spark_kills import Stage

_STARTS: dict[str, Callable[[Path], Server]] = {
    "kafka": kafka.start,
    "mariadb": mariadb.start,
    "mysql": mysql.start,
    "mysql_plain": partial(mysql.start, gtid=False),
    "nats": nats.start,
    "postgres": postgres.start,
    "redis": redis.start,
}
_CLUSTER = "cluster"


class Servers:
    """Starts servers below a directory, and ends those that nobody needs any more."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, contextlib.ExitStack] = {}
        self._found: dict[str, Any] = {}

    def only(self, names: Collection[str]) -> dict[str, Server]:
        """Return these servers, and stop the others: two cores have no room for idle ones."""
        for name in set(self._running) - set(names):
            self._stop(name)
        return {name: self._get(name, _STARTS[name]) for name in names if name != _CLUSTER}

    def cluster(self) -> "Stage":
        """Return the Spark cluster."""
        from tests.engine.spark_kills import stage  # The engine, which small units do without.

        if _CLUSTER not in self._found:
            ending = contextlib.ExitStack()
            self._found[_CLUSTER] = ending.enter_context(stage(self._directory / _CLUSTER))
            self._running[_CLUSTER] = ending
        found: Stage = self._found[_CLUSTER]
        return found

    def pids(self) -> set[int]:
        """Return the processes of everything that runs."""
        found: set[int] = set()
        for name, made in self._found.items():
            parts = [made]
            if name == _CLUSTER:
                parts = [made.store, made.cluster.master, made.cluster.worker]
            for server in parts:
                with contextlib.suppress(ServerError):
                    found |= set(family(server.pid))
        return found

    def close(self) -> None:
        """Stop everything."""
        for name in list(self._running):
            self._stop(name)

    def _get(self, name: str, start: Callable[[Path], Server]) -> Server:
        if name not in self._found:
            ending = contextlib.ExitStack()
            server = start(self._directory / name)
            ending.callback(server.stop)
            self._running[name], self._found[name] = ending, server
        server = self._found[name]
        try:
            server.resume()  # A chain may have been ended while it was frozen,
        except ServerError:
            server.start_again()  # or while it was away.
        return server

    def _stop(self, name: str) -> None:
        self._found.pop(name)
        self._running.pop(name).close()
        shutil.rmtree(self._directory / name, ignore_errors=True)
