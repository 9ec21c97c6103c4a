"""Keeps one connection: makes it when it is needed, and replaces it when it broke."""

import random
from dataclasses import dataclass, field

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sinks.nats.link import Link
from airflow_provider_deltaforge.sinks.nats.sink import NatsSink
from airflow_provider_deltaforge.sinks.nats.streams import Streams


@dataclass
class Line:
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
            AccessError, FatalError: see ``Link.connect`` and ``Streams.check``.
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

    async def _connect(self) -> Link:
        servers = self.sink.servers
        random.shuffle(servers)
        problem = RetryableError(f"nats sink {self.sink.id}: url names no server")
        for address in dict.fromkeys([*servers, *self._told]):
            try:
                return await Link.connect(self.sink, address, self.name)
            except RetryableError as error:
                problem = error
        raise problem
