"""Services as an engine would run them, by namespaces of the kernel: there is no engine here.

A container has its own network, host name, processes and mounts. Below it lie the files of this
machine, and what it writes beside its volumes goes to memory. Needs root, and a network namespace
of the caller's own: ``in_own_network`` starts a program in one.
"""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers.process import ServerError, family

_SUBNET = "10.213.0"
_BRIDGE = "df0"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STOP_S = 15.0
_INIT = """
"$@" &
child=$!
trap 'kill -TERM $child' TERM INT
wait $child
code=$?
while kill -0 $child 2>/dev/null; do wait $child; code=$?; done
exit $code
"""
"""Runs a command as its child, hands signals on, and takes over orphans, as ``tini`` does."""


def in_own_network(words: Sequence[str], **options: object) -> "subprocess.Popen[bytes]":
    """Start a program that may make containers: in network and mount namespaces of its own."""
    own = ["unshare", "--net", "--mount", "--propagation", "private", "--"]
    return subprocess.Popen([*own, *words], **options)  # type: ignore[call-overload,no-any-return]


@dataclass
class Network:
    """The network that containers share, where each is found by its name."""

    directory: Path
    _addresses: dict[str, str] = field(default_factory=dict)
    _joined: int = 0

    def open(self, names: Sequence[str]) -> None:
        """Make it in the present network namespace, with an address for each name."""
        layers = self.directory / "layers"
        layers.mkdir(parents=True)
        _ip("link", "set", "lo", "up")
        _ip("link", "add", _BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{_SUBNET}.1/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        self._addresses = {name: f"{_SUBNET}.{n}" for n, name in enumerate(names, 2)}
        lines = [f"{address} {name}" for name, address in self._addresses.items()]
        self.hosts.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        # An overlay's own layers may not lie below the layer under it: memory is elsewhere.
        Path("/run/netns").mkdir(exist_ok=True)
        for place in (str(layers), "/run/netns"):
            _do("mount", "-t", "tmpfs", "tmpfs", place)
        _do("mount", "--bind", str(self.hosts), "/etc/hosts")

    @property
    def hosts(self) -> Path:
        """Return the file with everybody's names."""
        return self.directory / "hosts"

    def address(self, name: str) -> str:
        """Return a container's address."""
        return self._addresses[name]

    def join(self, name: str) -> str:
        """Return a new network namespace that is connected under a name's address."""
        number = self.address(name).rpartition(".")[2]
        self._joined += 1
        # Devices of a former start may be on their way out still.
        space, here, there = f"df{number}", f"dfv{self._joined}", f"dfe{self._joined}"
        with contextlib.suppress(ServerError):
            _ip("netns", "del", space)  # Of a former start.
        _ip("netns", "add", space)
        _ip("link", "add", here, "type", "veth", "peer", "name", there)
        _ip("link", "set", there, "netns", space, "name", "eth0")
        _ip("link", "set", here, "master", _BRIDGE, "up")
        _ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", space, "link", "set", device, "up")
        return space

    def publish(self, port: int, name: str, inner: int) -> None:
        """Have a port of loopback lead to a container's, while this process lives."""
        listening = socket.create_server(("127.0.0.1", port))
        target = (self.address(name), inner)

        def serve() -> None:
            while True:
                client, _ = listening.accept()
                try:
                    server = socket.create_connection(target, timeout=10)
                    server.settimeout(None)
                except OSError:
                    client.close()
                    continue
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=_pump, args=(source, sink), daemon=True).start()

        threading.Thread(target=serve, name=f"port-{port}", daemon=True).start()


@dataclass
class Container:
    """One service.

    Args:
        name: its host name.
        network: where it is found by it.
        command: what is executed; scripts are found by ``PATH``.
        environment: all of it.
        user: user and group it runs as.
        folder: its working directory.
        binds: files and folders by the path where they are found, with ``ro`` or ``rw``.
        files: texts by path.
        prepare: shell commands that root runs in it first.
        reaps: its first process takes over orphans, as ``tini`` does.
    """

    name: str
    network: Network
    command: Sequence[str]
    environment: Mapping[str, str]
    user: tuple[int, int] = (0, 0)
    folder: str = "/"
    binds: Mapping[str, tuple[Path, str]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    prepare: str = ""
    reaps: bool = False
    _process: "subprocess.Popen[bytes] | None" = None

    @property
    def log(self) -> Path:
        """Return the file with what it prints."""
        return self.network.directory / f"{self.name}.log"

    def start(self) -> "Container":
        """Start it; what it wrote beside its volumes before is gone."""
        space = self.network.join(self.name)
        layers = self.network.directory / "layers" / f"{self.name}-{time.monotonic_ns()}"
        for part in ("upper", "work", "root"):
            (layers / part).mkdir(parents=True)
        script = layers / "start.sh"
        script.write_text(self._script(layers))
        own = ["unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child"]
        own += ["--propagation", "private", "bash", str(script)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", space, *own],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        while self.is_running and not self._is_inside():
            time.sleep(0.02)
        return self

    def _is_inside(self) -> bool:
        """Return whether the first process has the container's files for its own."""
        with contextlib.suppress(ServerError, OSError):
            return Path(f"/proc/{self._first()}/root").readlink() != Path("/")
        return False

    def _script(self, layers: Path) -> str:
        root = layers / "root"
        layered = f"lowerdir=/,upperdir={layers}/upper,workdir={layers}/work"
        lines = [
            "set -e",
            f"hostname {self.name}",
            f"mount -t overlay overlay -o {layered} {root}",
            f"mount -t proc proc {root}/proc",
            f"mount --rbind /dev {root}/dev",
            f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp",
            # What runs is Python below a home that is root's own.
            f"chmod 711 {root}/root",
            f"cat {self.network.hosts} > {root}/etc/hosts",
            f": > {root}/etc/resolv.conf",
        ]
        for number, (path, text) in enumerate(self.files.items()):
            source = layers / f"file-{number}"
            source.write_text(text)
            source.chmod(0o644)
            lines.append(f"install -D -m 755 {source} {_quoted(root, path)}")
        for path, (source, mode) in self.binds.items():
            target = _quoted(root, path)
            if source.is_dir():
                lines.append(f"mkdir -p {target}")
            else:
                lines.append(f"mkdir -p $(dirname {target}) && touch {target}")
            lines.append(f"mount --bind {shlex.quote(str(source))} {target}")
            if mode == "ro":
                lines.append(f"mount -o remount,bind,ro {target}")
        if self.prepare:
            lines.append(f"chroot {root} sh -ec {shlex.quote(self.prepare)}")
        words = self._words(self.command)
        if self.reaps:
            words = ["bash", "-c", _INIT, "init", *words]
        lines.append(f"exec chroot {root} {shlex.join(words)}")
        return "\n".join(lines) + "\n"

    def _words(self, command: Sequence[str]) -> list[str]:
        user, group = self.user
        variables = {"PATH": _PATH, "HOSTNAME": self.name, **self.environment}
        return [
            *("env", "-i", "-C", self.folder),
            *(f"{name}={value}" for name, value in variables.items()),
            *("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--"),
            *command,
        ]

    @property
    def is_running(self) -> bool:
        """Return whether its first process lives."""
        return self._process is not None and self._process.poll() is None

    def wait(self, seconds: float) -> int:
        """Wait for its end; return the exit code.

        Raises:
            ServerError: it has not ended.
        """
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ServerError(f"{self.name} has not ended; its log:\n{self.log_tail()}") from None

    def run(
        self, command: Sequence[str], seconds: float = 60
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command in it, as its user, with its environment."""
        inside = ["nsenter", "-t", str(self._first()), "-m", "-p", "-n", "-u", "-r"]
        return subprocess.run(
            [*inside, "--", *self._words(command)],
            check=False,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def command_lines(self) -> list[str]:
        """Return the command lines of all its processes."""
        lines = []
        for pid in family(self._first()):
            with contextlib.suppress(OSError):
                lines.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
        return lines

    def stop(self) -> None:
        """Ask it to end; after a while it is killed."""
        with contextlib.suppress(ServerError, ProcessLookupError):
            os.kill(self._first(), signal.SIGTERM)
            self.wait(_STOP_S)
        self.kill()

    def kill(self) -> None:
        """End it with all its processes at once."""
        if self._process is not None:
            with contextlib.suppress(ServerError, ProcessLookupError):
                os.kill(self._first(), signal.SIGKILL)
            self._process.kill()
            self._process.wait()

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines that it has printed."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def _first(self) -> int:
        """Return the process that the container's others are children of."""
        pid = self._process.pid if self._process is not None else 0
        try:
            [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except (OSError, ValueError):
            raise ServerError(f"{self.name} is not running:\n{self.log_tail()}") from None
        return int(child)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(2)


def _quoted(root: Path, path: str) -> str:
    return shlex.quote(f"{root}{path}")


def _ip(*words: str) -> None:
    _do("ip", *words)


def _do(*words: str) -> None:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ServerError(f"{' '.join(words)}: {done.stderr.strip()} (as root, on Linux)")
