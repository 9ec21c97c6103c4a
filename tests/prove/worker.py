"""``python -m tests.prove.worker DIRECTORY``: run the units that come in, one after the other.

A line of JSON is one unit; the answers are lines of JSON, one for each case, and one at its end.
Everything that is printed meanwhile goes to the standard error, which the pool keeps as a log.
"""

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO

from tests.prove.servers import Servers
from tests.prove.unit import Task
from tests.servers.process import family

_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Serve until the standard input ends."""
    # What a driver leaves behind becomes a child of this process, so that it is found and ended.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The pool decides what Ctrl-C means.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import tests.conftest  # noqa: F401 - the environment that the tests' servers and JVMs have

    servers = Servers(Path(sys.argv[1]))
    try:
        for line in sys.stdin:
            _run(json.loads(line), servers, answers)
    finally:
        servers.close()


def _run(unit: dict[str, Any], servers: Servers, answers: TextIO) -> None:
    home = Path(unit["home"])
    home.mkdir(parents=True, exist_ok=True)
    module, _, name = unit["run"].partition(":")
    error = ""
    before = set(family(os.getpid()))
    try:
        started = servers.only(unit["servers"])
        before = set(family(os.getpid()))
        _answer(answers, {"begun": True})
        task = Task(unit["cases"], home, servers, lambda case: _answer(answers, case), started)
        getattr(importlib.import_module(module), name)(task)
    except BaseException as caught:  # noqa: BLE001 - one unit's end is a result
        traceback.print_exc()
        error = f"{type(caught).__name__}: {caught}"[-3000:]
    finally:
        _end_strays(before, servers)
        _answer(answers, {"ended": True, "error": error})


def _end_strays(before: set[int], servers: Servers) -> None:
    """End what a unit has left running; the servers it shares stay."""
    for pid in set(family(os.getpid())) - before - servers.pids():
        with contextlib.suppress(ProcessLookupError):
            if not _keeps_us_going(pid):
                os.kill(pid, signal.SIGKILL)


def _keeps_us_going(pid: int) -> bool:
    """Return whether a process is one of Python's own helpers: it serves every later unit."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True
    return b"multiprocessing.forkserver" in line or b"multiprocessing.resource_tracker" in line


def _answer(answers: TextIO, told: dict[str, Any]) -> None:
    answers.write(json.dumps(told, default=str) + "\n")


if __name__ == "__main__":
    main()
