"""What a document may say about an HTTP sink; no endpoint is needed."""

import pickle
import sys
from email.utils import formatdate

import pytest
from pydantic import ValidationError

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.sinks.http import HttpSink
from airflow_provider_deltaforge.sinks.http.sender import retry_after_s
from airflow_provider_deltaforge.spec.load import load

URL = "https://hooks.example.com/in"
SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


AVRO = {"type": "avro", "schema_registry_url": "http://registry:8081"}


def test_the_defaults_of_the_documents():
    sink = HttpSink(url=URL)

    assert (sink.id, sink.required, sink.method, sink.batch_mode) == ("http", True, "POST", False)
    timeouts = (sink.send_timeout_secs, sink.batch_timeout_secs, sink.connect_timeout_secs)
    assert timeouts == (10, 30, 5)
    assert (sink.headers, sink.key, sink.unbuilt()) == ({}, None, [])


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        pytest.param({"exactly_once": True}, "exactly_once", id="not offered"),
        pytest.param({"url": "ftp://h/x"}, "url.*http://", id="scheme"),
        pytest.param({"url": "hooks.example.com/in"}, "url.*http://", id="no scheme"),
        pytest.param({"url": "https:///in"}, "url.*no host", id="no host"),
        pytest.param({"url": "https://u:hush@h/in"}, "url.*'headers'", id="credentials"),
        pytest.param({"url": "https://${source.db}/in"}, "url", id="host from the event"),
        pytest.param({"url": "https://h${source.db}/in"}, "url.*host", id="part of the host"),
        pytest.param({"url": "https://h:${source.db}/in"}, "url.*host", id="port"),
        pytest.param({"url": "${after.url}"}, "url", id="all of it"),
        pytest.param({"method": "GET"}, "method", id="method"),
        pytest.param({"headers": {"a b": "c"}}, "headers.*'a b'", id="name"),
        pytest.param({"headers": {"X": "hush\r\nY: b"}}, "headers.X", id="line break"),
        pytest.param({"headers": {"Host": "x"}}, "headers.Host belongs", id="framing"),
        pytest.param({"headers": {"df-key": "x"}}, "headers.df-key belongs", id="ours"),
        pytest.param({"headers": {"a": "x", "A": "y"}}, "headers names one twice", id="twice"),
        pytest.param({"signing_secret": "hush"}, "signing_secret", id="not base64"),
        pytest.param({"allowed_origins": ["h"]}, "allowed_origins", id="no origin"),
        pytest.param({"allowed_origins": ["https://h/x"]}, "allowed_origins", id="path"),
        pytest.param({"batch_mode": True, "key": "a"}, "key\n.*df-key", id="key of an array"),
        pytest.param({"batch_mode": True, "encoding": AVRO}, "batch_mode\n.*only JSON", id="avro"),
        pytest.param({"key_file": "k.pem"}, "key_file\n.*cert_file", id="key alone"),
        pytest.param({"proxy": "https://u:hush@p:3128"}, "proxy", id="proxy over TLS"),
        pytest.param({"proxy": "p:3128"}, "proxy", id="no proxy"),
        pytest.param({"parallelism": 65}, "parallelism", id="too many at a time"),
        pytest.param({"send_timeout_secs": 0}, "send_timeout_secs", id="no time"),
    ],
)
def test_what_cannot_work_is_refused_with_its_key(settings, key):
    with pytest.raises(ValidationError) as caught:
        HttpSink(**{"url": URL, **settings})

    caught.match(f"(?s){key}")
    assert "hush" not in str(caught.value)


def test_avro_is_called_so():
    assert HttpSink(url=URL, encoding=AVRO).content_type() == "application/avro"


@pytest.mark.parametrize(
    "url",
    [
        "https://h/${source.table}?id=${after.id}",
        "https://h?t=${source.table}",
        "http://[::1]:8080/in",
        "${WEBHOOK}/in",
        "https://${HOST}/in",
    ],
)
def test_urls_that_may_be_written(url):
    assert HttpSink(url=url).destination == url


def test_variables_are_filled_in_and_checked_then():
    text = (
        "metadata: {name: a, tenant: b}\nspec:\n  source: {type: scripted, config: {id: s}}\n"
        "  sinks: [{type: http, config: {id: h, url: '${HOOK}', headers: {A: 'Bearer ${T}'}}}]\n"
    )

    sink = load(text, {"HOOK": URL, "T": "hush"}).spec.sinks[0]
    assert (sink.url, sink.headers["A"].get_secret_value()) == (URL, "Bearer hush")
    assert load(text, {}, expand=False).spec.sinks[0].url == "${HOOK}"
    with pytest.raises(SpecError, match="url"):
        load(text, {"HOOK": "ftp://x", "T": ""})


def test_secrets_do_not_print_but_travel():
    sink = HttpSink(url=URL, headers={"Authorization": "Bearer hush"}, signing_secret=SECRET)

    assert "hush" not in f"{sink!r} {sink} {sink.model_dump()} {sink.model_dump_json()}"
    assert SECRET not in repr(sink)
    assert pickle.loads(pickle.dumps(sink)) == sink


@pytest.mark.parametrize("settings", [{"ca_file": "/nowhere.pem"}, {"cert_file": "/nowhere.pem"}])
def test_a_missing_file_is_named_by_its_key(settings):
    with pytest.raises(SpecError, match=next(iter(settings))):
        HttpSink(url=URL, **settings).open("p")


def test_a_missing_driver_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpcore", None)

    with pytest.raises(SpecError, match=r"airflow-provider-deltaforge\[http\]"):
        HttpSink(url=URL).open("p")


@pytest.mark.parametrize(
    ("said", "expected"),
    [(None, 0), ("", 0), ("5", 5), ("-5", 0), ("soon", 0), ("nan", 0), ("99999999", 3600)],
)
def test_retry_after(said, expected):
    assert retry_after_s(said) == expected


def test_retry_after_may_be_a_date():
    assert retry_after_s(formatdate(0, usegmt=True)) == 0
    assert retry_after_s("Fri, 01 Jan 2100 00:00:00 GMT") == 3600


@pytest.mark.parametrize("name", ["ca_file", "cert_file"])
def test_files_of_tls_are_refused_where_nothing_is_encrypted(name):
    with pytest.raises(ValidationError, match="is for https://"):
        HttpSink(url="http://hook", **{name: "/c.pem"})
    HttpSink(url="http://hook", allowed_origins=("https://other",), **{name: "/c.pem"})
    HttpSink(url="${HOOK}", **{name: "/c.pem"})
