"""docs/plugins.md does not lie: its folder is made, installed, tested and run as it says."""

import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.waiting import wait_for

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs" / "plugins.md").read_text()
FIRST, _, SECOND = PAGE.partition("\n## A processor\n")
_FILE = re.compile(r"^(Add to )?`([\w./]+)`[^\n]*:\n\n```\w+\n(.*?)^```", re.M | re.S)
SHOWN = [
    re.match(r"deltaforge_ledger/\w+\.py|[\w/]+\.\w+", line).group()
    for line in re.search(r"The folder:\n\n```\n(.*?)```", PAGE, re.S).group(1).splitlines()
]


class Folder:
    """What a reader has at one point of the page."""

    def __init__(self, path):
        self.path = path
        self.environment = {**os.environ, "PYTHONPATH": str(path / "site")}
        self.environment.pop("DELTAFORGE_STORE", None)

    def write(self, chapter):
        for added, name, text in _FILE.findall(chapter):
            file = self.path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{file.read_text()}\n{text}" if added else text)

    def install(self):
        """Install into a folder of its own, where the page takes the reader's environment."""
        options = ("--quiet", "--no-deps", "--upgrade", "--no-build-isolation", "--no-index")
        subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, "--target", "site", "."],
            check=True,
            cwd=self.path,
        )

    def run(self, *command):
        done = subprocess.run(
            command,
            check=False,
            cwd=self.path,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def type(self, line):
        """Do what a line of the page says; one that runs a pipeline goes on until rows arrive."""
        words = shlex.split(line, comments=True)
        if words[0] == "pip":
            assert words[:3] == ["pip", "install", "-e"]
            self.install()
        elif words[:2] == ["deltaforge", "run"]:
            self._run_pipeline(words)
        elif words[0] == "seq":
            subprocess.run(line, shell=True, check=True, cwd=self.path)
        else:
            program = {
                "deltaforge": [str(Path(sys.executable).with_name("deltaforge"))],
                "pytest": [str(Path(sys.executable).with_name("pytest")), "-p", "no:cacheprovider"],
                "python": [sys.executable],
            }[words[0]]
            self.run(*program, *words[1:])

    def _run_pipeline(self, words):
        document = (self.path / words[-1]).read_text()
        ledger = self.path / re.search(r"path: (\w+\.db)", document).group(1)
        program = Path(sys.executable).with_name("deltaforge")
        with (self.path / "run.log").open("w") as log:
            driver = subprocess.Popen(
                [program, *words[1:], "--api-addr", "off"],
                cwd=self.path,
                env=self.environment,
                stdout=log,
                stderr=log,
            )
            try:
                wait_for("rows", lambda: driver.poll() is not None or rows(ledger))
                driver.send_signal(signal.SIGTERM)
                assert driver.wait(60) == 0, (self.path / "run.log").read_text()
            finally:
                driver.kill()
                driver.wait()
        assert rows(ledger), (self.path / "run.log").read_text()


def rows(ledger):
    if not ledger.exists():
        return []
    try:
        with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as file:
            return file.execute("SELECT topic, key, value FROM ledger").fetchall()
    except sqlite3.OperationalError:
        return []  # The table is not there yet.


def commands(chapter):
    blocks = re.findall(r"^```console\n(.*?)^```", chapter, re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    return [line.removeprefix("$ ") for line in lines]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("ledger"))


def test_a_sink_from_an_empty_folder(folder):
    folder.write(FIRST)
    written = {str(path.relative_to(folder.path)) for path in folder.path.rglob("*.*")}

    assert written == set(SHOWN)
    for line in commands(FIRST):
        folder.type(line)
    topics = {topic for topic, _, _ in rows(folder.path / "ledger.db")}
    assert topics == {"script.rows"}


def test_the_sink_has_about_sixty_lines():
    [sink] = [text for _, name, text in _FILE.findall(PAGE) if name.endswith("/sink.py")]

    assert 50 <= len(sink.splitlines()) <= 70


def test_all_four_kinds_together(folder):
    folder.write(PAGE)

    for line in commands(SECOND):
        folder.type(line)

    found = rows(folder.path / "visits.db")
    assert {topic for topic, _, _ in found} == {"files.visits"}
    assert 25 < len(found) < 75
    assert (folder.path / "state" / "state.db").is_file()


def test_every_block_has_a_purpose():
    named = len(_FILE.findall(PAGE))
    fences = re.findall(r"^```(\w*)\n", PAGE, re.M)

    assert sum(kind in {"python", "toml", "yaml"} for kind in fences) == named


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (CHECKOUT / "docs" / target).exists(), target
