"""Drivers that are frozen while a write is on its way, and wake up behind their successor."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from tests.engine.exact_run import ExactRun, Place
from tests.engine.frozen import freeze_between_writes
from tests.engine.scripted_run import NAME, PATIENCE_S, Driver
from tests.sinks.http.endpoint import Endpoint
from tests.waiting import wait_for

_BEFORE_S, _GROWS_S = 8, 6
_ESTABLISHED = "01"


class Silenced(Protocol):
    """A destination that can fall silent with its connections open."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


@dataclass
class ZombieRun(ExactRun):
    """A pipeline whose log goes on growing for some seconds, and then ends.

    Attributes:
        keys: rows of the table; a batch and a chunk have half as many.
        rate: transactions per second.
    """

    keys: int = 3000
    rate: int = 400

    def __post_init__(self) -> None:
        half = self.keys // 2
        self.transactions = self.rate * (_BEFORE_S + _GROWS_S)
        self.batch = f"max_events: {half}, max_ms: 50"
        super().__post_init__()
        self.began_ms = int(time.time() * 1000) - _BEFORE_S * 1000
        changes = {
            "keys: 60": f"keys: {self.keys}",
            "chunk_size: 20": f"chunk_size: {half}",
            "intra_table_parallel: true": "intra_table_parallel: false",
            "started_ms: ": f"started_ms: {self.began_ms} # ",
        }
        for old, new in changes.items():
            assert old in self.document
            self.document = self.document.replace(old, new)
        self.control.apply(self.document, "zombie", f"{NAME}-source")

    def frozen_with_a_write_under_way(
        self,
        server: Silenced,
        crash_point: CrashPoint,
        crossing: int,
        is_under_way: Callable[[], object],
    ) -> Driver:
        """Return a driver that was frozen while it wrote to a silent server, which is back now.

        Args:
            server: falls silent when the driver stands at the crash point, and comes back.
            crash_point: in front of the write.
            crossing: which one.
            is_under_way: says whether something was sent to the silent server.
        """
        old = self.start(hold=(crash_point, crossing))
        self.wait_held(old)
        server.pause()
        try:
            self.let_go()
            wait_for("a write to the silent server", is_under_way)
            freeze_between_writes([old.pid], self.directory / "state.db")
        finally:
            server.resume()
        self.held.unlink()
        return old

    def wake(self, old: Driver) -> None:
        """Let the old driver go on, and wait until it has ended."""
        os.kill(old.pid, signal.SIGCONT)
        assert old.wait(PATIENCE_S) != 0

    def last_states(self) -> dict[Any, Any]:
        """Return each row as the sink holds it in the end."""
        states = {}
        for seen in self.seen():
            states[seen.key] = seen.state
        return states

    def _source(self) -> ScriptedSource:
        return ScriptedSource(
            id=f"{NAME}-source", transactions=self.transactions, rows=3, keys=self.keys
        )


def with_settings(place: Place, settings: str) -> Place:
    """Return a place whose sink has further settings."""
    return replace(place, sink=place.sink.replace("config: {", f"config: {{{settings}, "))


def has_unread(port: int) -> bool:
    """Say whether a server on this machine was sent something that it has not read."""
    wanted = f":{port:04X}"
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, queues, *_ = line.split()
            if local.endswith(wanted) and state == _ESTABLISHED and int(queues.split(":")[1], 16):
                return True
    return False


class SilentEndpoint:
    """A webhook endpoint that falls silent with a request that it has read."""

    def __init__(self) -> None:
        self._is_silent = False
        self._waiting = 0
        self.endpoint = Endpoint(judge=self._judge)

    def pause(self) -> None:
        self._is_silent = True

    def resume(self) -> None:
        self._is_silent = False

    def is_waited_for(self) -> bool:
        return self._waiting > 0

    def place(self) -> Place:
        settings = f"{{id: out, url: '{self.endpoint.url}/rows', send_timeout_secs: 5}}"
        sink = f"{{type: http, config: {settings}}}"
        return Place("rows", sink, lambda: [one.body for one in list(self.endpoint.requests)])

    def _judge(self, _: object) -> int:
        self._waiting += 1
        while self._is_silent:
            time.sleep(0.01)
        self._waiting -= 1
        return 204
