"""One server process: start, stop, kill, pause, start again."""

import contextlib
import fcntl
import json
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HOST = "127.0.0.1"
_STARTUP = Path(__file__).parent / "startup"


class ServerError(RuntimeError):
    """A server could not be had or did not answer; the text says what to do."""


_RESERVED: list[int] = []
"""Open files whose locks say which ports are ours; the kernel drops them with this process."""


def free_port() -> int:
    """Return a loopback TCP port that nobody listens on, and that is ours from now on.

    A port that the system chooses could be taken again before a server binds it, by another test
    process or by any outgoing connection. These lie below the range of outgoing connections, and a
    lock keeps other callers of this function away while this process lives.
    """
    locks = Path(tempfile.gettempdir()) / f"deltaforge-ports-{os.getuid()}"
    locks.mkdir(exist_ok=True)
    first = _first_outgoing_port()
    ports = list(range(max(1024, first - 8000), first))
    random.SystemRandom().shuffle(ports)
    for port in ports:
        lock = os.open(locks / str(port), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((HOST, port))
        except OSError:
            os.close(lock)
            continue
        _RESERVED.append(lock)
        return port
    raise ServerError(f"no free TCP port between {min(ports)} and {max(ports)} on {HOST}")


def _first_outgoing_port() -> int:
    try:
        told = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]
    except OSError:
        return 32768
    return int(told) if int(told) > 9024 else 32768


def python_path(*places: Path) -> str:
    """Return a ``PYTHONPATH`` for Pythons that a test starts: theirs begin with ``startup``."""
    present = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    wanted = [str(_STARTUP), *map(str, places), *filter(None, present)]
    return os.pathsep.join(dict.fromkeys(wanted))


def answers(port: int) -> None:
    """Connect to ``port`` and hang up.

    Raises:
        OSError: if nothing listens there.
    """
    socket.create_connection((HOST, port), timeout=2).close()


@dataclass
class Server:
    """A running server.

    Args:
        name: what it is, for messages and files.
        directory: where its data and its log ``server.log`` live.
        port: the loopback port it listens on; kept by ``start_again``.
        command: what to execute.
        probe: returns when the server answers a real request, raises otherwise.
        url: the address with ``{database}`` where a database name goes.
        account: operating-system user to run as; only used by root.
        env: extra environment.
        keep: leave it running when this process ends (``./dev.sh up``).
        stop_signal: what asks for a clean shutdown.
        attributes: what else a test may want to know, such as the path of a CA.
    """

    name: str
    directory: Path
    port: int
    command: Sequence[str]
    probe: Callable[["Server"], None]
    url: str
    account: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    keep: bool = False
    stop_signal: signal.Signals = signal.SIGTERM
    attributes: Mapping[str, str] = field(default_factory=dict)
    host: str = HOST
    _process: "subprocess.Popen[bytes] | None" = None

    def dsn(self, database: str = "") -> str:
        """Return the address a pipeline document names."""
        return self.url.format(database=database)

    @property
    def pid(self) -> int:
        """Return the process id of the server."""
        if self._process is None:
            raise ServerError(f"{self.name} is not running")
        return self._process.pid

    @property
    def log_path(self) -> Path:
        """Return the file that receives the server's standard output and error."""
        return self.directory / "server.log"

    def launch(self, timeout_s: float = 180) -> "Server":
        """Start the process and return when it answers.

        Raises:
            ServerError: if it ends or does not answer in ``timeout_s`` seconds.
        """
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._wrapper(), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env={**os.environ, **self.env},
                start_new_session=True,
            )
        if self.keep:
            # Written before it answers: an interrupted start can still be found and ended.
            record = {"pid": self.pid, "started": _start_time(self.pid), "port": self.port}
            (self.directory / "server.json").write_text(json.dumps(record))
        try:
            self._wait_until_it_answers(timeout_s)
        except BaseException:
            self.kill()
            raise
        return self

    def start_again(self) -> "Server":
        """Start a stopped or killed server on its old data and port."""
        if self._process is not None and self._process.poll() is None:
            raise ServerError(f"{self.name} is still running; stop() or kill() it first")
        return self.launch()

    def stop(self, timeout_s: float = 30) -> None:
        """Shut down cleanly; kill what does not end within ``timeout_s`` seconds."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self.resume()
            self._process.send_signal(self.stop_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """End the server and all its children at once, as a crash would (SIGKILL)."""
        if self._process is None:
            return
        _signal_all(family(self._process.pid), signal.SIGKILL)
        self._process.wait()
        self._process = None

    def discard(self) -> None:
        """End the server at once, since nobody needs its data, and give their disk space back."""
        if self.name == "postgres":
            self.stop()  # Killed, it would leave shared memory.
        else:
            self.kill()
        for home in {str(self.directory), self.attributes.get("home", str(self.directory))}:
            shutil.rmtree(Path(home) / "data", ignore_errors=True)

    def pause(self) -> None:
        """Freeze the server: connections stay open and nothing answers (SIGSTOP)."""
        pids = family(self.pid)
        _signal_all(pids, signal.SIGSTOP)
        # A thread that runs on the other core may still answer before it sees the signal.
        while not all(stands_still(pid) for pid in pids):
            time.sleep(0.001)

    def resume(self) -> None:
        """Let a paused server go on."""
        _signal_all(family(self.pid), signal.SIGCONT)

    def log_tail(self, line_count: int = 30) -> str:
        """Return the last lines of the server's own log."""
        if not self.log_path.exists():
            return ""
        text = self.log_path.read_text(errors="replace")
        return "\n".join(text.splitlines()[-line_count:])

    def _wrapper(self) -> list[str]:
        # setpriv comes last before exec: a change of user clears the parent-death signal.
        wrapper = ["setpriv"] if not self.keep or self.account else []
        if self.account and os.geteuid() == 0:
            wrapper += [f"--reuid={self.account}", f"--regid={self.account}", "--init-groups"]
        if not self.keep:
            wrapper += ["--pdeathsig", "KILL"]
        return [*wrapper, "--"] if len(wrapper) > 1 else []

    def _wait_until_it_answers(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.probe(self)
            except Exception as error:
                ended = self._process is None or self._process.poll() is not None
                if ended or time.monotonic() > deadline:
                    what = "ended at once" if ended else f"did not answer in {timeout_s:.0f} s"
                    raise ServerError(
                        f"{self.name} {what}; the end of {self.log_path}:\n{self.log_tail()}"
                    ) from error
                time.sleep(0.1)
            else:
                return


def family(pid: int) -> list[int]:
    """Return ``pid`` and its living descendants; PostgreSQL's leave the process group."""
    pids, following = [], [pid]
    while following:
        current = following.pop()
        pids.append(current)
        threads: list[Path] = []
        with contextlib.suppress(OSError):  # It may end meanwhile, and so may each thread.
            threads = [*Path(f"/proc/{current}/task").iterdir()]
        for children in (thread / "children" for thread in threads):
            with contextlib.suppress(OSError):
                following += [int(child) for child in children.read_text().split()]
    return pids


def running(directory: Path) -> dict[str, int] | None:
    """Return the record of a kept server in ``directory`` while it lives, else None."""
    try:
        record: dict[str, int] = json.loads((directory / "server.json").read_text())
    except (OSError, ValueError):
        return None
    # The start time tells a recycled process id from the server.
    return record if _start_time(record["pid"]) == record["started"] else None


def end(directory: Path, stop_signal: signal.Signals, timeout_s: float = 30) -> bool:
    """Stop the kept server in ``directory``; return False when none was running."""
    record = running(directory)
    if record is None:
        return False
    pids = family(record["pid"])
    _signal_all(pids, signal.SIGCONT)
    _signal_all(pids[:1], stop_signal)
    deadline = time.monotonic() + timeout_s
    while running(directory) and time.monotonic() < deadline:
        time.sleep(0.1)
    if running(directory):
        _signal_all(family(record["pid"]), signal.SIGKILL)
    (directory / "server.json").unlink(missing_ok=True)
    return True


def run(command: Sequence[str], hint: str, cwd: Path | None = None) -> str:
    """Run a preparing command in ``cwd`` and return its output.

    Raises:
        ServerError: if it is missing or fails; ``hint`` says what to do.
    """
    if shutil.which(command[0]) is None:
        raise ServerError(f"{command[0]} is missing: {hint}")
    done = subprocess.run(
        list(command),
        check=False,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise ServerError(f"{' '.join(command)} failed: {hint}\n{done.stdout[-2000:]}")
    return done.stdout


def give_to(account: str, path: Path) -> None:
    """Hand ``path`` to ``account`` when this process may."""
    if os.geteuid() == 0:
        user = pwd.getpwnam(account)
        os.chown(path, user.pw_uid, user.pw_gid)


def _signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def stands_still(pid: int) -> bool:
    """Return whether all threads of a process are stopped, or gone."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[0] not in "TtXZ":
                return False
    return True


def _start_time(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return -1 if fields[0] == "Z" else int(fields[19])
