"""What becomes of a batch when Redis cannot, or may not, take it."""

import contextlib
import socket
import subprocess
import threading
import time
import uuid
from pathlib import Path

import pytest
import redis

from airflow_provider_deltaforge.errors import AccessError, RetryableError
from airflow_provider_deltaforge.sinks.redis import RedisSink
from airflow_provider_deltaforge.sinks.redis.servers import RedisPipeline
from airflow_provider_deltaforge.testing.sinks import messages, value
from tests.servers import redis as servers
from tests.servers.process import HOST, ServerError, free_port
from tests.waiting import wait_for

PASSWORD = "redis-s3cret"


def rows(stream, span, key=b"same"):
    return messages([(stream, key, value(n)) for n in span])


def client(server, **settings):
    return redis.Redis(host=server.host, port=server.port, **settings)


def values(server, stream, **settings):
    return [fields[b"event"] for _, fields in client(server, **settings).xrange(stream)]


def numbers(span):
    return [value(n) for n in span]


def until_written(writer, batch, within_s=120):
    deadline = time.monotonic() + within_s
    while True:
        try:
            return writer.write(batch)
        except RetryableError:
            if time.monotonic() > deadline:
                raise


@pytest.fixture
def stream():
    return f"orders-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def server(redis_server):
    yield redis_server
    with contextlib.suppress(ServerError):
        redis_server.resume()
        return
    redis_server.start_again()


@pytest.fixture
def open_writer(server):
    opened = []

    def do_open(uri=None, **settings):
        uri = uri or server.dsn("0")
        opened.append(RedisSink(id="r", uri=uri, stream="s", **settings).open("p"))
        return opened[-1]

    yield do_open
    for writer in opened:
        writer.close()


class TestAway:
    @pytest.fixture
    def writer_socket(self, open_writer):
        return open_writer()._servers.connection("s")._sock

    def test_a_killed_server_neither_loses_nor_reorders(self, server, stream, open_writer):
        writer = open_writer()
        for n in range(12):
            if n in {3, 8}:
                server.kill()
                with pytest.raises(RetryableError, match="reachable"):
                    writer.write(rows(stream, range(n * 50, n * 50 + 50)))
                server.start_again()
            until_written(writer, rows(stream, range(n * 50, n * 50 + 50)))

        found = values(server, stream)
        assert list(dict.fromkeys(found)) == numbers(range(600))
        assert found[-50:] == numbers(range(550, 600))

    def test_a_pipeline_may_start_while_the_server_is_away(self, server, stream, open_writer):
        server.stop()
        writer = open_writer(connect_timeout_secs=1)
        with pytest.raises(RetryableError, match="refused"):
            writer.write(rows(stream, range(3)))
        server.start_again()

        until_written(writer, rows(stream, range(3)))

        assert values(server, stream) == numbers(range(3))

    def test_a_frozen_server_gets_each_entry_once(self, server, stream, open_writer):
        writer = open_writer(send_timeout_secs=1)
        until_written(writer, rows(stream, range(10)))
        server.pause()
        for _ in range(2):
            with pytest.raises(RetryableError, match="no answer after 1 s"):
                writer.write(rows(stream, range(10, 500)))
        server.resume()

        until_written(writer, rows(stream, range(10, 500)))

        assert values(server, stream) == numbers(range(500))

    def test_a_batch_is_bounded_as_a_whole(self, server, stream, open_writer):
        writer = open_writer(send_timeout_secs=60, batch_timeout_secs=1)
        until_written(writer, rows(stream, range(1)))
        server.pause()

        with pytest.raises(RetryableError, match="the batch is not written after 1 s"):
            writer.write(rows(stream, range(1, 3)))

    def test_a_batch_given_up_is_not_overtaken(self, server, stream, open_writer):
        writer = open_writer(send_timeout_secs=1)
        until_written(writer, rows(stream, range(10)))
        server.pause()
        with pytest.raises(RetryableError):
            writer.write(rows(stream, range(10, 20)))
        with pytest.raises(RetryableError):
            writer.write(rows(stream, range(20, 30)))
        server.resume()

        until_written(writer, rows(stream, range(20, 30)))

        assert values(server, stream) == numbers(range(30))

    def test_what_was_confirmed_is_not_written_again(
        self, server, stream, open_writer, monkeypatch
    ):
        # Between two steps the server dies: the first step stands, and is not repeated.
        writer = open_writer()
        batch = rows(stream, range(2500))
        send, steps = RedisPipeline.send, []

        def die_before_the_second(pipe, pieces, answers):
            if answers > 100:  # Of the entries of a step.
                steps.append(pipe)
            if len(steps) == 2:
                server.kill()
            send(pipe, pieces, answers)

        with monkeypatch.context() as patched:
            patched.setattr(RedisPipeline, "send", die_before_the_second)
            with pytest.raises(RetryableError):
                writer.write(batch)
        server.start_again()

        until_written(writer, batch)

        assert values(server, stream) == numbers(range(2500))

    def test_a_connection_that_was_idle_too_long_is_made_anew(self, server, stream, open_writer):
        writer = open_writer()
        for start in range(0, 9, 3):
            writer.write(rows(stream, range(start, start + 3)))
            client(server).client_kill_filter(_type="normal", skipme=True)

        assert values(server, stream) == numbers(range(9))

    def test_a_host_that_vanishes_is_noticed_by_the_kernel(self, writer_socket):
        limits = {socket.TCP_KEEPIDLE: 15, socket.TCP_USER_TIMEOUT: 30_000}

        assert writer_socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        for name, limit in limits.items():
            assert writer_socket.getsockopt(socket.IPPROTO_TCP, name) == limit

    def test_a_name_that_leads_elsewhere_is_followed(
        self, server, stream, open_writer, monkeypatch
    ):
        writer = open_writer(send_timeout_secs=1)
        until_written(writer, rows(stream, range(3)))
        server.pause()
        elsewhere = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.2", server.port))
        with monkeypatch.context() as patched:
            patched.setattr(socket, "getaddrinfo", lambda *_, **__: [elsewhere])
            with pytest.raises(RetryableError, match="another server has taken its place"):
                writer.write(rows(stream, range(3, 6)))
        server.resume()

        until_written(writer, rows(stream, range(3, 6)))

        assert values(server, stream)[-3:] == numbers(range(3, 6))

    def test_a_write_that_hangs_is_abandoned_soon(self, server, stream, open_writer):
        writer = open_writer(send_timeout_secs=600, batch_timeout_secs=600)
        writer.write(rows(stream, range(1)))
        server.pause()
        said = []

        def write():
            with pytest.raises(RetryableError) as caught:
                writer.write(rows(stream, range(1, 3)))
            said.append(str(caught.value))

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        writer.abandon()
        thread.join(60)

        assert "asked to end" in said[0]

    def test_a_server_without_persistence_begins_anew(self, tmp_path, stream, open_writer):
        forgetful = servers.start_forgetful(tmp_path / "redis")
        try:
            writer = open_writer(forgetful.dsn("0"))
            writer.write(rows(stream, range(5)))
            forgetful.kill()
            forgetful.start_again()

            until_written(writer, rows(stream, range(5, 9)))

            assert values(forgetful, stream) == numbers(range(5, 9))
        finally:
            forgetful.stop()


class TestRefusedForAWhile:
    def test_without_memory_a_batch_is_written_as_a_whole_or_not(self, server, stream, open_writer):
        writer = open_writer()
        writer.write(rows(stream, range(3)))
        admin = client(server)
        admin.config_set("maxmemory", "1mb")
        try:
            with pytest.raises(RetryableError, match=r"OOM .*maxmemory.*max_len"):
                writer.write(rows(stream, range(3, 50)))
            assert values(server, stream) == numbers(range(3))
        finally:
            admin.config_set("maxmemory", "256mb")

        writer.write(rows(stream, range(3, 50)))

        assert values(server, stream) == numbers(range(50))

    def test_memory_that_returns_in_the_middle_leaves_no_hole(self, server, stream, open_writer):
        admin = client(server)
        writer = open_writer()
        over = threading.Event()

        def swing():
            while not over.is_set():
                for size in ("1mb", "256mb"):
                    admin.config_set("maxmemory", size)
            admin.config_set("maxmemory", "256mb")

        thread = threading.Thread(target=swing, daemon=True)
        thread.start()
        try:
            for start in range(0, 4000, 1000):
                until_written(writer, rows(stream, range(start, start + 1000)))
        finally:
            over.set()
            thread.join()

        assert values(server, stream) == numbers(range(4000))

    def test_a_busy_server_is_waited_for(self, server, stream, open_writer):
        writer = open_writer()
        writer.write(rows(stream, range(1)))
        admin = client(server)
        admin.config_set("lua-time-limit", 10)
        looping = threading.Thread(target=_loop, args=(server,), daemon=True)
        looping.start()

        def busy():
            try:
                admin.get("x")
            except redis.ResponseError:
                return True
            return False

        wait_for("a busy server", busy)
        with pytest.raises(RetryableError, match=r"BUSY .*SCRIPT KILL"):
            writer.write(rows(stream, range(1, 9)))
        admin.script_kill()
        looping.join(60)

        until_written(writer, rows(stream, range(1, 9)))

        assert values(server, stream) == numbers(range(9))

    def test_a_replica_is_not_written_to(self, server, stream, open_writer):
        writer = open_writer()
        admin = client(server)
        admin.replicaof(HOST, free_port())
        try:
            with pytest.raises(RetryableError, match=r"READONLY .*sentinels"):
                writer.write(rows(stream, range(3)))
        finally:
            admin.replicaof("NO", "ONE")

        until_written(writer, rows(stream, range(3)))

        assert values(server, stream) == numbers(range(3))


def _loop(server):
    with contextlib.suppress(redis.RedisError):
        client(server, socket_timeout=60).eval("while true do end", 0)


class TestLogins:
    @pytest.fixture
    def user(self, server):
        name = f"df-{uuid.uuid4().hex[:8]}"
        yield name
        client(server).acl_deluser(name)

    def allow(self, server, user, *rules, password=PASSWORD):
        client(server).execute_command("ACL", "SETUSER", user, "on", f">{password}", *rules)

    def test_the_documented_rights_are_enough(self, server, stream, user, open_writer):
        rights = ("~orders*", "+@connection", "+multi", "+exec", "+xadd")
        self.allow(server, user, *rights)
        writer = open_writer(username=user, password=PASSWORD)

        assert list(writer.write(rows(stream, range(3)))) == []

        assert values(server, stream) == numbers(range(3))
        assert "deltaforge-p-r" in {one["name"] for one in client(server).client_list()}

    def test_the_uri_may_hold_the_login_and_a_name_of_our_own(self, server, user, open_writer):
        self.allow(server, user, "~*", "+@all")
        place = server.dsn("3").replace("://", f"://{user}:{PASSWORD}@")
        writer = open_writer(place, client_name="cdc-1")
        writer.write(rows("elsewhere", range(2)))

        assert values(server, "elsewhere", db=3) == numbers(range(2))
        assert "cdc-1" in {one["name"] for one in client(server).client_list()}
        client(server, db=3).delete("elsewhere")

    def test_a_wrong_password_fails_at_once(self, open_writer, caplog):
        with pytest.raises(AccessError, match=r"WRONGPASS .*correct user") as caught:
            open_writer(username="nobody", password="wr0ng-s3cret")

        assert "wr0ng-s3cret" not in str(caught.value) + caplog.text

    def test_a_right_that_is_missing_is_named(self, server, stream, user, open_writer):
        self.allow(server, user, "~other*", "+@connection", "+multi", "+exec", "+xadd")
        writer = open_writer(username=user, password=PASSWORD)

        with pytest.raises(AccessError, match=r"NOPERM .*grant it"):
            writer.write(rows(stream, range(3)))

    def test_without_transactions_nothing_is_written(self, server, stream, user, open_writer):
        self.allow(server, user, "~*", "+@connection", "+xadd")

        with pytest.raises(AccessError, match=r"NOPERM .*multi"):
            open_writer(username=user, password=PASSWORD)

    def test_a_password_changed_while_running(self, server, stream, user, open_writer):
        self.allow(server, user, "~*", "+@all")
        writer = open_writer(username=user, password=PASSWORD)
        writer.write(rows(stream, range(3)))
        client(server).execute_command("ACL", "SETUSER", user, "resetpass", ">another")
        writer.write(rows(stream, range(3, 6)))  # A connection that stands keeps its rights.
        client(server).client_kill_filter(user=user)

        with pytest.raises(AccessError, match=r"WRONGPASS"):
            until_written(writer, rows(stream, range(6, 9)))

        assert values(server, stream) == numbers(range(6))

    def test_a_server_that_wants_a_password_says_so(self, tmp_path, open_writer):
        locked = servers.start(tmp_path / "redis", settings={"requirepass": PASSWORD})
        try:
            with pytest.raises(AccessError, match=r"NOAUTH .*password"):
                open_writer(locked.dsn("0"))
            writer = open_writer(locked.dsn("0").replace("://", f"://:{PASSWORD}@"))
            writer.write(rows("s", range(2)))
            assert values(locked, "s", password=PASSWORD) == numbers(range(2))
        finally:
            locked.stop()


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """Redis with TLS that asks for a certificate, a plain port and a socket."""
    directory = tmp_path_factory.mktemp("secured-redis")
    make_certificate(directory)
    tls_port = free_port()
    settings = {
        "tls-port": str(tls_port),
        "tls-cert-file": str(directory / "certificate.pem"),
        "tls-key-file": str(directory / "key.pem"),
        "tls-ca-cert-file": str(directory / "certificate.pem"),
        "unixsocket": str(directory / "redis.sock"),
    }
    server = servers.start(directory, settings=settings)
    yield server, f"rediss://{HOST}:{tls_port}", directory
    server.stop()


def make_certificate(directory: Path) -> None:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={HOST}", "-addext", f"subjectAltName=IP:{HOST}"),
            *("-keyout", str(directory / "key.pem")),
            *("-out", str(directory / "certificate.pem")),
        ],
        check=True,
        capture_output=True,
    )


class TestTls:
    def own(self, directory):
        return {
            "ca_file": str(directory / "certificate.pem"),
            "cert_file": str(directory / "certificate.pem"),
            "key_file": str(directory / "key.pem"),
        }

    def test_both_sides_show_a_certificate(self, secured, stream, open_writer):
        server, place, directory = secured
        writer = open_writer(place, **self.own(directory))

        assert list(writer.write(rows(stream, range(3)))) == []
        assert values(server, stream) == numbers(range(3))

    def test_an_unknown_authority_is_an_access_error(self, secured, open_writer):
        with pytest.raises(AccessError, match=r"certificate verify failed.*ca_file"):
            open_writer(secured[1])

    def test_a_certificate_that_is_missing_is_asked_for(self, secured, stream, open_writer):
        _, place, directory = secured

        # Whether the server's reason or its hanging up is seen first is up to the network.
        with pytest.raises((RetryableError, AccessError), match="cert_file"):
            open_writer(place, ca_file=str(directory / "certificate.pem")).write(
                rows(stream, range(1))
            )

    def test_tls_to_a_port_without_it(self, secured, stream, open_writer):
        server, _, directory = secured
        place = f"rediss://{HOST}:{server.port}"
        writer = open_writer(place, send_timeout_secs=1, **self.own(directory))

        with pytest.raises(RetryableError, match="TLS only if we do"):
            writer.write(rows(stream, range(1)))

    def test_a_plain_connection_to_a_tls_port(self, secured, stream, open_writer):
        writer = open_writer(secured[1].replace("rediss", "redis"))

        with pytest.raises(RetryableError, match="TLS only if we do"):
            writer.write(rows(stream, range(1)))

    def test_a_socket_of_the_machine(self, secured, stream, open_writer):
        server, _, directory = secured
        writer = open_writer(f"unix://{directory}/redis.sock?db=0")

        writer.write(rows(stream, range(3)))

        assert values(server, stream) == numbers(range(3))
