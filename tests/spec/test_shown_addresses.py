"""An address whose password is not percent-encoded shows nothing of it, whoever reads it."""

import itertools

import pytest

from airflow_provider_deltaforge.encodings.avro import AvroEncoding
from airflow_provider_deltaforge.sinks.http import HttpSink
from airflow_provider_deltaforge.sinks.nats import NatsSink
from airflow_provider_deltaforge.sinks.redis import RedisSink
from airflow_provider_deltaforge.sources.postgres.connection import parse_dsn as postgres
from airflow_provider_deltaforge.spec.load import check
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.telemetry.redaction import redacted

BEGINNINGS = ["sesame", "54321", "sesame:54321"]
HARD = [f"{word}{mark}open" for word, mark in itertools.product(BEGINNINGS, "/@?#:")]

READERS = {
    "redis": (lambda text: RedisSink(id="r", uri=text, stream="s"), "redis://u:{}@h.example/0"),
    "sentinel": (
        lambda text: RedisSink(id="r", uri=text, stream="s"),
        "redis+sentinel://u:{}@h.example/m",
    ),
    "nats": (lambda text: NatsSink(id="n", url=text, subject="s"), "nats://u:{}@h.example"),
    "http": (lambda text: HttpSink(url=text), "https://u:{}@h.example/in"),
    "proxy": (lambda text: HttpSink(url="https://h", proxy=text), "http://u:{}@h.example:1"),
    "avro": (lambda text: AvroEncoding(schema_registry_url=text), "https://u:{}@h.example"),
    "postgres": (postgres, "postgres://u:{}@h.example/db"),
}


@pytest.mark.parametrize("password", HARD)
@pytest.mark.parametrize("name", READERS)
def test_a_password_that_is_not_encoded_is_refused_or_read_but_never_shown(name, password):
    read, form = READERS[name]
    try:
        address = read(form.format(password))
    except Exception as error:  # noqa: BLE001 - of whatever kind
        shown = f"{error} {error.__cause__ or ''}"
        assert "%" in shown or "percent" in shown or "headers" in shown or "username" in shown
    else:
        shown = repr(address) if not isinstance(address, dict) else address["host"]
        if hasattr(address, "address"):
            assert address.address().shown.replace("'m' at the sentinels ", "").startswith("h.exam")
    for part in ("sesame", "54321", "open"):
        assert part not in shown


@pytest.mark.parametrize("password", HARD)
def test_a_state_store_is_shown_without_its_password(password):
    location = StoreLocation.from_dsn(f"postgresql://u:{password}@h.example/db?x=1")
    assert location.shown() == "postgresql://u:***@h.example/db?x=1"


@pytest.mark.parametrize("password", HARD)
def test_a_document_is_checked_without_showing_it(password):
    text = (
        "apiVersion: deltaforge/v1\nkind: Pipeline\nmetadata: {name: orders, tenant: t}\nspec:\n"
        f"  source: {{type: mysql, config: {{id: a, dsn: 'mysql://u:{password}@h:99999/d'}}}}\n"
        "  sinks: [{type: memory, config: {id: m}}]\n"
    )
    (problem,) = check(text, {})
    assert problem.key == "spec.source.config.dsn"
    assert "99999" in problem.message
    assert not {"sesame", "54321", "open"} & set(problem.message.replace(",", " ").split())


def test_the_servers_own_words_stay():
    said = "Access denied for user 'df'@'h' (using password: YES)"
    assert redacted(said) == said
    assert redacted(said.replace("YES", "NO")) == said.replace("YES", "NO")
    assert redacted("using password: YESTERDAY-1") == "using password: ***"
    assert redacted("password: YES") == "password: ***"
