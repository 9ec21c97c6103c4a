"""A file, its readers, and other processes that have it open."""

import subprocess
import sys

import pytest

from tests.sources.turso.database import source


@pytest.fixture
def path(tmp_path):
    return tmp_path / "shop.db"


@pytest.fixture
def opened(path):
    """Open readers of the file that are closed when the test ends."""
    readers = []

    def open_at(position=None, **settings):
        reader = source(path, **settings).open(position)
        readers.append(reader)
        return reader

    yield open_at
    for reader in readers:
        reader.close()


@pytest.fixture
def other_process():
    """Run code in another process that keeps what it opened until the test ends."""
    started = []

    def start(code, path):
        program = f"PATH = {str(path)!r}\n{code}\nprint('ready', flush=True)\ninput()"
        child = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(child)
        assert child.stdout.readline() == "ready\n"
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
