"""The store in a SQLite file."""

import sqlite3
import stat
import subprocess
import sys
import threading

import pytest

from airflow_provider_deltaforge.errors import AccessError, FatalError, RetryableError
from airflow_provider_deltaforge.storage.sqlite import SqliteStore
from tests.storage.sql_contract import SqlStoreContract


class TestSqliteStore(SqlStoreContract):
    @pytest.fixture
    def open_store(self, tmp_path):
        return lambda: SqliteStore(tmp_path / "deep" / "er" / "state.db", create=True)


def test_the_file_is_its_owners_alone_and_its_journal_too(tmp_path):
    store = SqliteStore(tmp_path / "state.db", create=True)
    store.put("a", "k", b"1")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"state.db": 0o600, "state.db-wal": 0o600, "state.db-shm": 0o600}


def test_commits_reach_the_disk_before_they_return(tmp_path):
    store = SqliteStore(tmp_path / "state.db", create=True)
    with store._pool.connection() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_a_file_locked_for_too_long_can_be_tried_again(tmp_path):
    store = SqliteStore(tmp_path / "state.db", create=True, busy_timeout_s=0.2)
    other = sqlite3.connect(tmp_path / "state.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(RetryableError, match="locked; check that no frozen process holds it"):
        store.put("a", "k", b"1")
    assert store.get("a", "k") is None  # Readers do not wait for writers.
    other.execute("ROLLBACK")
    store.put("a", "k", b"1")
    assert store.get("a", "k") == b"1"


def test_a_store_that_another_process_makes_while_we_look_is_no_foreign_database(
    tmp_path, monkeypatch
):
    connect, others = sqlite3.connect, []

    def connect_and_come_second(*words, factory, **more):
        class Second(factory):
            def execute(self, statement, *values):
                rows = super().execute(statement, *values)
                if "df_meta" in statement and not others:
                    others.append(None)
                    others.append(SqliteStore(tmp_path / "state.db", create=True))
                return rows

        return connect(*words, factory=Second, **more)

    monkeypatch.setattr(sqlite3, "connect", connect_and_come_second)
    store = SqliteStore(tmp_path / "state.db", create=True)
    assert store.identity == others[1].identity


def test_a_writer_waits_for_another_process_to_finish(tmp_path):
    store = SqliteStore(tmp_path / "state.db", create=True)
    other = sqlite3.connect(tmp_path / "state.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    released = []

    def release():
        released.append(True)
        other.execute("COMMIT")

    threading.Timer(0.5, release).start()
    store.put("a", "k", b"1")
    assert released


def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path):
    path = tmp_path / "state.db"
    path.write_bytes(b"notes, not a database\n" * 100)
    with pytest.raises(FatalError, match="not a database"):
        SqliteStore(path, create=True)
    assert path.read_bytes().startswith(b"notes")


def test_a_directory_that_cannot_be_made_is_an_access_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AccessError, match="cannot be opened"):
        SqliteStore(tmp_path / "file" / "state.db", create=True)


NO_HANDLES = """
import resource, sys
from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.storage.sqlite import SqliteStore

store = SqliteStore(sys.argv[1])
store.close()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = []
try:
    while True:
        held.append(open("/dev/null"))
except OSError:
    pass
calls = [
    lambda: store.put("checkpoints", "a", b"2"),
    lambda: store.get("checkpoints", "a"),
    lambda: SqliteStore(sys.argv[1]),
    lambda: SqliteStore(sys.argv[1] + ".new", create=True),
]
for call in calls:
    try:
        call()
    except DeltaForgeError as error:
        print(error.error_class)
del held
print(store.get("checkpoints", "a"))
"""


def test_a_process_without_file_handles_may_try_again(tmp_path):
    SqliteStore(tmp_path / "state.db", create=True).put("checkpoints", "a", b"1")
    command = [sys.executable, "-c", NO_HANDLES, str(tmp_path / "state.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["retryable"] * 4 + ["b'1'"]
