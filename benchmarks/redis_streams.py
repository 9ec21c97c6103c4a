"""A Redis server, our sinks for it, and what redis-py's own page shows."""

from collections.abc import Sequence
from typing import Any

import redis

from airflow_provider_deltaforge.errors import FencedError
from airflow_provider_deltaforge.events.binary_columns import uuid_texts
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import Cursor, SinkWriter
from airflow_provider_deltaforge.sinks.redis import RedisSink
from tests.servers import redis as servers
from tests.servers.process import Server

PLACE = "orders"
_POSITION = Cursor({"file": "binlog.000042", "pos": 197, "gtid": "3E11FA47-71CA:1-4711"})

start = servers.start_forgetful


class OnceSink(RedisSink):
    """Writes with positions what the benchmark hands over without."""

    exactly_once: bool = True

    def open(self, pipeline: str) -> SinkWriter:
        """Return a writer that has taken over."""
        writer: Any = super().open(pipeline)
        writer.recover()
        return _Once(writer)


class _Once:
    """Acts as the lane does."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, messages: Messages) -> Sequence[Rejection]:
        try:
            return self._write(messages)
        except FencedError:  # Between two rounds the server was emptied.
            self._writer.recover()
            return self._write(messages)

    def close(self) -> None:
        self._writer.close()

    def _write(self, messages: Messages) -> Sequence[Rejection]:
        rejections: Sequence[Rejection] = self._writer.write_once(messages, _POSITION, _POSITION)
        return rejections


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
