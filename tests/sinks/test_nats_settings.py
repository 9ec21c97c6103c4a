"""What a document may say about a NATS sink."""

import pydantic
import pytest

from airflow_provider_deltaforge.sinks.nats import NatsSink
from airflow_provider_deltaforge.sinks.nats.subjects import illegal, may_take, takes

GOOD = {"url": "nats://one:4222", "subject": "orders.new"}


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "one"},
        {"url": "one:4222, two:4222"},
        {"url": "nats://u:p@one,tls://two:4222"},
        {"url": "${NATS_URL}"},
        {"username": "u", "password": "p"},
        {"nkey_seed": "SU"},
        {"cert_file": "both.pem"},
        {"exactly_once": True, "stream": "ORDERS"},
        {"stream": "${STREAM}"},
    ],
)
def test_these_are_taken(settings):
    NatsSink(**{**GOOD, **settings})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "http://one"}, "nats:// or tls://"),
        ({"url": "ws://one"}, "nats:// or tls://"),
        ({"url": "nats://one,,"}, "has no name"),
        ({"url": "nats://"}, "has no name"),
        ({"url": "nats://u:pa/ss@one"}, "%2F"),
        ({"url": "nats://u:1#2@one"}, "%2F"),
        ({"url": "one,nats://u:pa"}, "%2F"),
        ({"username": "u"}, "'username' and 'password' go together"),
        ({"username": "u", "password": "p", "token": "t"}, "goes not together with username"),
        ({"nkey_seed": "SU", "credentials_file": "f"}, "goes not together with nkey_seed"),
        ({"key_file": "k.pem"}, "goes together with cert_file"),
        ({"url": "nats://u:p@one", "token": "t"}, "is not used where 'url' holds a login"),
        ({"exactly_once": True}, "needs 'stream'"),
        ({"stream": "a.b"}, "holds no blank"),
        ({"subject": ""}, "at least 1 character"),
        ({"send_timeout_secs": 0}, "greater than 0"),
    ],
)
def test_these_are_refused(settings, said):
    with pytest.raises(pydantic.ValidationError, match=said):
        NatsSink(**{**GOOD, **settings})


def test_no_secret_shows():
    for secrets in (
        {"url": "nats://u:planted@one"},
        {"username": "u", "password": "planted"},
    ):
        assert "planted" not in repr(NatsSink(**{**GOOD, **secrets}))


@pytest.mark.parametrize(
    ("patterns", "subject", "taken"),
    [
        (["orders"], "orders", True),
        (["orders"], "orders.new", False),
        (["orders.*"], "orders.new", True),
        (["orders.*"], "orders.new.eu", False),
        (["orders.*.eu"], "orders.new.eu", True),
        (["orders.>"], "orders.new.eu", True),
        (["orders.>"], "orders", False),
        ([">"], "orders", True),
        (["a", "*.b"], "c.b", True),
        ([], "a", False),
    ],
)
def test_a_stream_takes_what_its_subjects_cover(patterns, subject, taken):
    assert takes(patterns, subject) is taken


@pytest.mark.parametrize(
    ("template", "may"),
    [
        ("cdc.${source.table}", True),
        ("${source.table}", True),
        ("cdc${op}.x", True),
        ("cdc.orders", True),
        ("other.${source.table}", False),
        ("other", False),
    ],
)
def test_a_template_is_judged_by_what_stands_before_its_first_field(template, may):
    assert may_take(["cdc.>"], template) is may


def test_what_begins_with_a_dollar_needs_a_document_that_says_so():
    assert not illegal("$KV.users.1", "$KV.users.${after.id}")
    assert illegal("$JS.API.STREAM.PURGE.X", "$KV.users.${after.id}")
    assert illegal("$JS.API.STREAM.PURGE.X", "${after.subject}")
