"""Who may write to NATS: passwords, keys, permissions, TLS."""

import asyncio
import os
import re
import signal
import subprocess

import nkeys
import pytest

from airflow_provider_deltaforge.errors import AccessError, FatalError, RetryableError, SpecError
from airflow_provider_deltaforge.sinks.nats import NatsSink
from airflow_provider_deltaforge.sinks.nats.connection import NatsConnection
from airflow_provider_deltaforge.testing.sinks import messages, value
from tests.servers import nats
from tests.servers.process import free_port
from tests.sinks import nats_reader as reader
from tests.sinks.nats_credentials import Issuer
from tests.waiting import wait_until

SEED = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER).decode()
PUBLIC = nkeys.from_seed(bytearray(SEED.encode())).public_key.decode()
ADMIN = {"user": "admin", "password": "p"}
ACCOUNTS = """
accounts {
  DATA {
    jetstream: enabled
    users: [
      { user: admin, password: p }
      { user: df, password: "s3cret-one" }
      { nkey: "PUBLIC" }
      { user: quiet, password: p, permissions { publish: ["$JS.API.>"], subscribe: "_INBOX.>" } }
      { user: blind, password: p, permissions { publish: ["orders.>"], subscribe: "_INBOX.>" } }
      { user: deaf, password: p, permissions { publish: ">", subscribe: "orders.>" } }
    ]
  }
  PLAIN { users: [{ user: plain, password: p }] }
}
""".replace("PUBLIC", PUBLIC)


def rows(place, span):
    return messages([(place, b'{"id":%d}' % n, value(n)) for n in span])


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory):
    server = nats.start(tmp_path_factory.mktemp("strict-nats"), settings=ACCOUNTS)
    reader.add_stream(server.dsn(), "ORDERS", "orders.>", login=ADMIN)
    yield server
    server.stop()


class TestAccess:
    """Passwords, keys and permissions."""

    @pytest.fixture
    def server(self, strict_server):
        return strict_server

    @pytest.fixture
    def place(self):
        return "orders.new"

    @pytest.fixture
    def open_writer(self, server):
        writers = []

        def open_one(**settings):
            given = {"url": server.dsn(), "subject": "orders.new", "stream": "ORDERS"}
            writers.append(NatsSink(**{**given, **settings}).open("p"))
            return writers[-1]

        yield open_one
        for writer in writers:
            writer.close()

    @pytest.mark.parametrize(
        "login",
        [
            {"username": "df", "password": "s3cret-one"},
            {"nkey_seed": SEED},
            {"url": "nats://df:s3cret-one@{}"},
        ],
    )
    def test_it_logs_in(self, login, server, place, open_writer):
        login = {key: text.format(server.dsn()[7:]) for key, text in login.items()}

        assert list(open_writer(**login).write(rows(place, range(1)))) == []

    @pytest.mark.parametrize(
        "login",
        [
            {},
            {"username": "df", "password": "wr0ng"},
            {"token": "wr0ng"},
            {"url": "nats://df:wr0ng@{}"},
        ],
    )
    def test_a_wrong_login_fails_fast_and_shows_no_secret(self, login, server, place, open_writer):
        login = {key: text.format(server.dsn()[7:]) for key, text in login.items()}

        with pytest.raises(AccessError, match="refuses us") as caught:
            open_writer(**login).write(rows(place, range(1)))

        assert "wr0ng" not in str(caught.value)

    def test_a_token(self, tmp_path, open_writer):
        server = nats.start(tmp_path, settings='authorization { token: "t0ken" }')
        reader.add_stream(server.dsn(), "T", "t", login={"token": "t0ken"})
        writer = open_writer(url=server.dsn(), token="t0ken", stream="T", subject="t")

        assert list(writer.write(rows("t", range(3)))) == []
        server.stop()

    def test_a_changed_password_fails_fast(self, server, place, open_writer):
        writer = open_writer(username="df", password="s3cret-one")
        writer.write(rows(place, range(1)))
        nats.configure(server, ACCOUNTS.replace("s3cret-one", "s3cret-two"))
        os.kill(server.pid, signal.SIGHUP)

        def refused():
            try:
                writer.write(rows(place, range(1, 2)))
            except RetryableError:
                return False
            except AccessError as error:
                return "refuses us" in str(error)

        wait_until(refused)
        nats.configure(server, ACCOUNTS)
        os.kill(server.pid, signal.SIGHUP)
        until_logged_in(open_writer, place)

    @pytest.mark.parametrize(
        ("user", "what"),
        [
            ("quiet", 'publish to "orders.new"'),
            ("blind", r"\$js\.api\.stream\.info"),
            ("deaf", "subscription to"),
        ],
    )
    def test_missing_permissions_fail_fast_and_are_named(self, user, what, place, open_writer):
        writer = open_writer(username=user, password="p")

        with pytest.raises(AccessError, match=rf"permissions violation.*{what}"):
            writer.write(rows(place, range(1)))

    def test_jetstream_disabled_fails_fast(self, tmp_path, open_writer):
        server = nats.start(tmp_path, jetstream=False)

        with pytest.raises(FatalError, match="does not run JetStream; enable it"):
            open_writer(url=server.dsn()).write(rows("orders.new", range(1)))
        server.stop()

    @pytest.mark.parametrize("stream", [None, "ORDERS"])
    def test_a_cluster_without_jetstream_is_named_in_the_error(self, stream, tmp_path, open_writer):
        route = free_port()
        server = nats.start(
            tmp_path,
            jetstream=False,
            settings=f'cluster {{ name: c, listen: "127.0.0.1:{route}" }}',
        )
        writer = open_writer(url=server.dsn(), stream=stream, send_timeout_secs=1)

        def told():
            with pytest.raises(RetryableError) as caught:
                writer.write(rows("orders.new", range(1)))
            return re.search("not run JetStream.*cluster.*enable it", str(caught.value))

        wait_until(told)  # Sooner or later: it may also have had no time for an answer.
        server.stop()

    def test_an_account_without_jetstream_fails_fast(self, place, open_writer):
        writer = open_writer(username="plain", password="p")

        with pytest.raises(FatalError, match="enable JetStream"):
            writer.write(rows(place, range(1)))


def test_servers_that_are_not_named_get_the_login_of_the_one_that_named_them(tmp_path):
    routes = [free_port(), free_port()]
    listed = ", ".join(f'"nats://127.0.0.1:{route}"' for route in routes)
    named, other = (
        nats.start(
            tmp_path / f"{route}",
            jetstream=False,
            settings=f'cluster {{ name: c, listen: "127.0.0.1:{route}", routes: [{listed}] }}\n'
            "authorization { user: df, password: s3cret }",
        )
        for route in routes
    )
    place = named.dsn().removeprefix("nats://")
    line = NatsConnection(NatsSink(url=f"nats://df:s3cret@{place}", subject="t"), "test")

    async def known(client, _):
        return client.discovered_servers

    async def next_server():
        await line.up()
        await line.drop()
        named.stop()
        streams = await line.up()
        await line.drop()
        return streams.client.server

    wait_until(lambda: reader.asked(named.dsn(), known, user="df", password="s3cret"))
    assert asyncio.run(next_server()) == other.dsn()
    other.stop()


def until_logged_in(open_writer, place):
    def logged_in():
        try:
            open_writer(username="df", password="s3cret-one").write(rows(place, range(1)))
        except (AccessError, RetryableError):  # A server that takes new settings may hang up.
            return False
        return True

    wait_until(logged_in)


class TestCredentials:
    """Files of ``nsc``, with users that expire."""

    @pytest.fixture
    def issuer(self):
        return Issuer()

    @pytest.fixture
    def server(self, issuer, tmp_path):
        server = nats.start(tmp_path / "nats", settings=issuer.settings())
        file = issuer.write(tmp_path / "admin.creds")
        reader.add_stream(server.dsn(), "ORDERS", "orders", login={"user_credentials": file})
        yield server
        server.stop()

    def test_they_log_in_until_they_expire(self, server, issuer, tmp_path):
        file = str(tmp_path / "df.creds")
        settings = {"url": server.dsn(), "subject": "orders", "stream": "ORDERS"}
        writer = NatsSink(**settings, credentials_file=file).open("p")
        lifetimes = iter((3, 10, 30, 90))

        def in_time():
            issuer.write(tmp_path / "df.creds", expires_s=next(lifetimes))
            try:
                writer.write(rows("orders", range(3)))
            except (AccessError, RetryableError):  # Expired before it began, or meanwhile.
                return False
            return True

        wait_until(in_time)

        def refused():
            try:
                writer.write(rows("orders", range(3)))
            except RetryableError:
                return False
            except AccessError as error:
                return "refuses us" in str(error)

        wait_until(refused)
        issuer.write(tmp_path / "df.creds")
        assert list(writer.write(rows("orders", range(3)))) == []
        writer.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    directory = tmp_path_factory.mktemp("nats-tls")
    for name in ("server", "client"):
        make_certificate(directory, name)
    return directory


@pytest.fixture(scope="module")
def tls_server(certificates):
    settings = (
        f'tls {{ cert_file: "{certificates}/server.pem", key_file: "{certificates}/server.key", '
        f'ca_file: "{certificates}/client.pem", verify: true }}\n'
        "authorization { user: df, password: s3cret }"
    )
    server = nats.start(certificates / "data", settings=settings)
    yield server
    server.stop()


class TestTls:
    """A server that only speaks TLS, and one that does not."""

    @pytest.fixture
    def files(self, certificates):
        return certificates

    @pytest.fixture
    def server(self, tls_server):
        return tls_server

    def sink(self, server, **settings):
        url = server.dsn().replace("nats://", "tls://")
        given = {"url": url, "username": "df", "password": "s3cret", "subject": "$JS.X"}
        return NatsSink(**{**given, **settings})

    def first_use(self, sink):
        writer = sink.open("p")
        try:
            return writer.write(rows("orders", range(1)))
        finally:
            writer.close()

    def test_the_right_certificates_work(self, server, files):
        sink = self.sink(
            server,
            ca_file=f"{files}/server.pem",
            cert_file=f"{files}/client.pem",
            key_file=f"{files}/client.key",
        )

        with pytest.raises(RetryableError, match="nobody listens"):
            self.first_use(sink)

    def test_an_unknown_authority_fails_fast(self, server):
        with pytest.raises(AccessError, match=r"no TLS connection.*certificate"):
            self.first_use(self.sink(server))

    def test_a_missing_client_certificate_does_not_get_in(self, server, files):
        with pytest.raises((AccessError, RetryableError)):
            self.first_use(self.sink(server, ca_file=f"{files}/server.pem"))

    def test_a_password_is_not_given_to_a_server_without_tls(self, tmp_path):
        server = nats.start(
            tmp_path, settings="authorization { user: df, password: s3cret }\ntrace: true"
        )

        with pytest.raises(AccessError, match="offers no TLS"):
            self.first_use(self.sink(server))
        server.stop()
        assert "CONNECT" not in server.log_path.read_text()

    @pytest.mark.parametrize("login", [{}, {"nkey_seed": SEED}])
    def test_nothing_is_sent_to_a_server_without_tls(self, login, tmp_path):
        server = nats.start(tmp_path)
        nobody = {"username": None, "password": None}

        with pytest.raises(AccessError, match="offers no TLS"):
            self.first_use(self.sink(server, **nobody, **login))
        server.stop()

    def test_a_missing_file_is_named_by_its_key(self, server, tmp_path):
        for key in ("ca_file", "cert_file"):
            with pytest.raises(SpecError, match=key):
                self.first_use(self.sink(server, **{key: f"{tmp_path}/none.pem"}))

    def test_files_of_credentials_that_cannot_be_used_are_named(self, server, tmp_path):
        (tmp_path / "bad.creds").write_text("nothing")
        login = {"username": None, "password": None}
        for name in ("none.creds", "bad.creds"):
            with pytest.raises(SpecError, match="credentials_file"):
                self.first_use(self.sink(server, **login, credentials_file=f"{tmp_path}/{name}"))
        with pytest.raises(SpecError, match="nkey_seed"):
            self.first_use(self.sink(server, **login, nkey_seed="SUAB"))


def make_certificate(directory, name):
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", f"{directory}/{name}.key", "-out", f"{directory}/{name}.pem"),
        ],
        check=True,
        capture_output=True,
    )
