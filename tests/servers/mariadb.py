"""MariaDB from the machine's own packages, with a data directory of its own."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.servers import sql
from tests.servers.process import HOST, Server, free_port, run

_HINT = "install it with: apt-get install mariadb-server"
_USERS = """\
SET SESSION sql_log_bin = 0;
CREATE USER IF NOT EXISTS 'root'@'%' IDENTIFIED BY '';
GRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;
CREATE USER IF NOT EXISTS 'df'@'%' IDENTIFIED BY 'df-secret';
GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR, SLAVE MONITOR ON *.* TO 'df'@'%';
SET SESSION sql_log_bin = 1;
"""


def start(
    directory: Path,
    port: int | None = None,
    *,
    row_metadata: str = "FULL",
    log_bin_compress: bool = False,
    server_id: int = 1,
    args: Sequence[str] = (),
    keep: bool = False,
) -> Server:
    """Start MariaDB with a row-format binary log; GTIDs are always there.

    Users: ``root`` without a password, and ``df`` with ``df-secret`` who may select and read the
    log.

    Args:
        directory: its own, also for temporary tables; data of an earlier start in it is used again.
        port: loopback port, a free one by default.
        row_metadata: ``binlog_row_metadata``, FULL, MINIMAL or NO_LOG.
        log_bin_compress: write compressed row events.
        server_id: the server's own replication id.
        args: further server options, last so that they win.
        keep: leave it running when this process ends.
    """
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    user = "root" if os.geteuid() == 0 else os.environ.get("USER", "mysql")
    _install(directory / "data", user)
    users = directory / "users.sql"
    users.write_text(_USERS)
    port = port or free_port()
    options = {
        "user": user,
        "datadir": directory / "data",
        "init-file": users,
        "bind-address": HOST,
        "port": port,
        "socket": directory / "mysql.sock" if len(str(directory)) < 90 else "mysql.sock",
        "pid-file": directory / "mariadbd.pid",
        "skip-name-resolve": "ON",
        "server-id": server_id,
        "log-bin": "binlog",
        "binlog-format": "ROW",
        "binlog-row-image": "FULL",
        "binlog-row-metadata": row_metadata,
        "log-bin-compress": "ON" if log_bin_compress else "OFF",
        "innodb-buffer-pool-size": "64M",
        "character-set-server": "utf8mb4",
        "max-connections": 100,
    }
    return Server(
        name="mariadb",
        directory=directory,
        port=port,
        command=[_server(), "--no-defaults", f"--tmpdir={directory}", *_flags(options), *args],
        probe=sql.mysql_probe,
        url=f"mysql://df:df-secret@{HOST}:{port}/{{database}}",
        keep=keep,
        attributes={"user": "root", "password": ""},
    ).launch()


def _install(data: Path, user: str) -> None:
    if data.is_dir():
        return
    # The directory gets its name when it is complete: a killed start begins again.
    scratch = data.with_name("data.new")
    shutil.rmtree(scratch, ignore_errors=True)
    install = ["mariadb-install-db", "--no-defaults", f"--user={user}", f"--datadir={scratch}"]
    install += ["--auth-root-authentication-method=normal", "--skip-test-db"]
    # Two servers made at once name their temporary tables alike.
    install += [f"--tmpdir={data.parent}"]
    run(install, _HINT)
    scratch.rename(data)


def _flags(options: Mapping[str, object]) -> list[str]:
    return [f"--{key}={value}" for key, value in options.items()]


def _server() -> str:
    # Debian keeps it in sbin, which is not on every user's path.
    return shutil.which("mariadbd") or "/usr/sbin/mariadbd"
