"""A database behind a server: the same events, and what a network does to it."""

import json
import shutil
import socket

import pytest

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.errors import (
    AccessError,
    FatalError,
    PositionLostError,
    RetryableError,
    SpecError,
    WrongServerError,
)
from airflow_provider_deltaforge.sources.turso.hrana import HranaStream
from airflow_provider_deltaforge.sources.turso.server_address import server_of
from airflow_provider_deltaforge.sources.turso.servers import ServerDatabase
from airflow_provider_deltaforge.sources.turso.source import TursoSource
from airflow_provider_deltaforge.sources.turso.tuning import TursoTuning
from tests.servers.hrana import HranaFront
from tests.sinks.certificates import certified
from tests.sources.turso.database import chunks_of, copied, events_of, source, told
from tests.sources.turso.exchanges import RECORDED, exchanges
from tests.sources.turso.shop_run import ShopRun

ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, price REAL)"
TRIGGERS = {"cdc_mode": "triggers", "auto_create_triggers": True}
TOKEN = "planted-token"


class HastySource(TursoSource):
    """A source that waits for nobody for long."""

    tuning = TursoTuning(connect_s=0.3, answer_s=0.3)


@pytest.fixture
def front(path):
    with HranaFront(path) as front:
        front.run(ORDERS)
        yield front


@pytest.fixture
def opened(front):
    """Open readers of the server that are closed when the test ends."""
    readers = []

    def open_at(position=None, **settings):
        reader = source(front.url, **{**TRIGGERS, **settings}).open(position)
        readers.append(reader)
        return reader

    yield open_at
    for reader in readers:
        reader.close()


def test_the_front_answers_like_the_real_server(tmp_path):
    with HranaFront(tmp_path / "front.db") as front:
        answers = json.loads(json.dumps(exchanges(front.url)))

    assert answers == json.loads(RECORDED.read_text())


class TestModes:
    def test_triggers(self, front, opened):
        reader = opened()
        front.run("INSERT INTO orders VALUES (1, 'tea', 2), (2, 'mug', 9e999), (3, 'jug', -9e999)")
        front.run("UPDATE orders SET price = 3 WHERE id = 1", "DELETE FROM orders WHERE id = 2")

        tea, mug = {"id": 1, "item": "tea", "price": 2.0}, {"id": 2, "item": "mug"}
        jug = {"id": 3, "item": "jug", "price": "-Infinity"}
        assert [told(event) for event in events_of(reader)] == [
            ("c", "orders", None, tea),
            ("c", "orders", None, {**mug, "price": "Infinity"}),
            ("c", "orders", None, jug),
            ("u", "orders", tea, {**tea, "price": 3.0}),
            ("d", "orders", {**mug, "price": "Infinity"}, None),
        ]

    def test_what_is_acknowledged_is_cleaned_up_and_reading_resumes(self, front, opened):
        reader = opened()
        front.run(*(f"INSERT INTO orders VALUES ({number}, 'x', 1)" for number in range(5)))
        halfway = reader.decode(reader.read(5)).positions.after(2)
        reader.acknowledge(halfway)
        reader.close()

        assert [told(event)[3]["id"] for event in events_of(opened(halfway))] == [3, 4]
        assert front.rows("SELECT count(*) FROM _df_cdc_orders") == [(2,)]

    def test_a_table_that_appears_and_one_that_changes(self, front, opened):
        reader = opened()
        front.run("CREATE TABLE notes (word TEXT PRIMARY KEY, pic BLOB) WITHOUT ROWID")
        front.run("ALTER TABLE orders ADD COLUMN note TEXT")
        assert events_of(reader) == []
        front.run("INSERT INTO notes VALUES ('a', x'00ff')")
        front.run("INSERT INTO orders VALUES (1, 'tea', 2, 'green')")

        assert [told(event)[1:] for event in events_of(reader)] == [
            ("notes", None, {"word": "a", "pic": {"_base64": "AP8="}}),
            ("orders", None, {"id": 1, "item": "tea", "price": 2.0, "note": "green"}),
        ]

    def test_polling(self, front, opened):
        begin = source(front.url, cdc_mode="auto").head()
        front.run("INSERT INTO orders VALUES (7, 'tea', 2), (9, 'mug', 3)")
        reader = opened(begin, cdc_mode="auto")

        assert begin["mode"] == "polling"
        assert [told(event)[3]["id"] for event in events_of(reader)] == [7, 9]

    def test_native_where_the_server_captures(self, path):
        with HranaFront(path, engine="turso") as front:
            front.run(ORDERS, "INSERT INTO orders VALUES (1, 'tea', 2)")
            taken = source(front.url, cdc_mode="auto")
            begin = taken.head()
            front.run("INSERT INTO orders VALUES (2, 'mug', 3)", "DELETE FROM orders WHERE id = 1")
            reader = taken.open(begin)
            events = events_of(reader)
            rows = copied(taken)
            reader.close()

        assert begin["mode"] == "native"
        assert [(event["op"], event["tx_end"]) for event in events] == [("c", False), ("d", True)]
        assert [told(row)[3]["id"] for row in rows] == [2]

    def test_a_snapshot_reads_more_than_one_answer_holds(self, front):
        front.run(
            "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 6) "
            "INSERT INTO orders SELECT n, hex(zeroblob(1000000)), 9e999 FROM r"
        )

        rows = copied(source(front.url, **TRIGGERS))

        assert [len(told(row)[3]["item"]) for row in rows] == [2_000_000] * 6
        assert {told(row)[3]["price"] for row in rows} == {"Infinity"}

    def test_a_view_sees_one_state(self, front):
        database = _stream(front)
        database.begin("BEGIN")
        assert database.run("SELECT count(*) FROM orders") == [(0,)]
        front.run("INSERT INTO orders VALUES (1, 'tea', 2)")

        assert database.run("SELECT count(*) FROM orders") == [(0,)]
        database.close()


class TestOlderServer:
    """A server that was set back is noticed, also once it has counted past our place."""

    @pytest.mark.parametrize(("later", "restarted"), [(0, False), (2, False), (1, True), (4, True)])
    def test_triggers(self, path, front, opened, later, restarted):
        reader = opened()
        front.run("INSERT INTO orders VALUES (1, 'tea', 2)")
        events_of(reader)
        front.stop()
        shutil.copy(path, path.with_name("older.db"))
        front.start()
        front.run("INSERT INTO orders VALUES (2, 'mug', 3)")
        (chunk,) = chunks_of(reader)
        front.serve(path.with_name("older.db"))
        for number in range(3, 3 + later):
            front.run(f"INSERT INTO orders VALUES ({number}, 'new', 1)")

        with pytest.raises(PositionLostError, match="restored from an older copy"):
            events_of(opened(chunk.end) if restarted else reader)

    def test_native(self, path):
        with HranaFront(path, engine="turso") as front:
            front.run(ORDERS)
            front.stop()
            older = path.with_name("older.db")
            for end in ("", "-wal"):
                shutil.copy(f"{path}{end}", f"{older}{end}")
            front.start()
            taken = source(front.url)
            front.run("INSERT INTO orders VALUES (1, 'tea', 2)")
            begin = taken.head()
            front.serve(older)

            with pytest.raises(PositionLostError):
                taken.open(begin)

    def test_polling_by_what_autoincrement_counts(self, path, front, opened):
        front.run("CREATE TABLE logs (id INTEGER PRIMARY KEY AUTOINCREMENT, word TEXT)")
        front.stop()
        older = path.with_name("older.db")
        shutil.copy(path, older)
        front.start()
        reader = opened(cdc_mode="polling", tables=["logs"])
        front.run("INSERT INTO logs (word) VALUES ('a'), ('b')")
        assert len(events_of(reader)) == 2
        front.serve(older)
        front.run("INSERT INTO logs (word) VALUES ('new')")

        with pytest.raises(PositionLostError, match="AUTOINCREMENT stands at 1"):
            events_of(reader)


class TestNetwork:
    def test_a_server_that_was_away_is_followed_on(self, front, opened):
        reader = opened()
        front.run("INSERT INTO orders VALUES (1, 'tea', 2)")
        front.stop()
        with pytest.raises(RetryableError, match="check that it is up"):
            events_of(reader)
        front.start()
        front.run("INSERT INTO orders VALUES (2, 'mug', 2)")

        assert [told(event)[3]["id"] for event in events_of(reader)] == [1, 2]

    def test_a_stream_that_expired_is_begun_anew(self, front, opened):
        reader = opened()
        front.idle_s = 0.0
        assert events_of(reader) == []
        front.idle_s = 10.0
        front.run("INSERT INTO orders VALUES (1, 'tea', 2)")

        assert [told(event)[3]["id"] for event in events_of(reader)] == [1]

    def test_nothing_is_written_outside_of_a_transaction_that_is_gone(self, front):
        stream = _stream(front)
        stream.begin("BEGIN IMMEDIATE")
        (kept,) = front.streams.values()
        kept.connection.execute("ROLLBACK")  # As a server does that waited for long enough.
        kept.in_transaction = False

        with pytest.raises(RetryableError, match="the transaction was ended by the server"):
            stream.run("INSERT INTO orders VALUES (1, 'tea', 2)")
        stream.close()
        assert front.rows("SELECT count(*) FROM orders") == [(0,)]

    def test_a_large_answer_that_breaks_off_leaves_no_transaction(self, front):
        sql = (
            "WITH RECURSIVE r(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM r LIMIT 6) "
            "SELECT hex(zeroblob(1000000)), abs(? + n) FROM r"
        )
        database = ServerDatabase(server_of(front.url), None, TursoTuning())
        assert len(database.rows(sql, [0])) == 6

        with pytest.raises(FatalError, match="overflow"), database.writing():
            database.rows(sql, [-(2**63)])
        assert not front.streams

    def test_a_silent_server_is_waited_for_a_bounded_time(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            (finding,) = source(url, HastySource, **TRIGGERS).preflight()

        assert finding.check == "server"
        assert "does not answer within 0.3 s" in finding.message

    @pytest.mark.parametrize(
        ("answer", "kind", "text"),
        [
            ((200, b"<html>Welcome to the hotel</html>"), WrongServerError, "does not speak Hrana"),
            ((200, b'{"results": []}'), WrongServerError, "does not speak Hrana"),
            ((302, b""), WrongServerError, "name the place itself"),
            ((404, b""), WrongServerError, "no database is there"),
            ((503, b"overloaded"), RetryableError, "answers 503: overloaded"),
            ((429, b""), RetryableError, "answers 429"),
            ((401, b'{"error": "The JWT has expired"}'), AccessError, "has expired; set source"),
            ((403, b""), AccessError, "the right to write"),
            ((418, b""), FatalError, "answers 418"),
        ],
    )
    def test_what_a_server_refuses(self, front, answer, kind, text):
        front.answer = answer

        with pytest.raises(kind, match=text):
            source(front.url, **TRIGGERS).head()

    def test_it_keeps_no_transactions(self, front):
        done = {"step_results": [{"rows": []}], "step_errors": [None]}
        answer = {"baton": None, "results": [{"type": "ok", "response": {"result": done}}]}
        front.answer = (200, json.dumps(answer).encode())

        with pytest.raises(WrongServerError, match="keeps no transaction"):
            source(front.url, **TRIGGERS).head()


class TestAccess:
    def test_a_token_gets_in_and_shows_nowhere(self, front, caplog):
        front.token = TOKEN
        right = source(front.url, auth_token=TOKEN, **TRIGGERS)
        wrong = source(front.url, auth_token="planted-expired", **TRIGGERS)

        assert {finding.verdict for finding in right.preflight()} == {"ok"}
        (finding,) = wrong.preflight()
        assert finding.verdict == "fail"
        with pytest.raises(AccessError, match="renew source"):
            wrong.head()
        assert "planted" not in caplog.text + repr(wrong) + finding.message
        assert "planted" not in str(right.model_dump_json())

    def test_a_server_that_repeats_the_token_is_not_quoted(self, front):
        front.answer = (401, f"{'long ' * 38} {TOKEN} is no entry".encode())

        with pytest.raises(AccessError) as caught:
            source(front.url, auth_token=TOKEN, **TRIGGERS).head()
        assert "planted" not in str(caught.value)

    @pytest.mark.parametrize("token", ["", "two\nlines", "ü", "planted ", " planted", "two  words"])
    def test_a_token_that_is_none(self, front, token):
        with pytest.raises(SpecError, match=r"source\.auth_token") as caught:
            source(front.url, auth_token=token, **TRIGGERS).head()
        assert "planted" not in str(caught.value)

    def test_the_preflight_says_that_triggers_need_to_write(self, front):
        front.read_only = True

        found = {f.check: f for f in source(front.url, **TRIGGERS).preflight()}

        assert found["write"].verdict == "fail"
        assert "the right to write" in found["write"].message

    def test_a_certificate_that_nobody_trusts(self, path, tmp_path, monkeypatch):
        ours = certified(tmp_path)
        with HranaFront(path, tls=ours.both) as front:
            with pytest.raises(AccessError, match="not trusted"):
                source(front.url, cdc_mode="polling").head()
            monkeypatch.setenv("SSL_CERT_FILE", str(ours.certificate))
            assert source(front.url, cdc_mode="polling").head()["mode"] == "polling"

    def test_tls_that_breaks_is_tried_again(self, path, tmp_path, monkeypatch):
        ours = certified(tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(ours.certificate))
        with HranaFront(path, tls=ours.both) as front:
            front.run(ORDERS)
            reader = source(front.url, **TRIGGERS).open(None)
            for _ in range(2):
                front.stop()
                with pytest.raises(RetryableError):
                    events_of(reader)
                front.start()
            front.run("INSERT INTO orders VALUES (1, 'tea', 2)")

            assert [told(event)[3]["id"] for event in events_of(reader)] == [1]
            reader.close()

    def test_tls_with_a_server_that_speaks_none(self, front):
        url = front.url.replace("http://", "libsql://")

        with pytest.raises(AccessError, match="no TLS with it"):
            source(url, cdc_mode="polling").head()
        assert source(f"{url}?tls=0", cdc_mode="polling").head()["mode"] == "polling"

    def test_a_token_is_not_carried_where_it_could_be_read(self, path, tmp_path, monkeypatch):
        ours = certified(tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(ours.certificate))
        with HranaFront(path, tls=ours.both) as front:
            front.base_url = "http://127.0.0.1:9"
            with pytest.raises(AccessError, match="sends us to http://"):
                source(front.url, cdc_mode="polling", auth_token=TOKEN).head()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("ws://db.example.com", "ws:// is not spoken"),
        ("libsql://", "names no host"),
        ("https://me:planted@db.example.com", "holds credentials"),
        ("libsql://db.example.com?authToken=planted", "source.auth_token"),
        ("http://db.example.com?tls=0", "a parameter of libsql://"),
        ("http://db.example.com:port", "no URL"),
    ],
)
def test_urls_that_name_no_server(url, text):
    (refused,) = source(url).unbuilt()

    assert refused.startswith("source.url")
    assert text in refused
    assert "planted" not in refused


def test_a_driver_killed_over_a_server(tmp_path):
    with HranaFront(tmp_path / "shop.db", idle_s=2) as front:
        run = ShopRun(tmp_path, mode="triggers", snapshot="initial", url=front.url)
        run.shop.trade(30)
        run.shop.untriggered = len(run.shop.history)
        run.source.head()  # Makes the triggers, whose count begins here.
        run.kill_at(CrashPoint.CHECKPOINT_STORED, 2, lambda: run.shop.trade(2))
        start = run.first_position()
        run.shop.trade(10)

        driver = run.start()
        front.stop()  # Away, while the driver begins.
        front.start()
        run.shop.trade(30)
        run.wait_caught_up(driver)
        code = run.stop(driver)

        assert run.verdict(start) == []
        assert code == 0
        run.shop.close()


def _stream(front):
    return HranaStream(server_of(front.url), None, TursoTuning())
