"""How the demo ends, whatever ends it: no process and no scratch files stay."""

import contextlib
import fcntl
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import psutil

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.launching.local import LocalBackend, jobs_directory
from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.storage.location import StoreLocation

PIPELINE = "shop"
MARKER = ".deltaforge-demo"
"""The file that says whose directory it is: a demo clears what an earlier one has left there."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DRAIN_S = 15.0

# Its standard input ends when the demo does, however that died.
_KEEPER = """
import sys
sys.stdin.read()
from pathlib import Path
from tests.demo.ending import sweep
sweep(*map(Path, sys.argv[1:]))
"""


class Stopped(BaseException):
    """Somebody asked the demo to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class Endings:
    """Turns the first request to end into ``Stopped``; once work is being put away, none."""

    def __init__(self) -> None:
        self._deaf = False
        for number in _SIGNALS:
            signal.signal(number, self._heard)

    def be_deaf(self) -> None:
        """Heed no request any more: what follows ends by itself."""
        self._deaf = True

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if not self._deaf:
            self._deaf = True
            raise Stopped(number)


@contextlib.contextmanager
def only_one(output: Path, place: Path, store: Path) -> Iterator[None]:
    """Hold the output directory while the block runs, and sweep should this process be killed.

    Args:
        output: the directory; it is made.
        place: the scratch directory.
        store: the state store's file in it.

    Raises:
        DeltaForgeError: the directory is not a demo's, or another demo holds it.
    """
    _claim(output)
    with (output / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DeltaForgeError(
                f"another demo writes to {output}; end it, or name another place with --output"
            ) from None
        keeper = subprocess.Popen(
            [sys.executable, "-c", _KEEPER, str(place), str(store)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            start_new_session=True,
            # It holds the directory, too, until it has swept.
            pass_fds=(lock.fileno(),),
        )
        with keeper:
            yield


def _claim(output: Path) -> None:
    """Make the directory a demo's own, unless somebody else's files are in it."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        if not (output / MARKER).exists():
            if any(output.iterdir()):
                raise DeltaForgeError(
                    f"{output} holds files that are not a demo's, and a demo clears its directory; "
                    "name an empty or a new one with --output"
                )
            (output / MARKER).touch()
    except OSError as error:
        raise DeltaForgeError(
            f"{output} cannot hold the demo ({error.strerror}); name another place with --output"
        ) from error


def stop_stream(store: Path) -> None:
    """Drain the pipeline and end its driver, if there is one; then whatever is left of any."""
    if not store.exists():
        return
    dsn = f"sqlite:///{store}"
    backend = LocalBackend(jobs_directory(dsn))
    opened = StoreLocation.from_dsn(dsn).create()
    try:
        if PIPELINE in pipelines.Control.list_pipelines(opened):
            pipelines.stop(opened, PIPELINE, backend, _DRAIN_S)
    except DeltaForgeError:
        # Airflow was ended between starting a driver and writing down which.
        pass
    finally:
        opened.close()
    for pid_file in backend.directory.glob("*/pid"):
        _end_job(backend, pid_file)


def sweep(place: Path, store: Path) -> None:
    """End and take away what a demo that was killed has left."""
    if place.exists():
        stop_stream(store)
        shutil.rmtree(place, ignore_errors=True)


def keep_logs(place: Path, output: Path) -> Path:
    """Copy the logs out of the scratch directory."""
    logs = output / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for log in (*place.glob("airflow/*.log"), *place.glob("jobs/*/driver.log")):
        shutil.copy(log, logs / f"{log.parent.name}-{log.name}")
    for log in place.glob("airflow/logs/dag_id=*/run_id=*/*/*.log"):
        shutil.copy(log, logs / f"{log.parent.name}-{log.name}")
    return logs


def _end_job(backend: LocalBackend, pid_file: Path) -> None:
    pid = int(pid_file.read_text() or 0)
    with contextlib.suppress(psutil.NoSuchProcess):
        handle = {
            "name": pid_file.parent.name,
            "directory": str(pid_file.parent.absolute()),
            "host": socket.gethostname(),
            "pid": pid,
            "started_at": psutil.Process(pid).create_time() if pid else None,
        }
        backend.stop(handle, 0)
