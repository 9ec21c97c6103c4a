"""Keeps one connection: makes it when it is needed, and replaces it when it broke."""

import asyncio
import random
from dataclasses import dataclass, field

from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError, WrongServerError
from airflow_provider_deltaforge.sinks.nats.link import NatsClient
from airflow_provider_deltaforge.sinks.nats.login import without_login
from airflow_provider_deltaforge.sinks.nats.sink import NatsSink
from airflow_provider_deltaforge.sinks.nats.streams import Streams
from airflow_provider_deltaforge.telemetry.listener import other_server, place_in

_PORT = 4222


@dataclass
class NatsConnection:
    """What a writer holds instead of a connection.

    Attributes:
        sink: the description.
        name: how the server's monitoring names us.
        streams: what the present connection knows of streams.
    """

    sink: NatsSink
    name: str
    streams: Streams | None = None
    _told: list[str] = field(default_factory=list)

    async def up(self) -> Streams:
        """Return what the present connection knows, on a new one where the old one broke.

        Raises:
            RetryableError: no server answers.
            AccessError, FatalError: see ``NatsClient.connect`` and ``Streams.check``.
        """
        if self.streams is not None and self.streams.link.fit:
            return self.streams
        await self.drop()
        link = await self._connect()
        self._told = link.known_servers
        self.streams = Streams(link, self.sink)
        try:
            await self.streams.check()
        except BaseException:
            await self.drop()
            raise
        return self.streams

    async def drop(self) -> None:
        """Give the connection up, with whatever it has not sent."""
        streams, self.streams = self.streams, None
        if streams is not None:
            await streams.link.drop()

    async def _connect(self) -> NatsClient:
        servers = self.sink.servers
        random.shuffle(servers)
        problem = RetryableError(f"nats sink {self.sink.id}: url names no server")
        for address in dict.fromkeys([*servers, *self._told]):
            try:
                return await NatsClient.connect(self.sink, address, self.name)
            except RetryableError as error:
                problem = error
        raise await self._named(problem)

    async def _named(self, problem: RetryableError) -> DeltaForgeError:
        """Return an error, or a clearer one where something else answers in NATS's place."""
        shown = (without_login(server) for server in self.sink.servers)
        places = [place for each in shown if (place := place_in(each, _PORT)) is not None]
        found = await asyncio.to_thread(other_server, "NATS", places)
        if found is None:
            return problem
        return WrongServerError(f"nats sink {self.sink.id}: url: {found}; correct 'url'")
