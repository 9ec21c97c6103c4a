"""Packages of Debian's unstable suite, extracted beside the system.

Debian's stable releases carry neither MySQL nor the newest PostgreSQL. The packages are fetched
with a private package state, so nothing is installed and the machine's own lists stay as they are;
a program runs under the C library of its own suite and needs no root rights.
"""

import hashlib
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.servers import cache
from tests.servers.process import ServerError, run

_KEYRINGS = ("debian-archive-keyring.gpg", "debian-archive-keyring.pgp")
_UNNEEDED = ("doc", "man", "perl", "lintian", "locale")


def tree(name: str, packages: Sequence[str], hint: str, finish: Callable[[Path], None]) -> Path:
    """Return the directory with the extracted packages, fetching them on first use.

    Args:
        name: of the entry in the cache.
        packages: what is fetched, with everything it needs.
        hint: what to do when that fails.
        finish: called with the extracted tree before it counts as whole; tries its programs.
    """

    def build(archives: Sequence[Path], directory: Path) -> None:
        for archive in archives:
            run(["dpkg", "-x", str(archive), str(directory)], hint)
        for unneeded in _UNNEEDED:
            shutil.rmtree(directory / "usr" / "share" / unneeded, ignore_errors=True)
        finish(directory)

    def kept() -> Sequence[Path]:
        return _archives(name) or _fetch(name, packages, hint)

    pointer = cache.root() / f"{name}.json"
    with cache.locked(name):
        if pointer.exists():
            known = json.loads(pointer.read_text())["key"]
            return cache.entry(name, known, lambda scratch: build(kept(), scratch))
        archives = _fetch(name, packages, hint)
        digest = hashlib.sha256()
        for archive in archives:
            digest.update(archive.name.encode() + hashlib.sha256(archive.read_bytes()).digest())
        key = digest.hexdigest()[:16]
        path = cache.entry(name, key, lambda scratch: build(archives, scratch))
        pointer.write_text(json.dumps({"key": key}))
        return path


def own_loader(root: Path) -> list[str]:
    """Return the start of a command that runs a program under the tree's own C library."""
    loader = next((root / "usr" / "lib").glob("*/ld-linux-*.so.*"), None)
    if loader is None:
        raise ServerError(f"no dynamic loader below {root}: remove the directory and try again")
    return [str(loader), "--library-path", str(loader.parent)]


def _fetch(name: str, packages: Sequence[str], hint: str) -> list[Path]:
    """Download the packages and everything they need; apt checks the signatures."""
    state = _state(name)
    # Archives of an older fetch would be extracted beside the new ones.
    shutil.rmtree(state / "archives", ignore_errors=True)
    for part in ("lists/partial", "archives/partial"):
        (state / part).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    rings = [Path("/usr/share/keyrings") / ring for ring in _KEYRINGS]
    ring = next((path for path in rings if path.exists()), None)
    if ring is None:
        raise ServerError(f"no Debian archive keyring in /usr/share/keyrings: {hint}")
    (state / "sources.list").write_text(f"deb [signed-by={ring}] {_mirror(hint)} sid main\n")
    private = {
        "APT::Sandbox::User": "root",
        # A mirror that lags behind serves tests as well; signatures are checked all the same.
        "Acquire::Check-Valid-Until": "false",
        "Dir::State": state,
        "Dir::State::Lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": state,
        "Dir::Cache::archives": state / "archives",
        "Dir::Etc::sourcelist": state / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
    }
    apt = ["apt-get", "-q", "-y"]
    for key, value in private.items():
        apt += ["-o", f"{key}={value}"]
    print(f"fetching {name} from Debian's unstable suite …", file=sys.stderr, flush=True)
    run([*apt, "update"], hint)
    run([*apt, "install", "--download-only", "--no-install-recommends", *packages], hint)
    return _archives(name)


def _archives(name: str) -> list[Path]:
    return sorted((_state(name) / "archives").glob("*.deb"))


def _state(name: str) -> Path:
    """Return the package state of one entry: two may be fetched at the same time."""
    return cache.root() / "apt" / name


def _mirror(hint: str) -> str:
    """Return where this machine itself gets Debian's packages from."""
    form = "$(RELEASE) $(COMPONENT) $(SITE)"
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", form],
        check=False,
        capture_output=True,
        text=True,
    ).stdout
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "sid")
    suites = {codename, "stable", "testing", "unstable", "sid"}
    for line in listed.splitlines():
        release, component, site = line.split(" ", 2)
        if release in suites and component == "main":
            return site
    raise ServerError(f"apt's sources name no Debian mirror: {hint}")
