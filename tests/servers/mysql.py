"""MySQL 9 from Debian's unstable suite: its stable releases carry MariaDB only."""

import hashlib
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.servers import cache, debian, sql
from tests.servers.process import HOST, Server, free_port, run

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
    "innodb-redo-log-capacity": "32M",
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
    lower_case_table_names: bool = False,
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
        lower_case_table_names: keep all names in small letters; a directory has it from its first
            start on.
        args: further server options, last so that they win.
        keep: leave it running when this process ends.
    """
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    lower = ["--lower-case-table-names=1"] if lower_case_table_names else []
    base = [*_initialised(directory, lower), *lower]
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


def start_for_load(directory: Path) -> Server:
    """Start it with a redo log that many writes a second do not fill at once."""
    return start(directory, args=["--innodb-redo-log-capacity=256M"])


def _initialised(directory: Path, options: Sequence[str]) -> list[str]:
    """Make the data directory if it is not there; return the command every start begins with."""
    if not (directory / "initialised").exists():
        # A killed copy leaves a directory that looks whole; only the mark says so.
        shutil.rmtree(directory / "data", ignore_errors=True)
        shutil.copytree(_empty(options) / "data", directory / "data")
        (directory / "initialised").touch()
    return _base(directory / "data")


def _empty(options: Sequence[str]) -> Path:
    """Return a directory with the data of a server that was never started.

    To initialise one takes twice the CPU time of a start, and many seconds of a slow disk.
    """
    made_from = f"{server_program()}{_USERS}{''.join(options)}".encode()
    name = hashlib.sha256(made_from).hexdigest()[:16]
    with cache.locked("mysql-data"):
        return cache.entry("mysql-data", name, partial(_initialise, options=options))


def _initialise(directory: Path, options: Sequence[str]) -> None:
    data, users = directory / "data", directory / "users.sql"
    users.write_text(_USERS)
    initialise = ["--initialize-insecure", f"--init-file={users}", *options]
    initialise += ["--innodb-redo-log-capacity=8M"]  # Each start copies it.
    run([*_base(data), *initialise], "see its output")
    # Every server has an identity of its own; it makes one when it starts.
    (data / "auto.cnf").unlink()


def _base(data: Path) -> list[str]:
    program, places = server_program()
    base = [*program, "--no-defaults", *places, f"--datadir={data}"]
    base += [f"--user={'root' if os.geteuid() == 0 else os.environ.get('USER', 'mysql')}"]
    return [*base, "--secure-file-priv=NULL", "--innodb-buffer-pool-size=64M"]


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
    return debian.tree("mysql", ("mysql-server-core", "mysql-client-core"), _HINT, _try)


def _try(root: Path) -> None:
    run([*_own_loader(root, "sbin/mysqld"), "--no-defaults", "--version"], _HINT)


def _own_loader(root: Path, program: str) -> list[str]:
    return [*debian.own_loader(root), str(root / "usr" / program)]
