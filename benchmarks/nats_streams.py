"""A NATS server with one stream, our sinks for it, and what nats-py's own page shows."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_provider_deltaforge.columns.binary_columns import uuid_texts
from airflow_provider_deltaforge.events.message import Messages
from airflow_provider_deltaforge.sinks.contract import SinkWriter
from airflow_provider_deltaforge.sinks.nats import NatsSink
from benchmarks.with_positions import with_positions
from tests.servers import nats as servers
from tests.servers.process import Server

PLACE = "orders"


class OnceSink(NatsSink):
    """Writes with positions what the benchmark hands over without."""

    exactly_once: bool = True

    def open(self, pipeline: str) -> SinkWriter:
        """Return a writer that has found its end."""
        return with_positions(super().open(pipeline))


def start(directory: Path) -> Server:
    """Start a server with the stream."""
    server = servers.start(directory)
    _asked(server, _made)
    return server


def sink(server: Server) -> NatsSink:
    """Describe our sink."""
    return NatsSink(id="bench", url=server.dsn(), subject=PLACE, stream=PLACE)


def sink_once(server: Server) -> NatsSink:
    """Describe our sink with exactly_once."""
    return OnceSink(id="bench", url=server.dsn(), subject=PLACE, stream=PLACE)


def bare(server: Server) -> Any:
    """Return what publishes with as many messages under way as the client allows."""
    import nats

    async def publish(jetstream: Any, batch: Messages) -> None:
        names = uuid_texts(batch.event_ids).to_pylist()
        found = zip(batch.values.to_pylist(), batch.keys.to_pylist(), names, strict=True)
        for value, key, name in found:
            headers = {"Nats-Msg-Id": name.decode(), "df-key": key.decode()}
            await jetstream.publish_async(PLACE, value, headers=headers)
        await jetstream.publish_async_completed()

    async def run(batches: Sequence[Messages]) -> None:
        client = await nats.connect(server.dsn())
        jetstream = client.jetstream()
        for batch in batches:
            await publish(jetstream, batch)
        await client.close()

    return lambda batches: asyncio.run(run(batches))


def held(server: Server) -> int:
    """Return how many messages the stream holds, and make it anew: it forgets their ids."""
    return int(_asked(server, _counted, _removed, _made)[0])


async def _made(jetstream: Any) -> None:
    await jetstream.add_stream(name=PLACE, subjects=[PLACE])


async def _removed(jetstream: Any) -> None:
    await jetstream.delete_stream(PLACE)


async def _counted(jetstream: Any) -> int:
    return int((await jetstream.stream_info(PLACE)).state.messages)


def _asked(server: Server, *questions: Any) -> list[Any]:
    import nats

    async def run() -> list[Any]:
        client = await nats.connect(server.dsn())
        try:
            return [await question(client.jetstream()) for question in questions]
        finally:
            await client.close()

    return asyncio.run(run())
