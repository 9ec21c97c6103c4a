"""A shop under load, delivered exactly once to every sink that can, killed again and again.

One pipeline has them all: a kill at a crash point is one for each sink, and finds them at different
places.
"""

import contextlib
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_deltaforge.control import pipelines, snapshots
from airflow_provider_deltaforge.control.snapshots import CopySelection
from airflow_provider_deltaforge.engine.base.crash_points import HOLD_VARIABLE, CrashPoint
from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.spec.variables import INLINE_PREFIX
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from tests.e2e.exact_kills import Kill, planned
from tests.e2e.exact_sources import SHOPS, WIDER, Shop
from tests.engine.exact_run import PLACES, Place, new_place
from tests.engine.scripted_run import NAME, PATIENCE_S, Driver, ScriptedRun
from tests.engine.spark_kills import (
    REQUEST_BORDERS,
    Stage,
    Victim,
    end_family,
    kill_victim,
    started,
)
from tests.oracle.readers import seen_in, whole_lines
from tests.oracle.verdict import Change, bare, judge, without_empty
from tests.servers.process import Server

_ENOUGH = 100
"""Changes that each sink must get after the last kill."""
_MISSED = 200
"""Transactions that a sink misses while it is away."""


DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: {source}
    config:
      {{id: {name}-source, snapshot: {{mode: {snapshot}, chunk_size: 60}}, {settings}}}
  batch: {{max_events: 30, max_ms: 20}}
  sinks: [{sinks}]
"""


@dataclass
class ExactShop(ScriptedRun):
    """One pipeline over a shop of its own, whose writers work from the beginning.

    ``transactions`` and ``rate`` are a scripted log's and mean nothing here.
    """

    servers: Mapping[str, Server] = field(default_factory=dict)
    """The source and the kinds of ``PLACES``."""
    source: str = "mysql"
    """Of ``SHOPS``."""
    exactly_once: bool = True
    optional: str | None = None
    """The sink that the others do not wait for."""
    with_file: bool = False
    """Whether a file gets everything, too: at least once."""
    shared: Stage | None = None
    """The cluster that it runs on."""
    kills: int = 0
    """Holds that were asked for."""
    ids: dict[str, str] = field(init=False)
    """Of the sinks, by kind."""
    places: dict[str, Place] = field(init=False)
    shop: Shop = field(init=False)

    def __post_init__(self) -> None:
        self.dsn = self.dsn or f"sqlite:///{self.directory}/state.db"
        pause_s = 0.1 if self.master else 0.02
        self.shop = SHOPS[self.source](self.servers.get(self.source), pause_s, self.directory)
        # Servers are shared, and a sink's own position is found by the names of pipeline and sink.
        self.ids = {kind: f"{kind}-{uuid.uuid4().hex[:8]}" for kind in PLACES}
        self.places = {
            kind: new_place(kind, self.servers[kind].dsn(), name) for kind, name in self.ids.items()
        }
        if self.with_file:
            output = self.directory / "out.jsonl"
            self.ids["file"] = "out"
            self.places["file"] = Place(
                "out",
                f"{{type: file, config: {{id: out, path: '{output}'}}}}",
                lambda: whole_lines(output),
            )
        self.document = DOCUMENT.format(
            name=NAME,
            source=self.shop.type,
            snapshot=self.snapshot,
            settings=self.shop.settings,
            sinks=", ".join(place.sink for place in self.places.values()),
        )
        if self.optional:
            named = f"{{id: {self.ids[self.optional]},"
            self.document = self.document.replace(
                named, f"{named} required: false, send_timeout_secs: 2,"
            )
        if not self.exactly_once:
            self.document = self.document.replace("exactly_once: true", "exactly_once: false")
        self.store = StoreLocation.from_dsn(self.dsn).create()
        pipelines.apply(self.store, self.document)
        self.control = Control(self.store, NAME)
        self.want("running")
        self.log = self.directory / "driver.log"
        self.shop.writers.__enter__()

    @property
    def held(self) -> Path:
        """Of the hold that comes next."""
        return self.directory / f"held{self.kills}"

    def hold_next(self, kill: Kill | None) -> None:
        """Let processes that start from now on be held there, or nowhere."""
        self.kills += 1
        self._known_behind = self._times_behind()
        asked = f"{kill.crash_point.value}:{kill.crossing}:{self.held}" if kill else ""
        self._asked.write_text(asked)

    def let_go(self) -> None:
        """Let everything go on that was held until now."""
        for number in range(1, self.kills):
            (self.directory / f"held{number}").write_text("go")

    def driven(self) -> Driver:
        """Start a driver."""
        asked = f"@{self._asked}"
        self.extra_environment = {HOLD_VARIABLE: asked}
        # Executors inherit nothing, the secrets that the document holds itself included.
        secrets = {key: told for key, told in os.environ.items() if key.startswith(INLINE_PREFIX)}
        given = {HOLD_VARIABLE: asked, **secrets} if self.shared else {}
        settings = {f"spark.executorEnv.{key}": told for key, told in given.items()}
        return started(self, self.shared, settings=settings)

    def began(self) -> Mapping[str, Any] | None:
        """Return where the stream begins, if that is known."""
        copy = Snapshots(self.store, NAME).current() if self.snapshot != "never" else None
        return copy.start_position if copy is not None else self.checkpoints().get("kafka")

    @property
    def _asked(self) -> Path:
        return self.directory / "hold"

    def checkpoints(self) -> Mapping[str, Mapping[str, Any]]:
        """Return where each sink's checkpoint stands, by kind."""
        found = Checkpoints(self.store, NAME, f"{NAME}-source").load()
        return {kind: found[name] for kind, name in self.ids.items() if name in found}

    def provoke(self, crash_point: CrashPoint, driver: Driver) -> None:
        """Let happen what leads to a crash point that batches alone do not reach."""
        if crash_point is CrashPoint.SCHEMA_REGISTERED:
            self.shop.widen()
        elif crash_point in REQUEST_BORDERS:
            snapshots.request(self.store, NAME, CopySelection(), f"copy{self.kills}", "a chain")
        elif crash_point is CrashPoint.SINK_LEFT:
            self.wait_moved(driver)
            self.servers[self.optional or ""].pause()
        elif crash_point is CrashPoint.CAUGHT_UP_WRITTEN:
            self._wait(self._is_behind, driver)
            self.wait_written(_MISSED)
            self.servers[self.optional or ""].resume()

    def _is_behind(self) -> bool:
        # Its status may still be what the driver that was killed said of it.
        return self._times_behind() > self._known_behind

    def _times_behind(self) -> int:
        return self.log.read_text().count("is behind;") if self.log.exists() else 0

    def wait_written(self, more: int) -> None:
        """Wait until the writers have made some more transactions."""
        writers = self.shop.writers
        wanted = writers.transactions + more
        self._wait(lambda: writers.transactions >= wanted)

    def wait_moved(self, driver: Driver) -> None:
        """Wait until every sink has been given more."""
        source = load(self.document, {}).spec.source
        head = source.head()
        self._wait(
            lambda: (
                len(at := self.checkpoints()) == len(self.ids)
                and all(source.compare(each, head) >= 0 for each in at.values())
            ),
            driver,
        )

    def finish(self, driver: Driver) -> None:
        """Wait for some more work; let the writers end, and every sink come to the log's end."""
        self.wait_written(_ENOUGH)
        self.shop.writers.__exit__()
        self.shop.settle()
        self._wait(lambda: all(r.settled for r in snapshots.requests(self.store, NAME)), driver)
        self.wait_moved(driver)

    def wrong(self, kind: str, truth: Sequence[Change]) -> list[str]:
        """Ask the oracle: every change, once where that is promised, in order per row."""
        seen = seen_in(self.places[kind].read(), self.shop.name_of)
        table = None
        if self.with_file:  # Copies of rows show the column that came meanwhile.
            truth, seen = without_empty(truth, WIDER), without_empty(seen, WIDER)
        if self.snapshot != "never":
            table = {key: bare(row, WIDER) for key, row in self.shop.rows().items()}
        found = judge(truth, seen, table, exactly_once=kind != "file")
        return [f"{kind}: {told}" for told in found]

    def close(self) -> None:
        if self.optional:
            self.servers[self.optional].resume()
        super().close()
        self.shop.close()
        for place in self.places.values():
            place.clear()


@dataclass
class Chain:
    """What came of one pipeline that was killed again and again."""

    source: str
    """Of ``SHOPS``."""
    place: str
    """Without Spark, or on it."""
    seed: int
    kills: list[str] = field(default_factory=list)
    """Border, crossing and victim, in turn."""
    changes: int = 0
    """That each sink had to get."""
    wrong: list[str] = field(default_factory=list)
    result: str = "ok"
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


_RESTARTS = {Victim.PROCESS, Victim.JVM, Victim.APPLICATION}
"""Whose death ends the driver; Spark starts another worker, or executor, under the same one."""


def run_chain(
    place: str,
    seed: int,
    directory: Path,
    servers: Mapping[str, Server],
    *,
    source: str = "mysql",
    victims: Sequence[Victim] = (),
    exactly_once: bool = True,
) -> Chain:
    """Kill a pipeline at every crash point of a stream, in any order, and ask what the sinks hold.

    Args:
        place: of ``VICTIMS``.
        seed: chooses the order of the crash points, at which crossing, and who dies.
        directory: an own, empty directory.
        servers: the source's, and those of ``PLACES``.
        source: of ``SHOPS``.
        victims: die in turn; without them those of ``VICTIMS``.
        exactly_once: what the document asks of each sink; the oracle asks it in any case.
    """
    directory.mkdir(parents=True, exist_ok=True)
    return played(
        Chain(source, place, seed),
        lambda: ExactShop(
            directory,
            master="local[2]" if place == "spark" else None,
            servers=servers,
            source=source,
            exactly_once=exactly_once,
            optional=sorted(PLACES)[seed % len(PLACES)] if place == "behind" else None,
        ),
        planned(place, seed, victims),
    )


def played(chain: Chain, make: Callable[[], ExactShop], kills: Sequence[Kill]) -> Chain:
    """Play a chain to its end and judge it; nothing of it is left running.

    Args:
        chain: gets what came of it.
        make: makes its pipeline.
        kills: in turn.
    """
    clock = time.monotonic()
    drivers: list[Driver] = []
    run = make()
    try:
        chain.wrong = _played(run, chain, drivers, kills)
    except (AssertionError, subprocess.TimeoutExpired, DeltaForgeError, OSError) as error:
        chain.wrong = [f"{type(error).__name__}: {error}"]
    finally:
        for driver in drivers:
            with contextlib.suppress(ProcessLookupError):
                end_family(driver)
        run.close()
    chain.result = "wrong" if chain.wrong else "ok"
    chain.seconds = round(time.monotonic() - clock, 1)
    return chain


def _played(
    run: ExactShop, chain: Chain, drivers: list[Driver], kills: Sequence[Kill]
) -> list[str]:
    start = None
    run.hold_next(kills[0])
    drivers.append(run.driven())
    for kill, following in zip(kills, [*kills[1:], None], strict=True):
        run.provoke(kill.crash_point, drivers[-1])
        held = run.wait_held(drivers[-1])
        start = start or run.began()
        # What is started by the kill itself, or after it, is held at the next crash point.
        run.hold_next(following)
        kill_victim(kill.victim, held, drivers[-1], run.shared)
        chain.kills.append(str(kill))
        if kill.victim in _RESTARTS:
            drivers[-1].wait(PATIENCE_S)
            drivers.append(run.driven())
        # What outlived the kill goes on now, beside what is new: the fence must hold.
        run.let_go()
    run.finish(drivers[-1])
    code = run.stop(drivers[-1])
    truth = run.shop.changes(start or {})
    chain.changes = len(truth)
    wrong = [told for kind in run.ids for told in run.wrong(kind, truth)]
    if code != 0:
        wrong.append(f"the driver ended with {code}")
    if len(truth) < _ENOUGH:
        wrong.append("the writers did too little: this proves nothing")
    unserved = [r.state for r in snapshots.requests(run.store, NAME) if r.state != "done"]
    return wrong + [f"a requested copy is {state}" for state in unserved]
