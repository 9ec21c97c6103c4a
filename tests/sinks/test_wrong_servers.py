"""Another kind of server where a sink's or a registry's should be: one sentence that names both."""

import socket
import threading
import time
from contextlib import ExitStack
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from airflow_provider_deltaforge.cli import app as command
from airflow_provider_deltaforge.control.preflight import preflight
from airflow_provider_deltaforge.encodings.avro.subjects import Subjects
from airflow_provider_deltaforge.errors import RetryableError, WrongServerError
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.telemetry.listener import other_server, place_in
from airflow_provider_deltaforge.testing.sinks import messages
from tests.servers.process import HOST, free_port

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: mistaken, tenant: tests}}
spec:
  source: {{type: scripted, config: {{id: mistaken-source}}}}
  sinks: [{sinks}]
"""
PATIENCE_S = 60.0
"""On a machine that is busy; alone, the slowest answer takes about twelve seconds."""


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Say nothing."""

    def do_POST(self):
        """Answer as a page does that takes everything."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>welcome</html>")


class _Web(ThreadingHTTPServer):
    def handle_error(self, *_):
        """Clients that hang up are what is tested."""


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    """The port of an HTTP server."""
    server = _Web((HOST, 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def kafka(port, **more):
    return "kafka", {"brokers": f"{HOST}:{port}", "topic": "rows", "send_timeout_secs": 1, **more}


def redis(port, uri="redis://{place}/0", **more):
    return "redis", {"uri": uri.format(place=f"{HOST}:{port}"), "stream": "rows", **more}


def nats(port, scheme="nats", **more):
    url = f"{scheme}://{HOST}:{port}"
    times = {"connect_timeout_secs": 2, "batch_timeout_secs": 30}
    return "nats", {"url": url, "subject": "rows", "stream": "ROWS", **times, **more}


def avro(port, path=""):
    encoding = {"type": "avro", "schema_registry_url": f"http://{HOST}:{port}{path}"}
    return "memory", {"topic": "rows", "encoding": encoding}


def described(kind, config):
    told = ", ".join(f"{name}: {_text(value)}" for name, value in {"id": kind, **config}.items())
    return load(DOCUMENT.format(sinks=f"{{type: {kind}, config: {{{told}}}}}"))


def _text(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f'{name}: "{one}"' for name, one in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else f'"{value}"'


def asked(kind, config):
    """Return the finding about the sink, or about what its encoding needs."""
    begun = time.monotonic()
    found = [one for one in preflight(described(kind, config)) if one.check.startswith("sink ")]
    assert time.monotonic() - begun < PATIENCE_S
    return found[-1]


CASES = [
    pytest.param(kafka, {}, "brokers", id="kafka"),
    pytest.param(kafka, {"exactly_once": True}, "brokers", id="kafka once"),
    pytest.param(redis, {}, "uri", id="redis"),
    pytest.param(redis, {"exactly_once": True}, "uri", id="redis once"),
    pytest.param(redis, {"uri": "redis+cluster://{place}"}, "uri", id="cluster"),
    pytest.param(redis, {"uri": "redis+sentinel://{place}/m"}, "uri", id="sentinel"),
    pytest.param(redis, {"uri": "rediss://{place}/0"}, "uri", id="rediss"),
    pytest.param(nats, {}, "url", id="nats"),
    pytest.param(nats, {"exactly_once": True}, "url", id="nats once"),
    pytest.param(nats, {"scheme": "tls"}, "url", id="nats tls"),
]


@pytest.mark.parametrize(("make", "more", "key"), CASES)
def test_an_http_server_in_a_sinks_place_is_named(make, more, key, web):
    kind, config = make(web, **more)
    found = asked(kind, config)
    assert found.verdict == "fail"
    assert f"{kind} sink {kind}: {key}: an HTTP server (SimpleHTTP" in found.message
    assert f"answers at {HOST}:{web}" in found.message
    assert f"correct '{key}'" in found.message
    assert "\n" not in found.message


@pytest.mark.parametrize("make", [kafka, redis, nats])
def test_a_running_sink_says_so_as_well_and_waits(make, web):
    kind, config = make(web)
    writer = described(kind, config).spec.sinks[0].open("mistaken")
    try:
        begun = time.monotonic()
        with pytest.raises(WrongServerError, match="an HTTP server") as refused:
            writer.write(messages([("rows", b"1", b"{}")]))
        assert time.monotonic() - begun < PATIENCE_S
    finally:
        writer.close()
    assert isinstance(refused.value, RetryableError)
    assert refused.value.error_class == "retryable"


def test_a_web_page_in_the_registrys_place_is_named(web):
    kind, config = avro(web)
    found = asked(kind, config)
    assert (found.check, found.verdict) == ("sink memory encoding", "fail")
    assert "encoding.schema_registry_url: an HTTP server that is no schema registry" in (
        found.message
    )
    subjects = Subjects(config["encoding"]["schema_registry_url"], None, None, "sink s")
    with pytest.raises(WrongServerError, match="no schema registry"):
        subjects.id_of("s", '"string"')
    subjects.close()


@pytest.mark.parametrize(
    ("kind", "words"),
    [("redis", "a Redis server"), ("nats", "a NATS server"), ("kafka", "a Kafka broker")],
)
def test_brokers_in_the_registrys_place_are_named(kind, words, request):
    port = request.getfixturevalue(f"{kind}_server").port
    found = asked(*avro(port))
    assert found.verdict == "fail"
    assert f"schema_registry_url: {words} answers at {HOST}:{port}" in found.message
    subjects = Subjects(f"http://{HOST}:{port}", None, None, "sink s")
    with pytest.raises(WrongServerError, match=words):
        subjects.id_of("s", '"string"')
    subjects.close()


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (redis, "nats", "a NATS server"),
        (redis, "kafka", "a Kafka broker"),
        (nats, "redis", "a Redis server"),
        (kafka, "redis", "a Redis server"),
        (redis, "mysql", "a MySQL or MariaDB server"),
    ],
)
def test_sinks_that_are_mixed_up_are_named(make, kind, words, request):
    port = request.getfixturevalue(f"{kind}_server").port
    found = asked(*make(port))
    assert (found.verdict, words in found.message) == ("fail", True)


def test_a_registry_that_answers_passes(schema_registry_server):
    port = schema_registry_server.port
    path = schema_registry_server.dsn().partition(str(port))[2]
    found = asked(*avro(port, path))
    assert (found.check, found.verdict) == ("sink memory encoding", "ok")
    assert asked(*avro(free_port())).verdict == "warn"
    wrong = asked(*avro(port, "/apis/other"))
    assert (wrong.verdict, "encoding.schema_registry_url" in wrong.message) == ("fail", True)


def test_what_should_be_there_is_no_mistake(redis_server, nats_server, kafka_server):
    for kind, server in (("Redis", redis_server), ("NATS", nats_server), ("Kafka", kafka_server)):
        assert other_server(kind, [(HOST, server.port)]) is None
    assert other_server("Redis", [(HOST, free_port()), ("no-such-host.invalid", 1)]) is None
    assert other_server("Redis", []) is None


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("h:1", ("h", 1)),
        ("h", ("h", 9)),
        ("PLAINTEXT://h:1", ("h", 1)),
        ("http://h/apis/x", ("h", 9)),
        ("[::1]:5", ("::1", 5)),
        ("a@b:1", None),
        ("", None),
    ],
)
def test_places_are_read_from_addresses(address, place):
    assert place_in(address, 9) == place


def test_the_command_ends_with_a_sentence(web, tmp_path):
    path = tmp_path / "mistaken.yaml"
    place = f"{HOST}:{web}"
    path.write_text(
        DOCUMENT.format(
            sinks=f'{{type: redis, config: {{id: r, uri: "redis://{place}/0", stream: rows}}}}'
        )
    )
    outcome = CliRunner().invoke(command.app, ["preflight", str(path)])
    assert outcome.exit_code == 1
    assert isinstance(outcome.exception, SystemExit)
    words = " ".join(outcome.output.split())
    assert "an HTTP server" in words
    assert "Traceback" not in words


def test_servers_that_hang_are_asked_for_a_bounded_time():
    with ExitStack() as stack:
        hung = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(3)]
        places = [server.getsockname() for server in hung]
        begun = time.monotonic()
        assert other_server("Kafka", places, limit_s=1.0) is None
        assert time.monotonic() - begun < 20  # Each place alone would take five.
