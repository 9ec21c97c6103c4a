"""MySQL 9 from Debian's unstable suite, extracted beside the system and run by its own loader.

Debian's stable releases carry MariaDB only. The packages are fetched with a private package
state, so nothing is installed and the machine's own lists stay as they are; the server runs
under the C library of its own suite and needs no root rights.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.servers import cache, sql
from tests.servers.process import HOST, Server, ServerError, free_port, run

_KEYRINGS = ("debian-archive-keyring.gpg", "debian-archive-keyring.pgp")
_HINT = (
    "MySQL 9 is fetched with apt-get from Debian's unstable suite; use a Debian machine with "
    "network access, or name a MySQL 8.4+ server program in DELTAFORGE_MYSQLD"
)
_USERS = """\
CREATE USER 'root'@'%' IDENTIFIED BY '';
GRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;
CREATE USER 'df'@'%' IDENTIFIED BY 'df-secret';
GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'df'@'%';
"""

_FIXED: dict[str, object] = {
    "socket": "mysql.sock",
    "mysqlx": "OFF",
    "skip-name-resolve": "ON",
    "log-bin": "binlog",
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    "innodb-redo-log-capacity": "256M",
    "table-open-cache": 400,
    "table-definition-cache": 400,
    "max-connections": 100,
}


def start(
    directory: Path,
    port: int | None = None,
    *,
    gtid: bool = True,
    row_metadata: str = "FULL",
    transaction_compression: bool = False,
    partial_json: bool = False,
    server_id: int = 1,
    args: Sequence[str] = (),
    keep: bool = False,
) -> Server:
    """Start MySQL with a row-format binary log.

    Users: ``root`` without a password, and ``df`` with ``df-secret`` who may select and read the
    log. ``server.attributes["ca"]`` is the CA of its self-made certificates (TLS is offered).

    Args:
        directory: an own directory; data of an earlier start in it is used again.
        port: loopback port, a free one by default.
        gtid: GTID mode on, or off.
        row_metadata: ``binlog_row_metadata``, FULL or MINIMAL.
        transaction_compression: write compressed transactions to the log.
        partial_json: log JSON updates as differences.
        server_id: the server's own replication id.
        args: further server options, last so that they win.
        keep: leave it running when this process ends.
    """
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    base = _initialised(directory)
    port = port or free_port()
    on = {True: "ON", False: "OFF"}
    options = {
        **_FIXED,
        "bind-address": HOST,
        "port": port,
        "pid-file": directory / "mysqld.pid",
        "server-id": server_id,
        "binlog-row-metadata": row_metadata,
        "gtid-mode": on[gtid],
        "enforce-gtid-consistency": on[gtid],
        "binlog-transaction-compression": on[transaction_compression],
        "binlog-row-value-options": "PARTIAL_JSON" if partial_json else "",
    }
    return Server(
        name="mysql",
        directory=directory,
        port=port,
        command=[*base, *(f"--{key}={value}" for key, value in options.items()), *args],
        probe=sql.mysql_probe,
        url=f"mysql://df:df-secret@{HOST}:{port}/{{database}}",
        keep=keep,
        attributes={"ca": str(directory / "data" / "ca.pem"), "user": "root", "password": ""},
    ).launch()


def _initialised(directory: Path) -> list[str]:
    """Make the data directory if it is not there; return the command every start begins with."""
    program, places = server_program()
    base = [*program, "--no-defaults", *places, f"--datadir={directory / 'data'}"]
    base += [f"--user={'root' if os.geteuid() == 0 else os.environ.get('USER', 'mysql')}"]
    base += ["--secure-file-priv=NULL", "--innodb-buffer-pool-size=64M"]
    if not (directory / "initialised").exists():
        # A killed initialisation leaves a directory that looks whole; only the mark says so.
        shutil.rmtree(directory / "data", ignore_errors=True)
        users = directory / "users.sql"
        users.write_text(_USERS)
        run([*base, "--initialize-insecure", f"--init-file={users}"], "see its output")
        (directory / "initialised").touch()
    return base


def server_program() -> tuple[list[str], list[str]]:
    """Return the command that runs ``mysqld`` and the options that tell it where its files are."""
    named = os.environ.get("DELTAFORGE_MYSQLD")
    if named:
        return [named], []
    root = tree()
    usr = root / "usr"
    return _own_loader(root, "sbin/mysqld"), [
        f"--basedir={usr}",
        f"--lc-messages-dir={usr / 'share' / 'mysql'}",
        f"--character-sets-dir={usr / 'share' / 'mysql' / 'charsets'}",
        f"--plugin-dir={usr / 'lib' / 'mysql' / 'plugin'}",
    ]


def client_command() -> list[str]:
    """Return the command of the ``mysql`` shell that belongs to the server."""
    root = tree()
    charsets = root / "usr" / "share" / "mysql" / "charsets"
    return [*_own_loader(root, "bin/mysql"), "--no-defaults", f"--character-sets-dir={charsets}"]


def tree() -> Path:
    """Return the directory with the extracted packages, fetching them on first use."""
    pointer = cache.root() / "mysql.json"
    with cache.locked("mysql"):
        if pointer.exists():
            known = json.loads(pointer.read_text())["key"]
            return cache.entry("mysql", known, lambda scratch: _extract(_archives(), scratch))
        archives = _fetch()
        digest = hashlib.sha256()
        for archive in archives:
            digest.update(archive.name.encode() + hashlib.sha256(archive.read_bytes()).digest())
        key = digest.hexdigest()[:16]
        path = cache.entry("mysql", key, lambda scratch: _extract(archives, scratch))
        pointer.write_text(json.dumps({"key": key}))
        return path


def _fetch() -> list[Path]:
    """Download the server, its client and everything they need; apt checks the signatures."""
    state = cache.root() / "apt"
    # Archives of an older fetch would be extracted beside the new ones.
    shutil.rmtree(state / "archives", ignore_errors=True)
    for part in ("lists/partial", "archives/partial"):
        (state / part).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    rings = [Path("/usr/share/keyrings") / name for name in _KEYRINGS]
    ring = next((path for path in rings if path.exists()), None)
    if ring is None:
        raise ServerError(f"no Debian archive keyring in /usr/share/keyrings: {_HINT}")
    (state / "sources.list").write_text(f"deb [signed-by={ring}] {_mirror()} sid main\n")
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
    run([*apt, "update"], _HINT)
    packages = ["mysql-server-core", "mysql-client-core"]
    run([*apt, "install", "--download-only", "--no-install-recommends", *packages], _HINT)
    return _archives()


def _mirror() -> str:
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
    raise ServerError(f"apt's sources name no Debian mirror: {_HINT}")


def _archives() -> list[Path]:
    return sorted((cache.root() / "apt" / "archives").glob("*.deb")) or _fetch()


def _extract(archives: Sequence[Path], directory: Path) -> None:
    for archive in archives:
        run(["dpkg", "-x", str(archive), str(directory)], _HINT)
    for unneeded in ("doc", "man", "perl", "lintian", "locale"):
        shutil.rmtree(directory / "usr" / "share" / unneeded, ignore_errors=True)
    run([*_own_loader(directory, "sbin/mysqld"), "--no-defaults", "--version"], _HINT)


def _own_loader(root: Path, program: str) -> list[str]:
    loader = next((root / "usr" / "lib").glob("*/ld-linux-*.so.*"), None)
    if loader is None:
        raise ServerError(f"no dynamic loader below {root}: remove the directory and try again")
    return [str(loader), "--library-path", str(loader.parent), str(root / "usr" / program)]
