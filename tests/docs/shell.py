"""Types what a page shows, in a folder of its own, and holds what comes against what is shown."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from typer.testing import CliRunner

from airflow_provider_deltaforge.cli.app import app
from tests.docs.pages import Block, commands, lines

_STAYS = {("deltaforge", "run"), ("deltaforge", "serve")}
"""Commands that go on until somebody ends them."""


_QUESTIONS = ("deltaforge status", "deltaforge dlq list", "deltaforge sinks list", "tail ", "curl ")


class Shell:
    """A folder, and the processes that were started from it.

    Commands of ours run in this process, which is ten times as fast; what stays, and everything
    else, is a process. ``skipped`` begin with words that only readers type.
    """

    def __init__(self, folder: Path, skipped: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self._skipped = skipped
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "400",
        }
        self._environment.pop("DELTAFORGE_STORE", None)
        self._staying: list[subprocess.Popen[bytes]] = []
        self.log = folder / "staying.log"

    def type(self, block: Block) -> None:
        """Do what a block says, in order, and compare what it shows."""
        for line, shown in shown_lines(block):
            if not line.startswith(self._skipped or ("\0",)):
                self._do(line, shown, str(block))

    def _do(self, line: str, shown: list[str], place: str) -> None:
        [*_, last] = commands(line, place)
        if last.words[:2] == ("deltaforge", "run"):
            line += " --api-addr off"  # Tests run side by side.
        if last.words[:2] in _STAYS and not shown:
            self.start(line)
            return

        self.ask(line, shown, place, 30 if line.startswith(_QUESTIONS) else 0)

    def ask(self, line: str, shown: list[str], place: str = "", patience_s: float = 30) -> None:
        """Run a line until it prints what is shown, which may come a moment later: rows travel."""
        until = time.monotonic() + patience_s
        while True:
            code, said = self.run(line)
            if (code == 0 or shown) and matches(shown, said):
                return
            assert time.monotonic() < until, f"{place} {line}: {code}\n{said}\nnot\n{shown}"
            time.sleep(0.1)

    def run(self, line: str) -> tuple[int, str]:
        """Run a line that ends; return its exit code and what it prints."""
        words = [command.words for command in commands(line, "")]
        is_plain = len(words) == 1 and not re.search(r"[<>|&$`]|^\w+=", line)
        if is_plain and words[0][0] == "deltaforge" and words[0][:2] not in _STAYS:
            with _inside(self.folder):
                done = CliRunner().invoke(app, [*words[0][1:]], env=self._environment)
            if done.output:
                return done.exit_code, done.output
        # An error's words are those of the whole program.
        ended = subprocess.run(
            ["bash", "-c", line],
            check=False,
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return ended.returncode, ended.stdout

    def start(self, line: str) -> None:
        """Start what stays."""
        with self.log.open("ab") as log:
            started = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._staying.append(started)

    def kill(self) -> None:
        """Kill what was started last, as the system kills what takes too much memory."""
        os.killpg(self._staying[-1].pid, signal.SIGKILL)
        self._staying[-1].wait()

    def close(self) -> None:
        """End what stays."""
        for process in self._staying:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def shown_lines(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a block with the lines that it prints."""
    rest = block.text.splitlines()
    for line in lines(block):
        rest = rest[line.count("\n") + 1 :]
        shown = []
        while rest and not rest[0].startswith("$ "):
            shown.append(rest.pop(0))
        yield line, shown


def matches(shown: list[str], said: str) -> bool:
    """Return whether every line that is shown comes, in this order, whatever stands for ``…``.

    Blanks count as one, because the width of a table's column follows its contents.
    """
    came = iter(said.splitlines())
    return all(any(_fits(line, each) for each in came) for line in shown if line.strip())


def _fits(shown: str, said: str) -> bool:
    pattern = re.escape(" ".join(shown.split())).replace(r"\ ", r"\s+").replace("…", ".*?")
    return re.fullmatch(pattern, said.strip()) is not None
