"""Writers that keep their position in Redis, for tests of them."""

import redis

from airflow_provider_deltaforge.sinks.position_contract import SinkPosition
from airflow_provider_deltaforge.testing.sinks import value

STARTS = SinkPosition({"pos": 0})


def at(pos, event_id=None):
    return SinkPosition({"pos": pos}, event_id)


def client(server):
    return redis.Redis(host=server.host, port=server.port)


def values(server, stream):
    return [fields[b"event"] for _, fields in client(server).xrange(stream)]


def fill(server, name):
    """Use up the ids of a stream, so that it takes nothing more."""
    client(server).xadd(name, {"a": "b"}, id=f"{2**64 - 1}-{2**64 - 1}")


def numbers(span):
    return [value(n) for n in span]
