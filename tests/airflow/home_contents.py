"""Every place of an Airflow installation where a secret could be."""

import subprocess
import sys
from pathlib import Path

import psycopg
from psycopg import sql

_COLUMNS = """
SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'
"""
_SEARCH = """
import sys
from pathlib import Path
secret = sys.stdin.buffer.read()
for path in sorted(Path(sys.argv[1]).rglob("*")):
    try:
        if path.is_file() and secret in path.read_bytes():
            print(path)
    except FileNotFoundError:
        pass  # Logs come and go.
"""


def columns_with(dsn: str, secret: str) -> list[str]:
    """Return every table and column of Airflow's database with a value that holds ``secret``."""
    found = []
    with psycopg.connect(dsn) as connection:
        for table, column in connection.execute(_COLUMNS).fetchall():
            # Bytes are compared as the hexadecimal digits of their text form.
            asked = sql.SQL(
                "SELECT count(*) FROM {} WHERE strpos({}::text, %s) + strpos({}::text, %s) > 0"
            ).format(sql.Identifier(table), sql.Identifier(column), sql.Identifier(column))
            row = connection.execute(asked, (secret, secret.encode().hex())).fetchone()
            if row is not None and row[0]:
                found.append(f"{table}.{column}")
    return found


def files_with(directory: Path, secret: str) -> list[str]:
    """Return every file below a directory that holds ``secret``.

    Another process looks: whoever closes a SQLite file drops the locks of its whole process, and a
    connection that is open here would go on with a log that others have thrown away.
    """
    done = subprocess.run(
        [sys.executable, "-c", _SEARCH, str(directory)],
        input=secret,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()
