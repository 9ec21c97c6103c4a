import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_provider_deltaforge.control.launching.contract import JobState, LaunchSpec
from airflow_provider_deltaforge.control.launching.local import LocalBackend
from airflow_provider_deltaforge.errors import DeltaForgeError
from tests.demo.ending import only_one

ROOT = Path(__file__).parents[2]
HOLD = """
import sys, time
from pathlib import Path
from tests.demo.ending import only_one
output = Path(sys.argv[1])
with only_one(output, output / "run", output / "run" / "state.db"):
    print("held", flush=True)
    time.sleep(600)
"""


def demo(*words):
    command = [sys.executable, "-m", "tests.demo", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def holder(output):
    command = [sys.executable, "-c", HOLD, str(output)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_a_killed_demo_takes_its_driver_and_its_scratch_along(tmp_path):
    scratch = tmp_path / "run"
    process = holder(tmp_path)
    backend = LocalBackend(scratch / "jobs", compose=lambda job: ["sleep", "600"])
    handle = backend.submit(LaunchSpec("shop", 1, "stream_job.py", f"sqlite:///{scratch}/state.db"))
    (scratch / "state.db").touch()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 120
    while scratch.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)

    assert backend.status(handle).state is JobState.ENDED


def test_a_demo_clears_its_own_directory_and_no_other(tmp_path):
    own, foreign, file = tmp_path / "own", tmp_path / "foreign", tmp_path / "file"
    foreign.mkdir()
    kept = [foreign / "shop.db", foreign / "lock", file]
    for path in kept:
        path.write_text("precious")
    for _ in range(2):
        with only_one(own, own / "run", own / "run" / "state.db"):
            (own / "native").touch()
    for place in (foreign, file):
        told = demo("--output", str(place))
        assert (told.returncode, "--output" in told.stdout) == (1, True), told

    assert [path.read_text() for path in kept] == ["precious"] * 3
    assert sorted(path.name for path in foreign.iterdir()) == ["lock", "shop.db"]


def test_two_demos_do_not_share_a_directory(tmp_path):
    process = holder(tmp_path)
    try:
        with (
            pytest.raises(DeltaForgeError, match="another demo"),
            only_one(tmp_path, tmp_path / "run", tmp_path / "run" / "state.db"),
        ):
            pass
    finally:
        process.kill()
        process.communicate()
