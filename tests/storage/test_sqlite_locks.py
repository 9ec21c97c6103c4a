import sqlite3
import subprocess
import sys

from airflow_provider_deltaforge.storage.sqlite import SqliteStore

PASS_BY = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
connection.close()
"""


def test_opening_the_file_again_keeps_the_locks_of_this_process(tmp_path):
    """Without its lock, another process that leaves takes the log away from under it."""
    path = tmp_path / "state.db"
    store = SqliteStore(path, create=True)
    store.put("n", "k", b"1")
    SqliteStore(path, create=True).close()
    subprocess.run([sys.executable, "-c", PASS_BY, str(path)], check=True)

    assert path.with_name("state.db-wal").exists()
    assert store.get("n", "k") == b"1"
    store.put("n", "k", b"2")
    with sqlite3.connect(path) as beside:
        assert beside.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert store.get("n", "k") == b"2"
    store.close()
