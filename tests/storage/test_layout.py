"""Databases of every released format open, and none of a later one."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.storage import layout
from airflow_provider_deltaforge.storage.contract import Append, Fence, Push, Put, StoredSlot
from airflow_provider_deltaforge.storage.location import StoreLocation

_FORMATS = Path(__file__).parent / "formats"


def _write(dsn: str, script: str) -> None:
    if dsn.startswith("sqlite"):
        path = Path(dsn.removeprefix("sqlite:///"))
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path)
        connection.executescript(script)
        connection.close()
        return
    with psycopg.connect(dsn, autocommit=True) as server:
        server.execute(script)


def _fixture(dsn: str, number: int) -> str:
    dialect = "sqlite" if dsn.startswith("sqlite") else "postgres"
    return (_FORMATS / f"{number}.{dialect}.sql").read_text()


@pytest.fixture(params=range(1, layout.FORMAT + 1))
def old_store(durable_dsn, request):
    """A store over a database that a release with this format wrote."""
    _write(durable_dsn, _fixture(durable_dsn, request.param))
    store = StoreLocation.from_dsn(durable_dsn).create()
    yield store
    store.close()


def test_what_an_earlier_release_wrote_is_read(old_store):
    assert old_store.items("checkpoints") == [("orders/shop::sink::kafka", b'{"v":1}')]
    assert [(e.seq, e.value) for e in old_store.read("schemas", "shop/db/t")] == [(41, b"\0\1")]
    assert old_store.slot("epochs", "orders") == StoredSlot(7, b"driver1")
    assert [(e.seq, e.value) for e in old_store.peek("journal", "orders:dlq")] == [(99, b"\xff")]


def test_a_database_of_an_earlier_release_is_written(old_store):
    writes = [Put("a", "k", b"1"), Append("schemas", "k", b"2"), Push("journal", "k", b"3")]
    old_store.transact(writes, Fence("epochs", "orders", 7))
    assert old_store.get("a", "k") == b"1"
    assert old_store.read("schemas", "k")[0].seq > 41
    assert old_store.peek("journal", "k")[0].seq > 99
    assert old_store.swap("epochs", "orders", 7, b"") == 8


def test_the_fixture_of_this_format_is_what_this_release_writes(tmp_path):
    StoreLocation.from_dsn(f"sqlite:///{tmp_path}/new.db").create().close()
    _write(f"sqlite:///{tmp_path}/old.db", _fixture("sqlite", layout.FORMAT))
    told = [
        [
            (name, " ".join(text.split()))
            for name, text in sqlite3.connect(tmp_path / file).execute(
                "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
            )
        ]
        for file in ("new.db", "old.db")
    ]
    assert told[0] == told[1]


def test_a_database_of_a_later_release_is_left_alone(durable_dsn):
    script = _fixture(durable_dsn, 1).replace("('format', 1)", f"('format', {layout.FORMAT + 1})")
    _write(durable_dsn, script)
    with pytest.raises(FatalError, match="upgrade airflow-provider-deltaforge"):
        StoreLocation.from_dsn(durable_dsn).create()


def test_openers_at_once_upgrade_a_database_one_time(durable_dsn, monkeypatch):
    _write(durable_dsn, _fixture(durable_dsn, 1))
    further = (
        "ALTER TABLE df_kv ADD COLUMN note {text}",
        "UPDATE df_slot SET version = version + 1",
    )
    monkeypatch.setattr(layout, "STEPS", (*layout.STEPS[:1], further))
    monkeypatch.setattr(layout, "FORMAT", 2)
    with ThreadPoolExecutor(6) as threads:
        opened = list(threads.map(lambda _: StoreLocation.from_dsn(durable_dsn).create(), range(6)))
    for store in opened:
        assert store.slot("epochs", "orders") == StoredSlot(8, b"driver1")
        assert store._read("SELECT note FROM df_kv", ()) == [(None,), (None,)]
        assert store._read("SELECT val FROM df_meta WHERE name = 'format'", ()) == [(2,)]
        store.close()


def test_an_upgrade_that_fails_changes_nothing(durable_dsn, monkeypatch):
    _write(durable_dsn, _fixture(durable_dsn, 1))
    broken = ("UPDATE df_slot SET version = 100", "UPDATE no_such_table SET a = 1")
    with monkeypatch.context() as patch:
        patch.setattr(layout, "STEPS", (*layout.STEPS[:1], broken))
        patch.setattr(layout, "FORMAT", 2)
        with pytest.raises(FatalError):
            StoreLocation.from_dsn(durable_dsn).create()
    store = StoreLocation.from_dsn(durable_dsn).create()
    assert store.slot("epochs", "orders") == StoredSlot(7, b"driver1")
    store.close()
