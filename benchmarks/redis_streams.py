"""A Redis server, our sinks for it, and what redis-py's own page shows."""

from collections.abc import Sequence
from typing import Any

import redis

from airflow_provider_deltaforge.columns.binary_columns import uuid_texts
from airflow_provider_deltaforge.events.message import Messages
from airflow_provider_deltaforge.sinks.contract import SinkWriter
from airflow_provider_deltaforge.sinks.redis import RedisSink
from benchmarks.with_positions import with_positions
from tests.servers import redis as servers
from tests.servers.process import Server

PLACE = "orders"

start = servers.start_forgetful


class OnceSink(RedisSink):
    """Writes with positions what the benchmark hands over without."""

    exactly_once: bool = True

    def open(self, pipeline: str) -> SinkWriter:
        """Return a writer that has taken over."""
        return with_positions(super().open(pipeline))


def sink(server: Server) -> RedisSink:
    """Describe our sink."""
    return RedisSink(id="bench", uri=server.dsn("0"), stream=PLACE)


def sink_once(server: Server) -> RedisSink:
    """Describe our sink with exactly_once."""
    return OnceSink(id="bench", uri=server.dsn("0"), stream=PLACE)


def bare(server: Server) -> Any:
    """Return what sends a pipeline per batch."""
    client = _client(server)

    def send(batches: Sequence[Messages]) -> None:
        for batch in batches:
            names = uuid_texts(batch.event_ids).to_pylist()
            found = zip(batch.values.to_pylist(), batch.keys.to_pylist(), names, strict=True)
            pipeline = client.pipeline(transaction=False)
            for value, key, name in found:
                fields = {"event": value, "event_id": name, "idempotency_key": name, "df-key": key}
                pipeline.xadd(PLACE, fields)
            pipeline.execute()

    return send


def held(server: Server) -> int:
    """Return how many entries the server holds, and empty it."""
    client = _client(server)
    count = int(client.xlen(PLACE))
    client.flushall()
    return count


def _client(server: Server) -> Any:
    return redis.Redis(host=server.host, port=server.port)
