"""Other processes that have the file open."""

import subprocess
import sys

import pytest


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
