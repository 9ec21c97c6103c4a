"""PostgreSQL 18 from Debian's unstable suite, whose programs find each other in their own tree."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.servers import cache, debian
from tests.servers.process import run

VERSION = 18
_HINT = (
    f"PostgreSQL {VERSION} is fetched with apt-get from Debian's unstable suite; use a Debian "
    "machine with network access, or name the folder of its programs in DELTAFORGE_POSTGRES18"
)
_PROGRAMS = ("postgres", "initdb", "pg_ctl", "pg_basebackup", "pg_recvlogical", "psql")
_WRAPPER = """\
#!/bin/sh
# Runs the program under the C library of its own suite, wherever the tree lies.
bin=$(dirname "$(readlink -f "$0")")
lib=$(dirname "$bin"/../../../*/ld-linux-*.so.*)
exec "$lib"/ld-linux-*.so.* --library-path "$lib" --argv0 "$bin/{name}" "$bin/{name}.elf" "$@"
"""


def programs(reader: Sequence[str] = ()) -> Path:
    """Return the folder with ``postgres`` and ``initdb``, fetching it on first use.

    Args:
        reader: the start of a command that runs as the server's user.
    """
    named = os.environ.get("DELTAFORGE_POSTGRES18")
    if named:
        return Path(named)
    root = debian.tree("postgres18", (f"postgresql-{VERSION}",), _HINT, _finish)
    return _bin(_readable(root, reader))


def _bin(root: Path) -> Path:
    return root / "usr" / "lib" / "postgresql" / str(VERSION) / "bin"


def _finish(root: Path) -> None:
    """Put a wrapper before each program, since they start each other by name."""
    for name in _PROGRAMS:
        program = _bin(root) / name
        program.rename(program.with_suffix(".elf"))
        program.write_text(_WRAPPER.format(name=name))
        program.chmod(0o755)
    run([str(_bin(root) / "initdb"), "--version"], _HINT)


def _readable(root: Path, reader: Sequence[str]) -> Path:
    """Return the tree, or a copy of it where the server's user can read it."""
    program = str(_bin(root) / "postgres")
    if not reader or subprocess.run([*reader, "test", "-x", program], check=False).returncode == 0:
        return root
    copy = Path(tempfile.gettempdir()) / f"deltaforge-{root.name}"
    with cache.locked("postgres18"):
        if not copy.exists():
            scratch = Path(tempfile.mkdtemp(prefix="deltaforge-postgres18-"))
            shutil.copytree(root, scratch, symlinks=True, dirs_exist_ok=True)
            scratch.chmod(0o755)
            scratch.rename(copy)
    return copy
