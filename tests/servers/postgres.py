"""PostgreSQL, as a state store and as a source: the machine's own packages, or version 18."""

import contextlib
import hashlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.servers import postgres18
from tests.servers.process import HOST, Server, ServerError, free_port, give_to, run

_HINT = "install it with: apt-get install postgresql"
_HOMES, _OF = "deltaforge-postgres-", "directory"
"""Begins the names of data directories in the machine's temporary one; what names, in each of them,
the server's own directory."""


def start(
    directory: Path,
    port: int | None = None,
    *,
    version: int | None = None,
    args: Sequence[str] = (),
    keep: bool = False,
) -> Server:
    """Start PostgreSQL with ``wal_level=logical`` and trusted loopback connections.

    Users: ``postgres`` (superuser) and ``df`` with ``df-secret`` (replication). The default
    database is ``postgres``.

    Args:
        directory: an own directory; data of an earlier start in it is used again.
        port: loopback port, a free one by default.
        version: 18 is fetched; None is the newest of the machine's own.
        args: further ``name=value`` settings, last so that they win.
        keep: leave it running when this process ends.
    """
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    account = "postgres" if os.geteuid() == 0 else None
    home = _home(directory, account)
    programs = _programs(version, account)
    data = home / "data"
    if not data.is_dir():
        scratch = home / "data.new"
        shutil.rmtree(scratch, ignore_errors=True)
        command = [str(programs / "initdb"), "-D", str(scratch), "-U", "postgres", "-A", "trust"]
        command += ["-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
        run([*_as(account), *command], _HINT, cwd=home)
        scratch.rename(data)
    port = port or free_port()
    settings = [
        f"listen_addresses={HOST}",
        f"port={port}",
        f"unix_socket_directories={'' if len(str(home)) > 80 else home}",
        "wal_level=logical",
        "max_wal_senders=10",
        "max_replication_slots=20",
        "shared_buffers=32MB",
        "fsync=on",
        *args,
    ]
    command = [str(programs / "postgres"), "-D", str(data)]
    command += [word for setting in settings for word in ("-c", setting)]
    return Server(
        name="postgres",
        directory=directory,
        port=port,
        command=command,
        probe=_probe,
        url=f"postgresql://postgres@{HOST}:{port}/{{database}}",
        account=account,
        keep=keep,
        # SIGINT is the fast shutdown: it ends sessions instead of waiting for them.
        stop_signal=signal.SIGINT,
        attributes={"home": str(home), "user": "postgres", "programs": str(programs)},
    ).launch()


def standby(
    primary: Server, directory: Path, *, slot: str | None = None, args: Sequence[str] = ()
) -> Server:
    """Start a streaming standby of a running server; ``SELECT pg_promote()`` promotes it.

    Args:
        primary: the server to copy and follow.
        directory: an own directory, new.
        slot: physical slot to create on the primary and to follow it with.
        args: further ``name=value`` settings.
    """
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    account = "postgres" if os.geteuid() == 0 else None
    home = _home(directory, account)
    program = Path(primary.attributes["programs"]) / "pg_basebackup"
    command = [str(program), "-D", str(home / "data"), "-R", "-c", "fast", "--no-sync"]
    command += ["-d", primary.dsn("postgres")]
    if slot is not None:
        command += ["-C", "-S", slot]
    run([*_as(account), *command], _HINT, cwd=home)
    return start(directory, version=major_version(primary), args=args)


def new_database(server: Server) -> str:
    """Create an empty database for the state of pipelines; return its name."""
    import psycopg

    name = f"state_{secrets.token_hex(4)}"
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as administration:
        administration.execute(f"CREATE DATABASE {name}")
    return name


def major_version(server: Server) -> int:
    """Return for example 18."""
    import psycopg

    with psycopg.connect(server.dsn("postgres")) as connection:
        return connection.info.server_version // 10000


def _probe(server: Server) -> None:
    import psycopg

    with psycopg.connect(server.dsn("postgres"), connect_timeout=2, autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = 'df'").fetchall():
            connection.execute("CREATE ROLE df LOGIN REPLICATION PASSWORD 'df-secret'")


def _programs(version: int | None, account: str | None) -> Path:
    """Return the folder of the server's programs."""
    if version == postgres18.VERSION:
        return postgres18.programs(_as(account))
    wanted = "*" if version is None else str(version)
    found = sorted(
        Path("/usr/lib/postgresql").glob(f"{wanted}/bin/postgres"),
        key=lambda path: int(path.parts[-3]) if path.parts[-3].isdigit() else 0,
    )
    if found:
        return found[-1].parent
    on_path = shutil.which("postgres")
    if version is not None or on_path is None:
        raise ServerError(f"PostgreSQL {version or ''} is missing: {_HINT}")
    return Path(on_path).resolve().parent


def _home(directory: Path, account: str | None) -> Path:
    """Return where the data goes: ``directory``, unless the server's user cannot get there."""
    if account is None:
        return directory
    try:
        pwd.getpwnam(account)
    except KeyError:
        raise ServerError(f"there is no user {account!r}: {_HINT}") from None
    give_to(account, directory)
    check = [*_as(account), "test", "-w", str(directory)]
    if subprocess.run(check, check=False).returncode == 0:
        return directory
    # The server refuses to run as root, and root's own directories are closed to others.
    digest = hashlib.sha256(str(directory).encode()).hexdigest()[:16]
    _forget_gone()
    home = Path(tempfile.gettempdir()) / f"{_HOMES}{digest}"
    marker = directory / "home"
    if not marker.exists():
        shutil.rmtree(home, ignore_errors=True)
    home.mkdir(mode=0o700, exist_ok=True)
    give_to(account, home)
    marker.write_text(str(home))
    (home / _OF).write_text(str(directory))
    return home


def _forget_gone() -> None:
    """Remove the data of servers whose own directories are gone: it may be gigabytes."""
    for known in Path(tempfile.gettempdir()).glob(f"{_HOMES}*/{_OF}"):
        with contextlib.suppress(OSError):  # Another process may remove it as well.
            if not Path(known.read_text()).exists():
                shutil.rmtree(known.parent, ignore_errors=True)


def _as(account: str | None) -> list[str]:
    if account is None:
        return []
    return ["setpriv", f"--reuid={account}", f"--regid={account}", "--init-groups", "--"]
