"""Runs the units of a proof on some workers at once, and keeps what comes of each at once.

A worker is a process with servers of its own. One that hangs or dies is ended with everything it
started; what its unit has not shown counts as failed, and its files stay.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from tests.prove.unit import Case, Unit
from tests.servers.process import family

_ROOT = Path(__file__).parents[2]
_LOOK_S = 0.5
_LARGE_S = 240.0
"""Units that take longer come first, so that none is left for the end alone."""
_START_S = 600.0
"""For a worker and its servers to start."""
_TRUST_S = 120.0
"""How much work the units' own measure stands for, beside what was seen."""
_SHOWN = 20


class Pool:
    """Some workers.

    Args:
        jobs: how many units run at once.
        directory: of everything the units write.
        add: takes each case with its unit.
        told: takes what people should read.
    """

    def __init__(
        self,
        jobs: int,
        directory: Path,
        add: Callable[[Unit, Case], None],
        told: Callable[[str], None],
    ) -> None:
        self._jobs = jobs
        self._directory = directory
        self._add = add
        self._told = told
        self._waiting: list[Unit] = []
        self._running: dict[int, tuple[Unit, float]] = {}
        self._spent = self._planned = 0.0
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._failures: list[BaseException] = []

    def run(self, units: Iterable[Unit], watch: Callable[[], None] = lambda: None) -> None:
        """Run all units; call ``watch`` twice a second.

        Raises:
            BaseException: whatever interrupted it; no process of a worker is left then.
        """
        self._waiting = ordered(units)
        threads = [
            threading.Thread(target=self._serve, args=(number,), name=f"job{number}")
            for number in range(min(self._jobs, len(self._waiting)))
        ]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                time.sleep(_LOOK_S)
                watch()
        finally:
            self._ending.set()
            for thread in threads:
                thread.join()
        if self._failures:
            raise self._failures[0]

    def remaining_s(self) -> float:
        """Return about how long the rest takes, by the units' own measure and what was seen."""
        with self._lock:
            now = time.monotonic()
            rest = [unit.seconds for unit in self._waiting]
            begun = [max(0.0, unit.seconds - (now - at)) for unit, at in self._running.values()]
            pace = (_TRUST_S + self._spent) / (_TRUST_S + self._planned)
        return pace * max([sum(rest + begun) / self._jobs, *rest[:1], *begun])

    def running(self) -> list[str]:
        """Return what runs now."""
        with self._lock:
            return [f"{unit.area} {unit.name}" for unit, _ in self._running.values()]

    def _serve(self, number: int) -> None:
        worker: Worker | None = None
        last: Unit | None = None
        try:
            while (unit := self._next(number, last)) is not None:
                if worker is None:
                    worker = Worker(self._directory / f"worker{number}-{time.time_ns()}")
                worker = self._play(worker, unit)
                with self._lock:
                    _, began = self._running.pop(number)
                    self._spent += time.monotonic() - began
                    self._planned += unit.seconds
                last = unit
        except BaseException as error:  # noqa: BLE001 - told by run()
            self._failures.append(error)
            self._ending.set()
        finally:
            if worker is not None:
                worker.end()

    def _next(self, number: int, last: Unit | None) -> Unit | None:
        """Return what to do now: preferably something for which the servers are there."""
        with self._lock:
            if self._ending.is_set() or not self._waiting:
                return None
            same = [u for u in self._waiting if last is not None and u.servers == last.servers]
            first = self._waiting[0]
            unit = first if first.seconds > _LARGE_S or not same else same[0]
            if unit is first and first.seconds <= _LARGE_S:
                unit = self._least_common(first)
            self._waiting.remove(unit)
            self._running[number] = (unit, time.monotonic())
            return unit

    def _least_common(self, first: Unit) -> Unit:
        """Return a unit whose servers no other worker has, if there is one."""
        taken = {unit.servers for unit, _ in self._running.values()}
        return next((unit for unit in self._waiting if unit.servers not in taken), first)

    def _play(self, worker: "Worker", unit: Unit) -> "Worker | None":
        """Run one unit; return the worker if it lives."""
        home = self._directory / f"{unit.area}-{unit.name.replace('/', '-')}"
        shutil.rmtree(home, ignore_errors=True)
        began = time.monotonic()
        shown: list[Case] = []

        def add(case: Case) -> None:
            shown.append(case)
            self._add(unit, case)

        error = worker.play(unit, home, add, self._ending)
        if self._ending.is_set() and error is not None:
            return worker
        missing = [case for case in unit.cases if not any(has(found, case) for found in shown)]
        seconds = round(time.monotonic() - began, 1)
        for case in missing:
            told = error or "it ended without a result"
            add({**case, "result": "wrong", "wrong": [told], "seconds": seconds})
        wrong = [case for case in shown if case.get("result") == "wrong"]
        if wrong or error:
            self._tell(unit, wrong, home, worker)
        else:
            shutil.rmtree(home, ignore_errors=True)
        if worker.lives():
            return worker
        worker.end()
        return None

    def _tell(self, unit: Unit, wrong: Sequence[Case], home: Path, worker: "Worker") -> None:
        lines = [f"{unit.area} {unit.name} did not hold; kept in {home}, log {worker.log}"]
        for case in wrong[:_SHOWN]:
            lines += [f"  {str(line)[-1500:]}" for line in case.get("wrong", [])]
        self._told("\n".join(lines))


def has(found: Case, case: Case) -> bool:
    """Return whether a result is that of a case."""
    return case.items() <= found.items()


def ordered(units: Iterable[Unit]) -> list[Unit]:
    """Return units as they should start: the longest first, then those that share servers."""
    return sorted(
        units,
        key=lambda unit: (
            (0, -unit.seconds, ())
            if unit.seconds > _LARGE_S
            else (1, -unit.seconds // 20, unit.servers)
        ),
    )


class Worker:
    """One process that runs units.

    Args:
        directory: of its servers.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True)
        self.log = directory / "worker.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *self._command()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=_ROOT,
                start_new_session=True,  # Ctrl-C is for the pool alone.
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self._rest = b""

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "tests.prove.worker", str(self._directory / "servers")]

    def play(
        self, unit: Unit, home: Path, add: Callable[[Case], None], ending: threading.Event
    ) -> str | None:
        """Run a unit; return why it has not come to its end, or None.

        Args:
            unit: to run.
            home: its directory.
            add: takes each case that it shows.
            ending: ends it at once.
        """
        asked = {
            "run": unit.run,
            "cases": list(unit.cases),
            "home": str(home),
            "servers": list(unit.servers),
        }
        deadline = time.monotonic() + _START_S
        try:
            self._send(asked)
            while not ending.is_set() and time.monotonic() < deadline:
                for told in self._read():
                    if "ended" in told:
                        return told["error"] or None
                    if "begun" in told:
                        deadline = time.monotonic() + unit.limit_s
                    else:
                        add(told)
        except OSError as error:
            code = self._process.wait()
            self.end()
            return f"its worker ended with {code} ({error}); its log is {self.log}"
        self.end()
        return f"ended after {unit.limit_s:.0f} s: it hung; the worker's log is {self.log}"

    def lives(self) -> bool:
        """Return whether it can run another unit."""
        return self._process.poll() is None

    def end(self) -> None:
        """End it with everything it has started."""
        if self.lives():
            # First it stands still, so that it starts nothing while its children are ended.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGSTOP)
            deadline = time.monotonic() + 30
            while (rest := _children(self._process.pid)) and time.monotonic() < deadline:
                for pid in rest:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.05)
            self._process.kill()
        self._process.wait()
        shutil.rmtree(self._directory / "servers", ignore_errors=True)

    def _send(self, told: dict[str, Any]) -> None:
        _stream(self._process.stdin).write(json.dumps(told).encode() + b"\n")
        _stream(self._process.stdin).flush()

    def _read(self) -> list[dict[str, Any]]:
        """Return the answers that have come meanwhile.

        Raises:
            OSError: none will come any more.
        """
        descriptor = _stream(self._process.stdout).fileno()
        if not select.select([descriptor], [], [], _LOOK_S)[0]:
            return []
        data = os.read(descriptor, 1 << 16)
        if not data:
            raise BrokenPipeError("its answers have ended")
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


def _children(pid: int) -> list[int]:
    """Return the living descendants of a process; what has ended waits for it to look."""
    return [child for child in family(pid) if child != pid and not _has_ended(child)]


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream
