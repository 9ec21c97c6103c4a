"""What arrives at an endpoint, on real sockets."""

import json
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.envelopes.cloudevents import CloudEventsEnvelope
from airflow_provider_deltaforge.errors import AccessError, RetryableError
from airflow_provider_deltaforge.sinks.http import HttpSink
from airflow_provider_deltaforge.sinks.http.signing import signed, signing_key
from airflow_provider_deltaforge.testing.sinks import SinkContract, messages, value
from tests.sinks.certificates import certified
from tests.sinks.http.endpoint import Endpoint, numbers, rows

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Delivering(SinkContract):
    @pytest.fixture
    def place(self, endpoint):
        return f"{endpoint.url}/in"

    @pytest.fixture
    def stored(self, endpoint):
        return endpoint.values


class TestOneEventPerRequest(Delivering):
    @pytest.fixture
    def sink(self, endpoint):
        return HttpSink(url=f"{endpoint.url}/${{source.table}}")


class TestArrays(Delivering):
    @pytest.fixture
    def sink(self, endpoint):
        return HttpSink(url=f"{endpoint.url}/${{source.table}}", batch_mode=True)


def test_a_request_says_which_event_it_is(endpoint, opened):
    place = f"{endpoint.url}/in?a=1"
    writer = opened(endpoint, method="put", headers={"Authorization": "Bearer x", "X-Count": 3})
    given = [(place, b'{"id":1}', b"{}"), (place, None, b"[]"), (place, "é%\n ".encode(), b"1")]

    batch = messages(given)
    writer.write(batch)

    found = endpoint.requests
    assert [(each.method, each.path, each.body) for each in found] == [
        ("PUT", "/in?a=1", body) for body in (b"{}", b"[]", b"1")
    ]
    assert [each.headers.get("df-key") for each in found] == ['{"id":1}', None, "%C3%A9%25%0A%20"]
    ids = [str(uuid.UUID(bytes=each)) for each in batch.event_ids.to_pylist()]
    assert [each.headers["df-event-id"] for each in found] == ids
    assert [each.headers["idempotency-key"] for each in found] == ids
    assert {each.headers["authorization"] for each in found} == {"Bearer x"}
    assert found[0].headers["x-count"] == "3"
    assert found[0].headers["content-type"] == "application/json"
    assert found[0].headers["host"] == f"127.0.0.1:{endpoint.port}"
    assert "webhook-id" not in found[0].headers


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "application/json"),
        ({"envelope": CloudEventsEnvelope(type_prefix="a")}, "application/cloudevents+json"),
        (
            {"envelope": CloudEventsEnvelope(type_prefix="a"), "batch_mode": True},
            "application/cloudevents-batch+json",
        ),
        ({"headers": {"content-type": "text/plain"}}, "text/plain"),
    ],
)
def test_the_content_is_called_what_it_is(endpoint, opened, settings, expected):
    opened(endpoint, **settings).write(rows(endpoint, range(1)))

    assert [each.headers["content-type"] for each in endpoint.requests] == [expected]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [("cloudevents+json", 1), ("json", 1), ("json", 1), ("cloudevents+json", 1)]),
        (
            {"batch_mode": True},
            [("cloudevents-batch+json", 1), ("json", 2), ("cloudevents-batch+json", 1)],
        ),
        ({"batch_mode": True, "headers": {"Content-Type": "application/x"}}, [("x", 4)]),
        ({"batch_mode": True, "envelope": "native"}, [("json", 4)]),
    ],
    ids=str,
)
def test_a_body_without_an_envelope_is_called_plain_json(endpoint, opened, settings, expected):
    batch = replace(rows(endpoint, range(4)), bare=pa.array([False, True, True, False]))
    envelope = CloudEventsEnvelope(type_prefix="a")

    opened(endpoint, **{"envelope": envelope, **settings}).write(batch)

    assert [
        (each.headers["content-type"].removeprefix("application/"), each.body.count(b'"n"'))
        for each in endpoint.requests
    ] == expected
    assert numbers(endpoint) == list(range(4))


@pytest.mark.parametrize("batch_mode", [False, True])
def test_headers_of_a_processor_are_sent_but_cannot_forge_ours(endpoint, opened, batch_mode):
    chosen = [("X-Tenant", "é"), ("Idempotency-Key", "forged"), ("Authorization", "own")]
    writer = opened(endpoint, headers={"Authorization": "Bearer x"}, batch_mode=batch_mode)

    assert list(writer.write(rows(endpoint, range(3), headers=[None, chosen, chosen]))) == []

    with_them = endpoint.requests[1]
    assert with_them.headers["x-tenant"] == "%C3%A9"
    assert with_them.headers["authorization"] == "own"
    assert with_them.headers["idempotency-key"] != "forged"
    assert "x-tenant" not in endpoint.requests[0].headers
    assert numbers(endpoint) == [0, 1, 2]
    assert len(endpoint.requests) == (2 if batch_mode else 3)


def test_a_header_that_cannot_be_sent_sets_its_event_aside(endpoint, opened):
    given = [None, [("Content-Length", "0")], [("a b", "c")], [("X-Line", "a\r\nb: c")]]

    rejections = opened(endpoint).write(rows(endpoint, range(4), headers=given))

    assert [(each.event_row, each.kind) for each in rejections] == [(1, "routing"), (2, "routing")]
    assert numbers(endpoint) == [0, 3]
    assert endpoint.requests[1].headers["x-line"] == "a%0D%0Ab: c"


def test_requests_are_signed_as_receivers_check_it(endpoint, opened):
    opened(endpoint, signing_secret=SECRET).write(rows(endpoint, range(1)))

    (found,) = endpoint.requests
    stamp = int(found.headers["webhook-timestamp"])
    event_id = found.headers["df-event-id"]
    expected = signed(signing_key(SECRET), event_id, stamp, found.body)
    for name, text in expected.items():
        assert found.headers[name.decode()] == text.decode()


def test_the_signature_is_the_one_of_the_standards_own_example():
    body = b'{"test": 2432232314}'

    found = signed(signing_key(SECRET), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)

    assert found[b"webhook-signature"] == b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_one_connection_is_used_for_all(endpoint, opened):
    writer = opened(endpoint)

    for start in range(0, 60, 20):
        writer.write(rows(endpoint, range(start, start + 20)))

    assert numbers(endpoint) == list(range(60))
    assert len(endpoint.connections) == 1


def test_an_array_goes_to_each_url_in_order(endpoint, opened):
    paths = ["/a", "/b", "/a", "/a", "/b"]
    given = [(endpoint.url + path, b"%d" % n, value(n)) for n, path in enumerate(paths)]

    opened(endpoint, batch_mode=True).write(messages(given))

    assert [(each.path, json.loads(each.body)) for each in endpoint.requests] == [
        ("/a", [{"n": 0}, {"n": 2}, {"n": 3}]),
        ("/b", [{"n": 1}, {"n": 4}]),
    ]
    assert len({each.headers["idempotency-key"] for each in endpoint.requests}) == 2


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return certified(tmp_path_factory.mktemp("certificates"), "server")


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    return certified(tmp_path_factory.mktemp("certificates"), "client")


class TestTls:
    @pytest.fixture
    def endpoint(self, ours):
        endpoint = Endpoint(tls=ours)
        yield endpoint
        endpoint.stop()

    @pytest.fixture
    def strict(self, ours, client):
        endpoint = Endpoint(tls=ours, clients=client)
        yield endpoint
        endpoint.stop()

    def test_a_trusted_endpoint(self, endpoint, opened, ours):
        writer = opened(endpoint, ca_file=str(ours.certificate))

        writer.write(rows(endpoint, range(3)))

        assert numbers(endpoint) == [0, 1, 2]
        assert len(endpoint.connections) == 1

    def test_an_unknown_authority(self, endpoint, opened):
        with pytest.raises(AccessError, match=r"not trusted.*ca_file"):
            opened(endpoint).write(rows(endpoint, range(1)))

    def test_our_own_certificate(self, strict, opened, ours, client):
        given = {"ca_file": str(ours.certificate), "cert_file": str(client.both)}

        opened(strict, **given).write(rows(strict, range(2)))

        assert numbers(strict) == [0, 1]

    def test_no_certificate_of_ours(self, strict, opened, ours):
        with pytest.raises(AccessError, match="cert_file"):
            opened(strict, ca_file=str(ours.certificate)).write(rows(strict, range(1)))

    def test_an_endpoint_without_tls(self, opened, ours):
        plain = Endpoint()
        place = plain.url.replace("http", "https")
        writer = opened(plain, url=place, ca_file=str(ours.certificate))

        with pytest.raises(RetryableError, match="check that it is up"):
            writer.write(messages([(place, b"k", b"{}")]))

        plain.stop()


class TestAProxy:
    BASIC = "Basic dTpwQHc="
    """``u:p@w``"""

    @pytest.fixture
    def proxy(self):
        proxy = Endpoint()
        yield proxy
        proxy.stop()

    def through(self, proxy):
        return proxy.url.replace("://", "://u:p%40w@")

    def test_plain_requests_pass_through_it(self, proxy, opened):
        batch = messages([("http://nowhere.invalid/in", b"k", value(n)) for n in range(3)])
        writer = opened(proxy, url="http://nowhere.invalid/in", proxy=self.through(proxy))

        writer.write(batch)

        assert {each.path for each in proxy.taken} == {"http://nowhere.invalid:80/in"}
        assert {each.headers["proxy-authorization"] for each in proxy.taken} == {self.BASIC}
        assert numbers(proxy) == [0, 1, 2]
        assert len(proxy.connections) == 1

    def test_tls_goes_through_a_tunnel(self, proxy, opened, ours):
        endpoint = Endpoint(tls=ours)
        given = {"proxy": self.through(proxy), "ca_file": str(ours.certificate)}

        opened(endpoint, **given).write(rows(endpoint, range(3)))

        endpoint.stop()
        assert numbers(endpoint) == [0, 1, 2]
        assert proxy.tunnels == [(f"127.0.0.1:{endpoint.port}", self.BASIC)]
        assert "proxy-authorization" not in endpoint.requests[0].headers

    @pytest.mark.parametrize(("status", "error"), [(407, AccessError), (502, RetryableError)])
    def test_one_that_refuses_says_so(self, proxy, opened, status, error):
        proxy.acts = [status]
        place = "https://nowhere.invalid/in"

        with pytest.raises(error, match=f"proxy answers {status}") as caught:
            opened(proxy, url=place, proxy=self.through(proxy)).write(
                messages([(place, b"k", b"{}")])
            )

        assert "p@w" not in str(caught.value)
        assert "p%40w" not in str(caught.value)


class TestPlacesAProcessorChooses:
    def test_another_host_is_set_aside_unless_allowed(self, endpoint, opened):
        other = Endpoint()
        batch = messages([(f"{each.url}/x", b"k", b"{}") for each in (endpoint, other)])

        (rejection,) = opened(endpoint).write(batch)
        assert (rejection.event_row, rejection.kind) == (1, "routing")
        assert "allowed_origins" in rejection.reason

        assert list(opened(endpoint, allowed_origins=[other.url]).write(batch)) == []
        other.stop()
        assert len(other.requests) == 1

    @pytest.mark.parametrize("place", ["orders", "{}/a/../b", "http://u:p@h/x", "http://[x/"])
    def test_what_is_no_url_is_set_aside(self, endpoint, opened, place):
        batch = rows(endpoint, range(2))
        topics = [place.format(endpoint.url), f"{endpoint.url}/in"]

        rejections = opened(endpoint).write(replace(batch, topics=_topics(topics)))

        assert [(each.event_row, each.kind) for each in rejections] == [(0, "routing")]
        assert numbers(endpoint) == [1]

    def test_other_letters_are_encoded(self, endpoint, opened):
        batch = messages([(f"{endpoint.url}/a b%20é?q=ü", b"k", b"{}")])

        opened(endpoint).write(batch)

        assert endpoint.requests[0].path == "/a%20b%20%C3%A9?q=%C3%BC"


def _topics(texts):
    return pa.array(texts, pa.utf8()).dictionary_encode()
