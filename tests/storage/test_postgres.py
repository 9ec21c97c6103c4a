"""The store in PostgreSQL."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import psycopg
import pytest

from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    FencedError,
    RetryableError,
    SpecError,
)
from airflow_provider_deltaforge.storage.contract import Append, Fence, Put
from airflow_provider_deltaforge.storage.postgres import PostgresStore
from tests.servers import postgres
from tests.storage import worker
from tests.storage.computed import ComputedPut
from tests.storage.sql_contract import SqlStoreContract
from tests.waiting import wait_until


class TestPostgresStore(SqlStoreContract):
    @pytest.fixture
    def open_store(self, postgres_dsn):
        return lambda: PostgresStore(postgres_dsn, create=True)


@pytest.fixture(scope="module")
def own_server(tmp_path_factory):
    """A server that tests may restart."""
    server = postgres.start(tmp_path_factory.mktemp("restarts"))
    yield server
    server.discard()


def test_a_restart_of_the_server_is_not_noticed_afterwards(own_server):
    store = PostgresStore(own_server.dsn("postgres"), create=True)
    store.swap("epochs", "restart", 0, b"")
    with ThreadPoolExecutor(4) as threads:  # Several connections, all to be broken.
        list(threads.map(lambda i: store.put("restart", f"{i}", b"1"), range(8)))
    own_server.stop()
    own_server.start_again()
    store.transact([Put("restart", "0", b"2")], Fence("epochs", "restart", 1))
    assert store.get("restart", "0") == b"2"
    assert store.swap("epochs", "restart", 1, b"") == 2
    store.close()


def test_while_the_server_is_away_errors_say_try_again(own_server):
    store = PostgresStore(own_server.dsn("postgres"), create=True)
    own_server.stop()
    try:
        for attempt in (
            lambda: store.get("a", "k"),
            lambda: store.put("a", "k", b""),
            lambda: PostgresStore(own_server.dsn("postgres"), create=True),
        ):
            with pytest.raises(RetryableError, match=r"refused.*; check that it is up"):
                attempt()
    finally:
        own_server.start_again()
    store.put("a", "k", b"1")
    assert store.get("a", "k") == b"1"
    store.close()


def test_what_was_written_before_a_crash_of_the_server_is_kept(own_server):
    store = PostgresStore(own_server.dsn("postgres"), create=True)
    acknowledged, unknown, stop = [], [], threading.Event()

    def write():
        number = 0
        while not stop.is_set():
            number += 1
            try:
                store.transact([Put("crash", "k", b"%d" % number), Append("crash", "k", b"")])
                acknowledged.append(number)
            except RetryableError:
                unknown.append(number)
                time.sleep(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    wait_until(lambda: len(acknowledged) > 20)
    own_server.kill()
    wait_until(lambda: unknown)
    own_server.start_again()
    back = len(acknowledged)
    wait_until(lambda: len(acknowledged) >= back + 10)
    stop.set()
    writer.join(60)
    assert store.get("crash", "k") == b"%d" % acknowledged[-1]
    # At most the write that was being committed at the crash may count without our knowing.
    assert len(acknowledged) <= len(store.read("crash", limit=10**6)) <= len(acknowledged) + 1
    store.close()


_END_WRITER = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE state = 'idle in transaction' AND application_name = 'deltaforge'"""


def test_a_transaction_whose_connection_dies_is_made_again_once(own_server):
    store = PostgresStore(own_server.dsn("postgres"), create=True)
    killed = []

    def cut():
        if not killed:
            with psycopg.connect(own_server.dsn("postgres"), autocommit=True) as other:
                killed.extend(other.execute(_END_WRITER).fetchall())
            time.sleep(0.1)
        return b""

    store.transact(
        [Append("again", "k", b"1"), ComputedPut("again", "k", cut), Append("again", "k", b"2")]
    )
    assert killed == [(True,)]
    assert [entry.value for entry in store.read("again")] == [b"1", b"2"]
    store.close()


def test_a_commit_of_unknown_outcome_is_not_made_again(own_server, monkeypatch):
    store = PostgresStore(own_server.dsn("postgres"), create=True)

    class Cut(psycopg.Connection):
        def execute(self, query, *args, **kwargs):
            if query != "COMMIT":
                return super().execute(query, *args, **kwargs)
            super().execute(query)
            raise psycopg.OperationalError("consuming input failed: server closed the connection")

    with monkeypatch.context() as patch:
        patch.setattr(psycopg, "connect", Cut.connect)
        store.close()
        with pytest.raises(RetryableError, match="not known"):
            store.append("unknown", "k", b"1")
    assert len(store.read("unknown")) == 1
    store.close()


def test_a_frozen_writer_does_not_keep_the_next_driver_waiting(postgres_dsn):
    """It holds its fence's slot; the server ends its session, and it is fenced when it wakes."""
    store = PostgresStore(postgres_dsn, create=True)
    store.swap("epochs", "p", 0, b"")
    frozen = worker.spawn("freeze", postgres_dsn)
    try:
        assert frozen.stdout.readline() == "inside\n"
        os.kill(frozen.pid, signal.SIGSTOP)
        assert held(store) == [(1,)]
        assert store.swap("epochs", "p", 1, b"") == 2
        assert held(store) == [(0,)]
        os.kill(frozen.pid, signal.SIGCONT)
        assert frozen.stdout.read() == "fenced\n"
    finally:
        worker.end(frozen)
    assert store.get("freeze", "k") is None
    store.close()


def held(store):
    """Count the transactions that stand still over a write to an epoch's slot."""
    idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
    return store._read(idle, ())


def test_who_takes_the_epoch_has_seen_the_last_commit_of_a_killed_driver(postgres_dsn):
    """A commit on its way outlives its process; without the fence it would land afterwards."""
    slow = f"{postgres_dsn}{quote(' -ccommit_delay=100000 -ccommit_siblings=0', safe='')}"
    store = PostgresStore(postgres_dsn, create=True)
    first, epoch = 1, store.swap("epochs", "p", 0, b"")
    for _ in range(4):
        driver = worker.spawn("transactions", slow, first, epoch)
        assert int(driver.stdout.readline()) == first
        time.sleep(0.05)  # The next transaction is inside its commit, which takes 0.1 s.
        driver.kill()
        epoch = store.swap("epochs", "p", epoch, b"")
        seen = [entry.value for entry in store.read("same")]
        worker.end(driver)
        time.sleep(0.3)
        assert [entry.value for entry in store.read("same")] == seen
        first = len(seen) + 1
    store.close()


def test_refusals_are_access_errors_that_hold_no_password(own_server):
    with psycopg.connect(own_server.dsn("postgres"), autocommit=True) as connection:
        connection.execute("CREATE ROLE closed PASSWORD 'open-sesame'")
        connection.execute("CREATE ROLE reader LOGIN PASSWORD 'open-sesame'")
        connection.execute("CREATE DATABASE theirs")
    at = f"127.0.0.1:{own_server.port}"
    refused = [
        f"postgresql://closed:open-sesame@{at}/postgres",
        f"postgresql://nobody:open-sesame@{at}/postgres",
        f"postgresql://df:open-sesame@{at}/nowhere",
        f"postgresql://reader:open-sesame@{at}/theirs",  # May not create tables there.
        f"postgresql://df:open-sesame@{at}/postgres?sslmode=require",
    ]
    for dsn in refused:
        with pytest.raises(AccessError, match="check user") as caught:
            PostgresStore(dsn, create=True)
        assert "open-sesame" not in _everything_shown(caught.value)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:open-sesame@[::1/x",
        "postgresql://u:p@open-sesame@h/x",
        "postgresql://u:open-sesame/@h/x",
        "postgresql://u:open/sesame@h/x",
        "postgresql://u:p@h/x?open-sesame",
    ],
)
def test_a_dsn_that_cannot_be_read_is_not_quoted(dsn):
    with pytest.raises(SpecError, match="percent-encoded") as caught:
        PostgresStore(dsn, create=True)
    assert "sesame" not in _everything_shown(caught.value)


def test_the_store_shows_its_place_without_its_password(own_server):
    dsn = f"postgresql://postgres:open-sesame@127.0.0.1:{own_server.port}/postgres"
    store = PostgresStore(dsn, create=True)
    assert repr(store) == "PostgresStore('127.0.0.1/postgres')"
    store.close()


def test_a_slot_row_that_a_writer_read_while_it_changed_fences_it(own_server):
    """The check waits for a swap under way and judges what it left, not what it found."""
    store = PostgresStore(own_server.dsn("postgres"), create=True)
    store.swap("epochs", "racing", 0, b"")
    with (
        psycopg.connect(own_server.dsn("postgres")) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        other.execute("UPDATE df_slot SET version = 2 WHERE ns = 'epochs' AND key = 'racing'")
        write = [Put("racing", "k", b"")]
        late = threads.submit(store.transact, write, Fence("epochs", "racing", 1))
        time.sleep(0.3)
        assert not late.done()
        other.commit()
        with pytest.raises(FencedError):
            late.result(60)
    assert store.get("racing", "k") is None
    store.close()


def _sessions(server, database):
    with psycopg.connect(server.dsn("postgres")) as asking:
        counted = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
        ((found,),) = asking.execute(counted, (database,)).fetchall()
    return found


def test_a_store_that_is_refused_keeps_no_connection_open(own_server):
    with psycopg.connect(own_server.dsn("postgres"), autocommit=True) as creating:
        creating.execute("CREATE DATABASE refused")
    dsn = own_server.dsn("refused")
    store = PostgresStore(dsn, create=True)
    store.close()
    kept = []  # An error keeps what its frames hold, as whoever tries again keeps it.
    for _ in range(3):
        with pytest.raises(RetryableError, match="another state store lies") as refused:
            PostgresStore(dsn, identity=1)
        kept.append(refused)
    wait_until(lambda: _sessions(own_server, "refused") == 0, 20)
    with psycopg.connect(dsn, autocommit=True) as changing:
        changing.execute("ALTER TABLE df_meta RENAME TO df_meta_away")
    for _ in range(3):
        with pytest.raises(RetryableError, match="is away") as refused:
            store.get("a", "k")
        kept.append(refused)
    wait_until(lambda: _sessions(own_server, "refused") == 0, 20)


def _everything_shown(error: DeltaForgeError) -> str:
    import traceback

    return repr(error) + "".join(traceback.format_exception(error))


def test_a_standby_at_the_stores_address_is_waited_for_and_its_primary_preferred(tmp_path):
    primary = postgres.start(tmp_path / "primary")
    standby = postgres.standby(primary, tmp_path / "standby")
    try:
        made = PostgresStore(primary.dsn("postgres"), create=True)
        made.put("a", "b", b"1")
        made.close()
        with pytest.raises(RetryableError):
            PostgresStore(standby.dsn("postgres"))
        hosts = f"{standby.host},{primary.host}"
        dsn = f"host={hosts} port={standby.port},{primary.port} dbname=postgres user=postgres"
        both = PostgresStore(dsn)
        both.put("a", "b", b"2")
        both.close()
        wait_until(lambda: _replayed(standby, primary))
        primary.stop()
        with psycopg.connect(standby.dsn("postgres"), autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")
        promoted = PostgresStore(standby.dsn("postgres"))
        assert promoted.get("a", "b") == b"2"
        promoted.put("a", "b", b"3")
        promoted.close()
    finally:
        standby.discard()
        primary.discard()


def _replayed(standby, primary):
    with psycopg.connect(primary.dsn("postgres")) as connection:
        (wanted,) = connection.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
    with psycopg.connect(standby.dsn("postgres")) as connection:
        sql = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        return connection.execute(sql, (wanted,)).fetchone()[0]
