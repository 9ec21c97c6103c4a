"""The process in which a script runs, and the watch over what a call of it may use.

V8 ends its whole process when it runs out of memory, and loops inside its own functions cannot be
interrupted. In a process of its own both cost a script its state, and nobody else anything.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.processors.javascript.child import (
    ANSWER,
    DONE,
    HEAD,
    LOAD,
    RESET,
    RUN,
)
from airflow_provider_deltaforge.processors.javascript.settings import ScriptLimits

_GLUE = ("kept", "events", "columns", "output", "fields", "script")
_DOORS = "run, load, reserve, desk"
_KEPT = ("PATH", "LD_LIBRARY_PATH")
_START_SECONDS = 60.0
_SHORTEST_WAIT = 0.001
_PIPE_BYTES = 1 << 20
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, which Python 3.10 knows on Linux only


class LimitError(Exception):
    """A call used more than it may, and its interpreter is gone."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__(text)
        self.what = what


class ScriptError(Exception):
    """The script cannot be used; the argument says why."""


class Interpreter:
    """One process with one script in it. Used by one thread.

    Args:
        script: the text of the script.
        limits: what one call may use.

    Raises:
        ScriptError: the script does not compile, or is no processor.
        FatalError: mini-racer is missing.
        RetryableError: no process can be started now.
    """

    def __init__(self, script: str, limits: ScriptLimits) -> None:
        self._script = script
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self.first_logs = b"{}"
        self._start()

    def run(self, columns: Sequence[Any], text: Sequence[Any]) -> bytes:
        """Hand over a batch, in the parts that ``script_input`` made, and return the answer.

        Raises:
            LimitError: the call used too much. The next call meets a new interpreter.
        """
        if self._process is None:
            self._start()
        done, answer = self._ask(RUN, columns, text, self._limits.timeout_ms / 1000)
        if not done:
            self.reset()
            raise LimitError("answer", "the script's answer is too long to be written")
        return answer

    def reset(self) -> None:
        """Forget the script's state."""
        if self._process is None:
            self._start()
            return
        self._loaded(*self._ask(RESET, [], [], _START_SECONDS, watched=False))

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            # Closing tries to write what a dead process did not read.
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def _start(self) -> None:
        command = [sys.executable, "-I", str(Path(__file__).with_name("child.py"))]
        command += [_site(), str(self._limits.mem_mb)]
        kept = {key: os.environ[key] for key in _KEPT if key in os.environ}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own file
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env=kept,
            )
        except OSError as error:
            raise RetryableError(f"no process can be started for a script: {error}") from error
        for pipe in (self._process.stdin, self._process.stdout):
            _widen(pipe)
        # The interpreter stops itself as well, in case nobody is left to watch it.
        patience = 2 * self._limits.timeout_ms / 1000 + 1
        asked = {"glue": _glue(), "script": self._script, "patience": patience}
        text = json.dumps(asked).encode()
        try:
            self._loaded(*self._ask(LOAD, [], [text], _START_SECONDS, watched=False))
        except BaseException:
            self.close()
            raise

    def _loaded(self, done: bool, answer: bytes) -> None:  # noqa: FBT001 - what was answered
        if not done:
            self.close()
            raise ScriptError(_reason(json.loads(answer)))
        self.first_logs = answer

    def _ask(
        self,
        kind: int,
        columns: Sequence[Any],
        text: Sequence[Any],
        seconds: float,
        *,
        watched: bool = True,
    ) -> tuple[bool, bytes]:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise FatalError("the interpreter of a script was used after it was closed")
        watch = _Watch(process.pid, self._limits, seconds, watched=watched)
        try:
            head = HEAD.pack(kind, sum(map(len, columns)), sum(map(len, text)))
            _write(process.stdin.fileno(), [head, *columns, *text])
            status, length = ANSWER.unpack(self._read(process.stdout.fileno(), ANSWER.size, watch))
            return status == DONE, self._read(process.stdout.fileno(), length, watch)
        except OSError:
            raise self._gone(watched=watched) from None
        except (LimitError, RetryableError):
            self.close()
            raise

    def _read(self, pipe: int, length: int, watch: "_Watch") -> bytes:
        parts: list[bytes] = []
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while length:
            if not poll.poll(1000 * watch.wait()):
                watch.check()
                continue
            part = os.read(pipe, min(length, _PIPE_BYTES))
            if not part:
                raise self._gone(watched=watch.watched)
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def _gone(self, *, watched: bool) -> Exception:
        """Return why the process ended by itself: V8 ends it when memory runs out."""
        process = self._process
        code = process.wait() if process is not None else None
        self.close()
        if watched:
            return LimitError("memory", f"it used more than mem_mb = {self._limits.mem_mb} MiB")
        return ScriptError(
            f"the interpreter ended while it was loaded (exit code {code}): it needs more than "
            f"limits.mem_mb = {self._limits.mem_mb}, or mini-racer does not work on this machine"
        )


def _write(pipe: int, parts: Sequence[Any]) -> None:
    """Write what lies in several places, without a copy of it."""
    left = [memoryview(part) for part in parts if len(part)]
    while left:
        written = os.writev(pipe, left)
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]


class _Watch:
    """How long a call may still go on."""

    def __init__(self, pid: int, limits: ScriptLimits, seconds: float, *, watched: bool) -> None:
        self.watched = watched
        self._pid = pid
        self._limits = limits
        self._end = time.monotonic() + seconds
        self._cpu_end = _cpu_seconds(pid) + limits.cpu_ms / 1000 if watched else 0.0
        # The processor's time cannot run out before this much time has passed.
        self._cpu_left = limits.cpu_ms / 1000

    def wait(self) -> float:
        """Return for how many seconds nothing can run out."""
        left = self._end - time.monotonic()
        if self.watched:
            left = min(left, self._cpu_left)
        return max(left, _SHORTEST_WAIT)

    def check(self) -> None:
        """Raise if something ran out."""
        if self.watched:
            self._cpu_left = self._cpu_end - _cpu_seconds(self._pid)
            if self._cpu_left <= 0:
                raise LimitError("cpu", f"it used more than cpu_ms = {self._limits.cpu_ms} ms")
        if time.monotonic() < self._end:
            return
        if self.watched:
            text = f"it took more than timeout_ms = {self._limits.timeout_ms} ms"
            raise LimitError("timeout", text)
        raise RetryableError(
            f"no script can be loaded within {_START_SECONDS:.0f} s: busy machine?"
        )


def _cpu_seconds(pid: int) -> float:
    """Return the processor time that a process of ours has used."""
    if sys.platform == "linux":
        try:
            # The kernel's name of another process's clock, as clock_getcpuclockid makes it.
            return time.clock_gettime((~pid << 3) | 2)
        except OSError:
            return 0.0
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _widen(pipe: Any) -> None:
    """Widen a pipe for a whole batch, where the system can."""
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, _SET_PIPE_SIZE, _PIPE_BYTES)


def _reason(refused: dict[str, Any]) -> str:
    if refused["why"] == "slow":
        return "it takes longer than twice limits.timeout_ms and a second to be loaded"
    if refused["why"] == "entry":
        return (
            "it is no processor: define `function processBatch(events) {…}`, or make the script "
            "one function of an event, such as `(event) => {…; return event;}`"
        )
    place = f"line {refused.get('line', 1)}, column {refused.get('column', 1)}"
    what = "it does not compile" if refused["why"] == "parse" else "it throws when it is loaded"
    return f"{what}: {place}: {refused.get('text', '')}"


@cache
def _glue() -> str:
    folder = Path(__file__).with_name("glue")
    parts = [folder.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in _GLUE]
    lines = ["(function () {", '"use strict";', *parts, f"return {{ {_DOORS} }};", "})()"]
    return "\n".join(lines)


def _site() -> str:
    """Return the directory that holds mini-racer, without importing it.

    Raises:
        FatalError: it is not installed.
    """
    found = find_spec("py_mini_racer")
    if found is None or found.origin is None:
        raise FatalError(
            "processor type 'javascript' needs mini-racer: "
            "pip install 'airflow-provider-deltaforge[javascript]'"
        )
    return str(Path(found.origin).parents[1])
