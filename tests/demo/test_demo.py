import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 500

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def demo():
    """Start demos, and end what a failed test leaves of them."""
    started = []

    def start(output, *words):
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "tests.demo", "--output", str(output), *words],
            cwd=ROOT,
            env={**os.environ, "COLUMNS": "80", "TMPDIR": str(output.parent)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        # A killed demo is swept by its own keeper.
        process.kill()
        process.wait()


def left_behind(place):
    """Return the processes that name a place in their words or their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            told = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(place) in word for word in told):
            found.append(process.cmdline())
    return found


def changes(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def page_of_the_run(process):
    """Open what the demo says can be looked at; return what it said so far."""
    told = ""
    while (address := re.search(r"the run +(http://\S+)", told)) is None:
        line = process.stdout.readline()
        assert line, told
        told += line
    with urllib.request.urlopen(address[1], timeout=60) as page:
        assert page.status == 200
    return told


def test_the_dag_carries_an_embedded_database_to_files_that_equal_it(demo, tmp_path):
    output = tmp_path / "out"
    process = demo(output, "--seconds", "5")
    told = page_of_the_run(process)
    told += process.communicate(timeout=PATIENCE_S)[0]

    assert process.returncode == 0, told
    assert len(re.findall(r"(customers|orders) .* yes", told)) == 2
    assert re.search(r"preflight: success(.|\n)*snapshot: success(.|\n)*stream: success", told)
    lines = told.partition("The output lies in")[0].splitlines()
    assert max(len(line) for line in lines if "http://" not in line) <= 80, told
    for envelope, inside in (("native", None), ("debezium", "payload"), ("cloudevents", "data")):
        found = changes(output / envelope / "orders.jsonl")
        ops = {(event[inside] if inside else event)["op"] for event in found}
        assert ops == {"r", "c", "u", "d"}
    assert left_behind(output) == []
    assert not (output / "run").exists()


@pytest.mark.long
def test_interrupted_while_airflow_starts_it_leaves_nothing_behind(demo, tmp_path):
    output = tmp_path / "out"
    process = demo(output)
    deadline = time.monotonic() + PATIENCE_S
    while not (output / "run" / "airflow" / "scheduler.log").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 130, told
    assert "nothing is left running" in told
    assert left_behind(output) == []
    assert not (output / "run").exists()
