"""What a document may say about a Redis sink; no server is needed."""

import pytest
from pydantic import ValidationError

from airflow_provider_deltaforge.errors import AccessError, FatalError, RetryableError, SpecError
from airflow_provider_deltaforge.sinks.redis import RedisSink, error_codes
from airflow_provider_deltaforge.sinks.redis.address import parse
from airflow_provider_deltaforge.sinks.redis.slots import cursor_key, tag_of


def sink(uri="redis://h", stream="s", **settings):
    return RedisSink(id="r", uri=uri, stream=stream, **settings)


@pytest.mark.parametrize(
    ("uri", "kind", "hosts", "place"),
    [
        ("redis://cache", "server", [("cache", 6379)], ("", "", None)),
        ("redis://cache:7000/3", "server", [("cache", 7000)], ("", "", 3)),
        ("redis://cache/?db=4", "server", [("cache", 6379)], ("", "", 4)),
        ("rediss://[::1]:7000", "server", [("::1", 7000)], ("", "", None)),
        ("unix:///run/redis.sock?db=2", "socket", [], ("/run/redis.sock", "", 2)),
        (
            "redis+sentinel://a,b:27000/mine",
            "sentinel",
            [("a", 26379), ("b", 27000)],
            ("", "mine", None),
        ),
        ("redis-sentinel://a/mine/5", "sentinel", [("a", 26379)], ("", "mine", 5)),
        ("redis-sentinel://a/5#mine", "sentinel", [("a", 26379)], ("", "mine", 5)),
        ("redis+cluster://a,b:7001", "cluster", [("a", 6379), ("b", 7001)], ("", "", None)),
        ("rediss+cluster://a/0", "cluster", [("a", 6379)], ("", "", 0)),
    ],
)
def test_a_uri_says_where_redis_is(uri, kind, hosts, place):
    found = parse(uri)

    assert (found.kind, list(found.hosts)) == (kind, hosts)
    assert (found.path, found.service, found.database) == place
    assert found.tls == uri.startswith("rediss")


def test_a_uri_may_hold_logins():
    found = parse("redis+sentinel://df:p%40ss@a/mine?sentinel_username=w&sentinel_password=v%2F")

    assert found.login == ("df", "p@ss")
    assert found.sentinel_login == ("w", "v/")
    assert parse("redis://:only@h").login == (None, "only")
    assert "p@ss" not in found.shown


@pytest.mark.parametrize(
    ("settings", "key", "said"),
    [
        ({"uri": "http://h"}, "uri", "write one of redis://"),
        ({"uri": "redis://h:70000"}, "uri", "host:port"),
        ({"uri": "redis://a,b"}, "uri", "redis+cluster://"),
        ({"uri": "redis://h/0?timeout=3"}, "uri", "'timeout' is not known"),
        ({"uri": "redis+sentinel://h"}, "uri", "mymaster"),
        ({"uri": "redis+cluster://h/2"}, "uri", "database 0 only"),
        ({"uri": "redis://h/x"}, "uri", "is a number"),
        ({"uri": "redis://planted@h"}, "uri", "user:password"),
        ({"uri": "redis://:planted@h", "password": "planted"}, "password", "keep one"),
        ({"username": "u"}, "password", "needs it"),
        ({"uri": "redis://h/1", "database": 2}, "database", "keep one"),
        ({"uri": "redis+cluster://h", "database": 2}, "database", "0 only"),
        ({"ca_file": "ca.pem"}, "ca_file", "rediss://"),
        ({"uri": "rediss://h", "key_file": "k.pem"}, "cert_file", "needs it"),
        ({"max_len": 0}, "max_len", "greater than 0"),
        (
            {"uri": "redis+cluster://h", "exactly_once": True, "stream": "s:${source.table}"},
            "stream",
            "hash tag",
        ),
    ],
)
def test_what_cannot_be_obeyed_is_refused_by_its_key(settings, key, said):
    with pytest.raises(ValidationError) as caught:
        sink(**settings)

    [error] = caught.value.errors()
    assert (error["loc"], "planted" in str(caught.value)) == ((key,), False)
    assert said in error["msg"]


def test_a_variable_that_is_missing_is_found_when_connecting():
    unexpanded = sink("${REDIS_URI}", exactly_once=True)

    with pytest.raises(SpecError, match="sink r: uri: write one of"):
        unexpanded.open("p")


@pytest.mark.parametrize(
    ("template", "tag"),
    [
        ("orders", "orders"),
        ("{shop}:${source.table}", "shop"),
        ("a:{shop}:${op}", "shop"),
        ("events:${source.table}", None),
        ("{${source.db}}:x", None),
        ("{}{a}:x", None),
        ("a{b", None),
    ],
)
def test_the_slot_of_all_streams_is_known_or_not(template, tag):
    assert tag_of(template) == tag


def test_the_position_lies_in_the_slot_of_the_streams():
    from redis.crc import key_slot

    for stream in ("orders", "{shop}:orders", "a:{shop}:x"):
        key = cursor_key("p", "r", tag_of(stream))
        assert key_slot(key.encode()) == key_slot(stream.encode())


class TestMeaning:
    @pytest.mark.parametrize(
        ("answer", "kind", "advice"),
        [
            ("OOM command not allowed when used memory > 'maxmemory'.", RetryableError, "max_len"),
            ("BUSY Redis is busy running a script.", RetryableError, "SCRIPT KILL"),
            ("MASTERDOWN Link with MASTER is down.", RetryableError, "try again"),
            ("TRYAGAIN Multiple keys request during rehashing", RetryableError, "moved"),
            ("CLUSTERDOWN The cluster is down", RetryableError, "CLUSTER INFO"),
            ("MISCONF Redis is configured to save RDB snapshots", RetryableError, "its log"),
            ("NOREPLICAS Not enough good replicas to write.", RetryableError, "replicas"),
            ("READONLY You can't write against a read only replica.", RetryableError, "sentinels"),
            ("LOADING Redis is loading the dataset in memory", RetryableError, "loads"),
            ("NOAUTH Authentication required.", AccessError, "user and password"),
            ("WRONGPASS invalid username-password pair", AccessError, "correct"),
            ("NOPERM this user has no permissions", AccessError, "grant"),
            ("DENIED Redis is running in protected mode", AccessError, "password"),
            ("ERR invalid password", AccessError, "correct"),
            ("ERR unknown command 'XADD'", FatalError, "Redis 5"),
            ("ERR DB index is out of range", FatalError, "database"),
            ("ERR something new", RetryableError, "reachable"),
        ],
    )
    def test_an_answer_of_the_server(self, answer, kind, advice):
        from redis._parsers.base import BaseParser

        told = error_codes.to_error(BaseParser.parse_error(answer), "here", ())

        assert type(told) is kind
        assert str(told).startswith("here: ")
        assert advice in str(told)

    def test_a_cluster_behind_a_plain_uri_is_named(self):
        from redis.exceptions import MovedError

        error = MovedError("7 10.0.0.1:6379", status_code="MOVED")

        assert type(error_codes.to_error(error, "here", ())) is RetryableError
        told = error_codes.to_error(error, "here", (), is_cluster=False)
        assert (type(told), "redis+cluster://" in str(told)) == (FatalError, True)

    def test_secrets_are_taken_out(self):
        told = error_codes.to_error(OSError("planted and redis://u:other@h"), "here", ("planted",))

        assert "planted" not in str(told)
        assert "other" not in str(told)
