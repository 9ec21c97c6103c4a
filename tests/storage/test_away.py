"""A store that is away, was never made, or has another in its place."""

import os
import shutil
import stat
import subprocess
import sys
import time

import psycopg
import pytest
from psycopg import sql

from airflow_provider_deltaforge.errors import AccessError, FatalError, RetryableError
from airflow_provider_deltaforge.storage.contract import Fence, Put
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.postgres import PostgresStore
from airflow_provider_deltaforge.storage.sqlite import SqliteStore


@pytest.fixture
def path(tmp_path):
    return tmp_path / "volume" / "state.db"


@pytest.fixture
def store(path):
    opened = SqliteStore(path, create=True)
    opened.put("a", "k", b"1")
    yield opened
    opened.close()


def unmount(path):
    """Take the volume away; an empty directory is left where it was mounted."""
    kept = path.parent.with_name("kept")
    path.parent.rename(kept)
    path.parent.mkdir()
    return kept


def mount(path, kept):
    shutil.rmtree(path.parent)
    kept.rename(path.parent)


def test_only_who_may_create_a_store_does(path):
    location = StoreLocation.from_dsn(f"sqlite:///{path}")
    with pytest.raises(RetryableError, match="never made; `deltaforge run`"):
        location.open()
    assert not path.parent.exists()
    location.create().close()
    location.open().close()


def test_an_empty_file_is_no_store_to_whoever_looks(path):
    path.parent.mkdir()
    path.touch()
    with pytest.raises(RetryableError, match="put the right file back"):
        SqliteStore(path)
    assert path.stat().st_size == 0


def test_a_database_of_something_else_is_not_made_a_store(path):
    import sqlite3

    path.parent.mkdir()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE orders (id INTEGER)")
    other.commit()
    before = path.read_bytes()
    with pytest.raises(FatalError, match="database of something else"):
        SqliteStore(path, create=True)
    other.close()
    assert path.read_bytes() == before


def test_a_volume_that_goes_is_noticed_and_one_that_comes_back_is_used(store, path):
    kept = unmount(path)
    for call in (lambda: store.get("a", "k"), lambda: store.put("a", "k", b"2")):
        with pytest.raises(RetryableError, match="bring its file or volume back"):
            call()
    assert list(path.parent.iterdir()) == []
    mount(path, kept)
    assert store.get("a", "k") == b"1"
    store.put("a", "k", b"3")
    assert SqliteStore(path).get("a", "k") == b"3"


def test_another_store_in_its_place_is_neither_read_nor_written(store, path):
    kept = unmount(path)
    other = SqliteStore(path, create=True)
    for call in (
        lambda: store.get("a", "k"),
        lambda: store.slot("a", "k"),
        lambda: store.put("a", "k", b"2"),
    ):
        with pytest.raises(RetryableError, match="another state store"):
            call()
    assert other.items("a") == []
    other.put("a", "own", b"1")
    other.close()
    mount(path, kept)
    store.put("a", "k", b"2")
    assert store.get("a", "own") is None


def test_whoever_closes_the_old_file_leaves_the_journal_of_the_new_one(store, path):
    unmount(path)
    other = SqliteStore(path, create=True)
    other.put("a", "own", b"1")
    store.close()
    with pytest.raises(RetryableError):
        store.get("a", "k")
    assert SqliteStore(path).get("a", "own") == b"1"
    assert path.with_name("state.db-wal").exists()


def test_a_copy_with_the_last_write_is_as_good_and_an_older_one_is_not(store, path, tmp_path):
    older = tmp_path / "older.db"
    store._read("PRAGMA wal_checkpoint(TRUNCATE)", ())
    shutil.copy(path, older)
    time.sleep(0.02)  # Clocks of files are milliseconds.
    store.put("a", "k", b"2")
    store._read("PRAGMA wal_checkpoint(TRUNCATE)", ())
    shutil.copy(path, tmp_path / "newest.db")
    unmount(path)
    shutil.copy(tmp_path / "newest.db", path)
    assert store.get("a", "k") == b"2"
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    shutil.copy(older, path)
    with pytest.raises(FatalError, match="older copy"):
        store.get("a", "k")


def test_a_driver_opens_its_own_store_and_no_other(store, path):
    location = StoreLocation.from_dsn(f"sqlite:///{path}").of(store)
    location.open().close()
    kept = unmount(path)
    for opening in (location.open, location.create):
        with pytest.raises(RetryableError, match="away"):
            opening()
    SqliteStore(path, create=True).close()
    with pytest.raises(RetryableError, match="another state store"):
        location.open()
    mount(path, kept)
    assert location.open().get("a", "k") == b"1"


def test_files_are_their_owners_whatever_the_umask_and_the_past(path, tmp_path):
    code = (
        "import os,sys; os.umask(0); "
        "from airflow_provider_deltaforge.storage.sqlite import SqliteStore as S; "
        "s = S(sys.argv[1], create=True); s.put('a', 'k', b'1'); os._exit(0)"
    )
    deep = path.parent / "deep" / "state.db"
    subprocess.run([sys.executable, "-c", code, str(deep)], check=True)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in deep.parent.iterdir()}
    assert modes == {"state.db": 0o600, "state.db-wal": 0o600, "state.db-shm": 0o600}
    assert {stat.S_IMODE(p.stat().st_mode) for p in (deep.parent, path.parent)} == {0o700}
    for file in deep.parent.iterdir():
        file.chmod(0o644)
    opened = SqliteStore(deep)
    opened.put("a", "k", b"2")
    assert {stat.S_IMODE(p.stat().st_mode) for p in deep.parent.iterdir()} == {0o600}


def test_a_directory_one_may_not_enter_is_access_at_first_and_away_later(monkeypatch, store, path):
    real = os.stat

    def refused(name, *rest, **options):
        if str(name) == str(path):
            raise PermissionError(13, "Permission denied")
        return real(name, *rest, **options)

    monkeypatch.setattr(os, "stat", refused)
    with pytest.raises(AccessError):
        SqliteStore(path)
    with pytest.raises(RetryableError, match="away"):
        store.get("a", "k")


def _execute(dsn, *statements):
    with psycopg.connect(dsn, autocommit=True) as server:
        for statement in statements:
            server.execute(statement)


def test_a_postgresql_database_without_tables_holds_no_store(postgres_dsn):
    with pytest.raises(RetryableError, match="there is no state store in"):
        PostgresStore(postgres_dsn)
    with psycopg.connect(postgres_dsn) as server:
        assert not server.execute("SELECT 1 WHERE to_regclass('df_meta') IS NOT NULL").fetchall()


def test_postgresql_tables_that_go_are_away_until_they_are_back(postgres_dsn):
    store = PostgresStore(postgres_dsn, create=True)
    store.swap("epochs", "p", 0, b"")
    store.put("a", "k", b"1")
    with psycopg.connect(postgres_dsn) as server:
        schema = server.execute("SELECT current_schema()").fetchone()[0]
    away = sql.SQL("ALTER SCHEMA {} RENAME TO {}")
    here, there = sql.Identifier(schema), sql.Identifier(f"{schema}_kept")
    _execute(postgres_dsn, away.format(here, there))
    with pytest.raises(RetryableError, match="away"):
        store.get("a", "k")
    _execute(postgres_dsn, sql.SQL("CREATE SCHEMA {}").format(here))
    other = PostgresStore(postgres_dsn, create=True)
    with pytest.raises(RetryableError, match="another state store"):
        store.slot("epochs", "p")
    with pytest.raises(RetryableError, match="another state store"):
        store.transact([Put("a", "k", b"2")], Fence("epochs", "p", 1))
    assert other.items("a") == []
    other.close()
    _execute(postgres_dsn, sql.SQL("DROP SCHEMA {} CASCADE").format(here), away.format(there, here))
    store.transact([Put("a", "k", b"2")], Fence("epochs", "p", 1))
    assert store.get("a", "k") == b"2"
    store.close()
