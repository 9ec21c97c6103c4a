"""Networks, disks, clocks and servers that fail under a pipeline."""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.arena import Arena, seconds_until
from tests.engine.scripted_run import NAME, PATIENCE_S, Driver, kill
from tests.servers.process import Server

_HEARD_S = 100.0
"""After so long a source that says nothing has to show."""
_DEAD_S = 120.0
# libfaketime would do it from outside, but breaks Python's sleep where the clock is behind.
_RUN = (
    "import sys, time; shift = int(sys.argv[2]); wall, wall_ns = time.time, time.time_ns; "
    "time.time = lambda: wall() + shift; time.time_ns = lambda: wall_ns() + shift * 10**9; "
    "from airflow_provider_deltaforge.engine.driver.local import run_local; "
    "from airflow_provider_deltaforge.storage.location import StoreLocation; "
    "sys.exit(run_local(sys.argv[1], StoreLocation.from_environment(), 1))"
)


class UnavailableError(RuntimeError):
    """This machine has not what an attack needs."""


def half_open(arena: Arena) -> list[str]:
    """Let the source fall silent without closing a connection: the status has to say so."""
    driver = arena.begin()
    arena.wait_running(driver)
    arena.ledger.write(30)
    arena.wait_caught_up(driver)
    assert arena.proxy is not None
    arena.proxy.silence()
    arena.ledger.write(30)

    def shows() -> bool:
        told = arena.status()
        return told.status != "running" or bool(told.reason) or (told.lag_ms or 0) > 20_000

    shown = seconds_until(shows, _HEARD_S)
    arena.proxy.heal()
    wrong = [] if shown is not None else [f"nothing heard for {_HEARD_S:.0f} s, and status running"]
    return wrong + arena.finish(_living(arena, driver))


def slow(arena: Arena, delay_s: float = 0.05) -> list[str]:
    """Make every piece of the source's network wait: late is not lost."""
    assert arena.proxy is not None
    arena.proxy.delay_s = delay_s
    driver = arena.begin()
    arena.wait_running(driver)
    arena.ledger.write(300)
    return arena.finish(driver)


def restarted(arena: Arena, server: Server, *, gently: bool) -> list[str]:
    """End a server under a pipeline, with or without asking it, and start it again."""
    driver = arena.begin()
    arena.wait_running(driver)
    for _ in range(2):
        arena.ledger.write(40)
        (server.stop if gently else server.kill)()
        server.start_again()
        arena.ledger.write(40)
    return arena.finish(_living(arena, driver))


@contextlib.contextmanager
def small_disk(place: Path, kib: int) -> Iterator[Path]:
    """Mount a small file system.

    Raises:
        UnavailableError: this process may not mount.
    """
    place.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(words, check=False).returncode:
        raise UnavailableError("mounting a small file system takes root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def full_disk(arena: Arena, disk: Path, *, of_store: bool) -> list[str]:
    """Fill the disk under the store or the file sink, and make room again."""
    driver = arena.begin()
    arena.wait_running(driver)
    arena.ledger.write(30)
    arena.wait_caught_up(driver)
    fill(disk)
    arena.ledger.write(200)

    def shows() -> bool:
        told = arena.status()
        return told.status != "running" and bool(told.reason)

    shown = seconds_until(shows, _DEAD_S)
    said = arena.status().words
    (disk / "filler").unlink()
    what = "store" if of_store else "sink"
    wrong = [] if shown is not None else [f"the {what}'s disk is full, and the status is: {said}"]
    return wrong + arena.finish(_living(arena, driver))


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as filler:
        for size in (1 << 16, 1 << 12, 1 << 9):
            try:
                while True:
                    filler.write(b"x" * size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def wrong_clock(arena: Arena, shift_s: int) -> list[str]:
    """Run a driver whose clock is wrong, kill it, and let one take over whose clock is right."""
    driver = _process(arena, shift_s)
    arena.wait_running(driver)
    arena.ledger.write(30)
    arena.wait_caught_up(driver)
    false = seconds_until(lambda: arena.status().status != "running", 15)
    wrong = [f"it lives, and the status is {arena.status().words}"] if false is not None else []
    kill(driver.pid)
    driver.wait(PATIENCE_S)
    dead = seconds_until(lambda: arena.status().status != "running", _DEAD_S)
    if dead is None:
        wrong.append(f"dead for {_DEAD_S:.0f} s, and the status is {arena.status().words}")
    arena.ledger.write(30)
    return wrong + arena.finish(_living(arena, driver))


def _process(arena: Arena, shift_s: int) -> Driver:
    """Start a driver in a Python of its own, whose clock is shifted before it imports anything."""
    _, told = arena._job(None)
    with arena.log.open("ab") as log:
        driver = subprocess.Popen(
            [sys.executable, "-c", _RUN, NAME, str(shift_s)],
            env=told,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    arena.drivers.append(driver)
    return driver


def _living(arena: Arena, driver: Driver) -> Driver:
    """Return the driver, or one in its place: whoever supervises starts it again."""
    if driver.poll() is None:
        return driver
    arena.want("running")
    return arena.begin()


def older(arena: Arena, server: Server, data: Path) -> list[str]:
    """Let a sink come back with the data of an hour ago: no gap, or a stop that says why."""
    driver = arena.begin()
    arena.wait_running(driver)
    arena.ledger.write(60)
    arena.wait_caught_up(driver)
    server.stop()
    kept = data.with_name("kept")
    shutil.copytree(data, kept)
    server.start_again()
    arena.ledger.write(120)
    arena.wait_caught_up(driver)
    server.kill()
    shutil.rmtree(data)
    kept.rename(data)
    _give_back(data)
    server.start_again()
    arena.ledger.write(60)

    def stopped() -> bool:
        told = arena.status()
        return told.status in ("failed", "blocked") and told.error_class == "position_lost"

    def settled() -> bool:
        return driver.poll() is not None or stopped() or arena.is_caught_up()

    seconds_until(settled, PATIENCE_S)
    told = arena.status()
    if driver.poll() is not None or stopped():
        return [] if told.reason and told.status != "running" else [f"it stopped: {told.words}"]
    return arena.finish(driver)


def _give_back(data: Path) -> None:
    owner = data.parent.stat()
    for path in [data, *data.rglob("*")]:
        os.chown(path, owner.st_uid, owner.st_gid)
