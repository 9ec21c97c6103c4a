import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from airflow_provider_deltaforge.control.launching.contract import JobState, LaunchSpec
from airflow_provider_deltaforge.control.launching.local import jobs_directory
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.storage.location import StoreLocation
from tests.control.bench import wait_until
from tests.servers.keeper import lives


def job(behaviour: str = "run", generation: int = 1) -> LaunchSpec:
    return LaunchSpec(
        "orders",
        generation,
        "stream_job.py",
        "sqlite:///unused",
        environment={"FAKE_DRIVER": behaviour},
    )


def test_a_second_submit_adopts_the_running_driver(backend):
    first = backend.submit(job())
    second = backend.submit(job())

    assert first == second
    assert backend.status(first).state is JobState.RUNNING


def test_a_look_at_a_directory_that_is_being_removed_puts_nothing_into_it(backend):
    with backend.occupied("orders") as handle:
        place = Path(handle["directory"])
    (place / "lock").unlink()  # The first of what the next driver removes.

    assert backend.status(handle).state is JobState.ENDED
    assert not (place / "lock").exists()


def test_submits_at_the_same_moment_start_one_driver(backend):
    with ThreadPoolExecutor(8) as pool:
        handles = list(pool.map(lambda _: backend.submit(job()), range(8)))

    assert len({handle["pid"] for handle in handles}) == 1


def test_status_checks_do_not_make_a_dead_driver_look_alive(backend):
    handle = backend.submit(job("exit:3"))
    wait_until(lambda: backend.status(handle).state is JobState.ENDED)

    with ThreadPoolExecutor(4) as pool:
        states = list(pool.map(lambda _: backend.status(handle), range(200)))

    assert {status.state for status in states} == {JobState.ENDED}
    assert backend.submit(job("run"))["pid"] != handle["pid"]


def test_the_exit_code_is_kept(backend):
    handle = backend.submit(job("exit:4"))
    wait_until(lambda: backend.status(handle).state is JobState.ENDED)

    assert backend.status(handle).exit_code == 4


def test_stop_ends_a_driver_by_sigterm(backend):
    handle = backend.submit(job())
    wait_until(lambda: "started" in backend.logs_tail(handle))
    backend.stop(handle, grace_s=0)

    assert backend.status(handle).state is JobState.ENDED
    assert backend.status(handle).exit_code == 0


def test_stop_kills_a_deaf_driver_and_everything_of_its_session(backend):
    handle = backend.submit(job("deaf"))
    wait_until(lambda: "started" in backend.logs_tail(handle))  # From then on it is deaf.
    (child,) = psutil.Process(handle["pid"]).children()
    backend.stop(handle, grace_s=0)

    assert backend.status(handle).state is JobState.ENDED
    wait_until(lambda: not lives(child.pid))  # It lets go of the lock a moment before.


def test_a_driver_whose_session_leader_was_killed_still_counts_as_running(backend):
    handle = backend.submit(job())
    wait_until(lambda: "started" in backend.logs_tail(handle))
    leader = psutil.Process(handle["pid"])
    leader.kill()
    wait_until(lambda: not lives(leader.pid))

    assert backend.status(handle).state is JobState.RUNNING
    assert backend.submit(job())["pid"] == handle["pid"]
    backend.stop(handle, grace_s=0)
    assert backend.status(handle).state is JobState.ENDED


def test_a_driver_that_goes_while_its_volume_is_away_has_ended(backend, monkeypatch):
    handle = backend.submit(job())
    wait_until(lambda: "started" in backend.logs_tail(handle))
    place = Path(handle["directory"])
    place.rename(place.with_name("away"))
    assert backend.status(handle).state is JobState.RUNNING

    def gone(process):
        raise psutil.NoSuchProcess(process.pid)

    with monkeypatch.context() as patches:
        patches.setattr(psutil.Process, "status", gone)  # Between the list and the look.
        assert backend.status(handle).state is JobState.ENDED
    backend.stop(handle, grace_s=0)


def test_a_driver_outlives_the_process_that_submitted_it(backend, tmp_path):
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from tests.control.bench import fake_driver
from tests.control.test_local_backend import job
from airflow_provider_deltaforge.control.launching.local import LocalBackend
import json, os
backend = LocalBackend(Path({str(tmp_path / "jobs")!r}), compose=fake_driver)
print(json.dumps(backend.submit(job())), flush=True)
os.kill(os.getpid(), 9)
"""
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    assert outcome.returncode == -signal.SIGKILL
    handle = backend.submit(job())
    assert f'"pid": {handle["pid"]}' in outcome.stdout
    assert backend.status(handle).state is JobState.RUNNING


def test_a_handle_lost_with_its_submitter_is_rebuilt(backend, tmp_path):
    handle = backend.submit(job())
    wait_until((tmp_path / "jobs" / "df-orders-g1" / "pid").exists)
    (tmp_path / "jobs" / "df-orders-g1" / "handle.json").unlink()

    assert backend.submit(job()) == handle


def test_a_handle_of_another_host_is_unknown_and_not_stopped(backend):
    handle = {**backend.submit(job()), "host": "elsewhere"}

    assert backend.status(handle).state is JobState.UNKNOWN
    with pytest.raises(RetryableError, match="elsewhere"):
        backend.stop(handle, 0)


@pytest.mark.parametrize("dsn", ["sqlite:///~/df/state.db", "sqlite:///${WHERE}/df/state.db"])
def test_jobs_lie_beside_the_file_that_the_store_really_opens(dsn, tmp_path, monkeypatch):
    monkeypatch.delenv("DELTAFORGE_JOBS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WHERE", str(tmp_path))
    StoreLocation.from_dsn(dsn).create().close()
    assert (tmp_path / "df" / "state.db").is_file()
    assert jobs_directory(dsn) == tmp_path / "df" / "jobs"


def test_jobs_of_a_store_elsewhere_lie_at_home(tmp_path, monkeypatch):
    monkeypatch.delenv("DELTAFORGE_JOBS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert jobs_directory("postgresql://u@h/d") == Path(tmp_path) / ".deltaforge" / "jobs"


def test_directories_of_former_drivers_go_but_for_the_latest_and_for_those_that_live(backend):
    living = backend.submit(job(generation=1))
    for generation in (2, 3, 4, 5):
        handle = backend.submit(job("exit:0", generation))
        wait_until(lambda handle=handle: backend.status(handle).state is JobState.ENDED)
    kept = sorted(path.name for path in backend.directory.glob("df-orders-g*"))
    assert kept == ["df-orders-g1", "df-orders-g4", "df-orders-g5"]
    assert backend.status(living).state is JobState.RUNNING
