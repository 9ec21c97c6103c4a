import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]


def demo(output, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.demo", "--output", str(output), *words],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "160", "TMPDIR": str(output.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def left_behind(place):
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if any(str(place) in word for word in words):
            found.append(words)
    return found


@pytest.mark.airflow
@pytest.mark.spark
def test_the_dag_carries_a_real_database_to_files_that_equal_it(tmp_path):
    process = demo(tmp_path / "out", "--seconds", "5")
    told, _ = process.communicate(timeout=240)

    assert process.returncode == 0, told
    assert told.count(" yes ") == 2
    assert left_behind(tmp_path) == []


@pytest.mark.airflow
@pytest.mark.spark
def test_interrupted_anywhere_it_leaves_nothing_behind(tmp_path):
    process = demo(tmp_path / "out")
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("deltaforge-demo-*/jobs/*/pid")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.2)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=60)

    assert process.returncode == 130, told
    assert left_behind(tmp_path) == []
